"""What the index remembers of each block: plain arrays, 60 bytes a block."""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvscope.cache.table import Keys, Values

Times = NDArray[np.float64]

_FIRST = 64
_GROWTH = 5, 4  # a quarter more: while they grow there are two of the arrays, and later the rest lies idle


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """When a block came, was last used and went, by the engine's clock; None while it has not gone.

    ``used_at`` is the latest of its comings and of the hits that the index was told of.
    """

    first_stored_at: float
    stored_at: float
    used_at: float
    evicted_at: float | None
    copies: int


class BlockSlots:
    """Numbered places for blocks; a place whose block is forgotten is given to another one.

    ``stored`` and ``gone`` tell the latest coming and going, ``*_before`` those before it; ``gone`` is
    infinite while the block is there.
    """

    def __init__(self) -> None:
        self._size = _FIRST
        self._given = 0
        self._free: list[int] = []
        self.key: Keys = np.zeros(_FIRST, dtype=np.uint64)
        self.copies: Values = np.zeros(_FIRST, dtype=np.int32)
        self.first: Times = np.zeros(_FIRST)
        self.stored: Times = np.zeros(_FIRST)
        self.gone: Times = np.zeros(_FIRST)
        self.stored_before: Times = np.zeros(_FIRST)
        self.gone_before: Times = np.zeros(_FIRST)
        self.used: Times = np.zeros(_FIRST)

    def __len__(self) -> int:
        """Return how many blocks are remembered."""
        return self._given - len(self._free)

    def give(self, keys: Keys, at: float) -> Values:
        """Return a place for each of ``keys``, blocks that come for the first time, at ``at``."""
        fresh = len(keys) - len(self._free)
        if fresh < len(keys):
            again = np.array(
                [self._free.pop() for _ in range(min(len(keys), len(self._free)))], dtype=np.int32
            )
            self._begin(again, keys[: len(again)], at)
            return again if fresh <= 0 else np.concatenate([again, self.give(keys[len(again) :], at)])
        first, self._given = self._given, self._given + fresh
        while self._given > self._size:
            self._grow()
        self._begin(slice(first, self._given), keys, at)
        return np.arange(first, self._given, dtype=np.int32)

    def take_back(self, slots: Values) -> None:
        """Forget the blocks at ``slots``."""
        self.copies[slots] = -1
        self._free += slots.tolist()

    def come(self, slots: Values, at: float) -> int:
        """Add a copy to each of ``slots``, which differ; return how many blocks had none before."""
        copies = self.copies[slots]
        absent = copies == 0
        back = slots[absent & (self.gone[slots] < np.inf)]
        if len(back):
            self.stored_before[back], self.gone_before[back] = self.stored[back], self.gone[back]
            self.stored[back], self.gone[back] = at, np.inf
        self.copies[slots] = copies + 1
        self.used[slots] = at
        return int(absent.sum())

    def go(self, slots: Values, at: float) -> int:
        """Take a copy away for each mention in ``slots``; return how many blocks have none left."""
        if (self.copies[slots] == 1).all():  # a slot that is mentioned twice has more copies
            self.copies[slots] = 0
            self.gone[slots] = at
            return len(slots)
        np.subtract.at(self.copies, slots, 1)
        left = slots[self.copies[slots] == 0]
        self.gone[left] = at
        return len(set(left.tolist()))

    def use(self, slots: Values, at: float) -> None:
        """Note that blocks were used at ``at``."""
        self.used[slots] = np.maximum(self.used[slots], at)

    def times(self, slot: int) -> BlockTimes:
        """Return what is remembered at ``slot``."""
        gone = float(self.gone[slot])
        return BlockTimes(
            first_stored_at=float(self.first[slot]),
            stored_at=float(self.stored[slot]),
            used_at=float(self.used[slot]),
            evicted_at=None if gone == np.inf else gone,
            copies=int(self.copies[slot]),
        )

    def oldest(self, most: int, *, evicted: bool) -> Values:
        """Return up to ``most`` places: of blocks evicted, or else cached and unused, for longest."""
        copies = self.copies[: self._given]
        some = np.flatnonzero(copies == 0 if evicted else copies > 0).astype(np.int32)
        if len(some) > most:
            when = (self.gone if evicted else self.used)[some]
            some = some[np.argpartition(when, most)[:most]]
        return some

    def marked(self, slots: Values) -> Callable[[Values], NDArray[np.bool_]]:
        """Return the function that says of numbers which of them are among ``slots``."""
        marks = np.zeros(self._given, dtype=np.bool_)
        marks[slots] = True
        return marks.take

    def _begin(self, slots: Values | slice, keys: Keys, at: float) -> None:
        self.key[slots] = keys
        self.copies[slots] = 0
        self.gone[slots] = np.inf
        for times in (self.first, self.stored, self.stored_before, self.gone_before, self.used):
            times[slots] = at

    def _grow(self) -> None:
        size = self._size * _GROWTH[0] // _GROWTH[1]
        for name in ("key", "copies", "first", "stored", "gone", "stored_before", "gone_before", "used"):
            grown = np.zeros(size, dtype=getattr(self, name).dtype)
            grown[: self._size] = getattr(self, name)
            setattr(self, name, grown)
        self._size = size
