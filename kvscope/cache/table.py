"""A hash table of 64-bit keys that is asked in vectors: a few bytes a key, and no Python object for any.

Keys lie in buckets of one cache line each. A key whose bucket is full lies beside the table in a dict; at
the load at which the table grows these are about two in a hundred.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Values = NDArray[np.int32]

NOWHERE = -1
_WIDTH = 8
_FREE = np.uint64(0)
_STEP = np.uint64(0x9E37_79B9_7F4A_7C15)  # odd, 2**64 divided by the golden ratio: spreads small keys too
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_FIRST_BITS = 3  # of the number of buckets
_FULL = 0.62  # of the places: at 10 M keys the table has grown just before, and not again
_AT_ONCE = 65_536  # buckets looked at in one go while growing: in between other threads have a turn


class BucketTable:
    """Maps keys to numbers from 0 on. Key 0 is taken for another one; for one thread at a time."""

    def __init__(self) -> None:
        self._beside: dict[int, int] = {}
        self._held = 0  # in buckets
        self._begin(_FIRST_BITS)

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._held + len(self._beside)

    def find(self, keys: Keys) -> Values:
        """Return each key's number, or ``NOWHERE``."""
        keys = _usable(keys)
        rows = self._rows(keys)
        places, missing = self._places(keys, rows)
        found = self._values.take(places)
        found[missing] = NOWHERE
        if self._beside:
            for at in np.flatnonzero(missing & self._spilled.take(rows)).tolist():
                found[at] = self._beside.get(int(keys[at]), NOWHERE)
        return found

    def get(self, key: int) -> int:
        """Return one key's number, or ``NOWHERE``."""
        key = key or int(_STEP)
        row = (key * int(_STEP) & _MASK) >> (64 - self._bits)
        bucket = self._buckets[row].tolist()
        if key in bucket:
            return int(self._values[row * _WIDTH + bucket.index(key)])
        return self._beside.get(key, NOWHERE)

    def add(self, keys: Keys, values: Values) -> None:
        """Put in keys that differ and are not in the table."""
        while self._held + len(keys) > _FULL * len(self._keys):
            self._grow()
        self._put(_usable(keys), values)

    def pop(self, keys: Keys) -> Values:
        """Take out keys that differ, and return the number of each, or ``NOWHERE``."""
        keys = _usable(keys)
        rows = self._rows(keys)
        places, missing = self._places(keys, rows)
        found = self._values.take(places)
        found[missing] = NOWHERE
        held = places[~missing]
        self._keys[held] = _FREE
        self._held -= len(held)
        if self._beside:
            for at in np.flatnonzero(missing & self._spilled.take(rows)).tolist():
                found[at] = self._beside.pop(int(keys[at]), NOWHERE)
        return found

    def discard_where(self, chosen: Callable[[Values], NDArray[np.bool_]]) -> Keys:
        """Take out, and return, the keys whose numbers are chosen."""
        places = np.flatnonzero(self._keys != _FREE)
        places = places[chosen(self._values[places])]
        gone = self._keys[places]
        self._keys[places] = _FREE
        self._held -= len(places)
        beside = np.fromiter(self._beside, dtype=np.uint64, count=len(self._beside))
        numbers = np.fromiter(self._beside.values(), dtype=np.int32, count=len(self._beside))
        beside = beside[chosen(numbers)]
        for key in beside.tolist():
            del self._beside[key]
        return np.concatenate([gone, beside])

    def values(self) -> Values:
        """Return all numbers, in no order."""
        held = self._values[self._keys != _FREE]
        return np.concatenate([held, np.fromiter(self._beside.values(), np.int32, len(self._beside))])

    def clear(self) -> None:
        """Take all keys out, and their memory back."""
        self._beside.clear()
        self._held = 0
        self._begin(_FIRST_BITS)

    def _begin(self, bits: int) -> None:
        self._bits = bits
        self._keys = np.zeros(_WIDTH << bits, dtype=np.uint64)
        self._values = np.zeros(_WIDTH << bits, dtype=np.int32)
        self._buckets = self._keys.reshape(-1, _WIDTH)  # the same memory, a bucket a row
        self._spilled = np.zeros(1 << bits, dtype=np.bool_)  # buckets of which keys were put beside

    def _rows(self, keys: Keys) -> NDArray[np.int64]:
        return ((keys * _STEP) >> np.uint64(64 - self._bits)).astype(np.int64)

    def _places(self, keys: Keys, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return where in the buckets each key lies, and which of them lie in none."""
        same = self._buckets.take(rows, axis=0) == keys[:, np.newaxis]
        places = rows * _WIDTH + same.argmax(axis=1)
        return places, self._keys.take(places) != keys

    def _put(self, keys: Keys, values: Values) -> None:
        rows = self._rows(keys)
        while len(keys):
            places = rows * _WIDTH + (self._buckets.take(rows, axis=0) == _FREE).argmax(axis=1)
            full = self._keys.take(places) != _FREE
            if full.any():
                self._spilled[rows[full]] = True
                self._beside.update(zip(keys[full].tolist(), values[full].tolist(), strict=True))
                keys, values, rows, places = keys[~full], values[~full], rows[~full], places[~full]
            # several keys may have chosen one place: the last one has it, the others choose again
            self._keys[places] = keys
            has = self._keys.take(places) == keys
            if has.all():
                self._values[places] = values
                self._held += len(keys)
                return
            self._values[places[has]] = values[has]
            self._held += int(has.sum())
            keys, values, rows = keys[~has], values[~has], rows[~has]

    def _grow(self) -> None:
        """Double the buckets: a bucket's keys go to two new ones, and so find room without searching."""
        buckets, values, beside = self._buckets, self._values.reshape(-1, _WIDTH), self._beside
        held = self._held
        self._begin(self._bits + 1)
        taken = np.zeros(len(self._buckets), dtype=np.int64)
        for begin in range(0, len(buckets), _AT_ONCE):
            for column in range(_WIDTH):
                keys = buckets[begin : begin + _AT_ONCE, column]
                there = np.flatnonzero(keys)
                keys = keys[there]
                rows = self._rows(keys)
                places = rows * _WIDTH + taken[rows]
                taken[rows] += 1
                self._keys[places] = keys
                self._values[places] = values[begin : begin + _AT_ONCE, column][there]
        self._held, self._beside = held, {}
        self._put(
            np.fromiter(beside, dtype=np.uint64, count=len(beside)),
            np.fromiter(beside.values(), dtype=np.int32, count=len(beside)),
        )


def _usable(keys: Keys) -> Keys:
    """Return the keys without the one that means a free place."""
    return keys if keys.all() else np.where(keys == _FREE, _STEP, keys)
