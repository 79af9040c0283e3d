"""What one engine has in its prefix cache and what it evicted when, from its KV-cache events.

The engine's own hashes are used to find a block again only; what is kept is the own chain id, so that
prompts can be compared with the cache (see ``cache.hashing``). The same tokens in another group of a hybrid
model, or on another tier, are a block of their own. Facts on events: vLLM 0.23 to 0.32, executed.
"""

import dataclasses
import itertools
import threading
from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np

from kvscope.cache.event_chains import (
    FIRST_PLACE,
    UNKNOWN,
    Place,
    Run,
    as_keys,
    chains,
    distinct,
    runs,
    salt_of,
)
from kvscope.cache.slots import BlockSlots, BlockTimes
from kvscope.cache.table import NOWHERE, BucketTable, Keys, Values
from kvscope.model.telemetry import BlockStored, CacheEventBatch

_MOST_PLACES = 1_024  # ranks times groups times tiers of one engine
_FORGOTTEN_AT_ONCE = 16  # one part in so many of what may be remembered


class Presence(Enum):
    """Where a block was at a point in time, as far as the events tell."""

    NEVER = "never"  # no event names it
    LATER = "later"  # it was first stored after that time
    CACHED = "cached"
    REMOVED = "removed"


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """What one replica has at one place: the engine's hash to the block's slot."""

    slots: BucketTable = dataclasses.field(default_factory=BucketTable)
    more_copies: dict[int, int] = dataclasses.field(default_factory=dict)  # hash -> copies beyond the first

    def lose(self, hashes: Keys) -> tuple[Keys, Keys]:
        """Take one copy of each from those that have further ones; return the other hashes, and these."""
        if not self.more_copies:
            return hashes, hashes[:0]
        several = np.array([one in self.more_copies for one in hashes.tolist()], dtype=np.bool_)
        for one in hashes[several].tolist():
            self.more_copies[one] -= 1
            if not self.more_copies[one]:
                del self.more_copies[one]
        return hashes[~several], hashes[several]


class BlockIndex:
    """The cache of one engine, all its replicas together; safe to call from several threads.

    Remembers at most ``max_blocks`` blocks, and as many of the engine's hashes, at 110 to 160 bytes each.
    Those that were evicted first are forgotten first; should what is cached alone be more, the blocks that
    were not used for longest are dropped, counted in ``dropped_blocks``, and the index becomes ``partial``.
    """

    def __init__(self, max_blocks: int = 2_000_000) -> None:
        self._max_blocks = max_blocks
        self._slots = BlockSlots()
        self._by_chain = BucketTable()
        self._known: dict[tuple[str, Place], _Known] = {}
        self._cached = 0
        self._sequences: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._partial: set[str] = set()  # replicas of which not all is known
        self.unknown_blocks = 0
        self.dropped_blocks = 0
        self.block_size: int | None = None
        self.loras: set[str] = set()
        self.kinds: dict[int, str] = {}  # group -> kind of its layers, told since vLLM 0.22

    def __len__(self) -> int:
        """Return the number of blocks that are cached now, at all places."""
        return self._cached

    @property
    def partial(self) -> bool:
        """Whether blocks may have been stored or removed without the index knowing."""
        return bool(self._partial)

    def hashes(self) -> Mapping[Place, int]:
        """Return how many of the engine's hashes are cached at each place, by all replicas together."""
        with self._lock:
            found: dict[Place, int] = {}
            for (_, place), known in self._known.items():
                found[place] = found.get(place, 0) + len(known.slots)
            return found

    def apply(self, batch: CacheEventBatch) -> bool:
        """Take over a batch; False for one that was seen before.

        A first batch that is not number 0, and a gap in the numbers, make the index ``partial``: blocks may
        be cached or gone without its knowing, until the engine clears its cache. A number that goes back
        with a later time is a new engine process, as is a negative number, which stands for one.
        """
        with self._lock:
            if not self._follows(batch):
                return False
            for run in runs(batch.events):
                if run.cleared:
                    self._clear(batch.replica, batch.at)
                else:
                    self._take_over(batch.replica, batch.at, run)
            self._forget()
            return True

    def presence(self, chain_id: int, at: float, place: Place = FIRST_PLACE) -> Presence:
        """Return where the block was at time ``at``; of its comings and goings the latest two are known."""
        with self._lock:
            slot, slots = self._slot(chain_id, place), self._slots
            if slot == NOWHERE:
                return Presence.NEVER
            if slots.first[slot] > at:
                return Presence.LATER
            came, went = slots.stored[slot], slots.gone[slot]
            if at < came:
                came, went = slots.stored_before[slot], slots.gone_before[slot]
            return Presence.CACHED if came <= at < went else Presence.REMOVED

    def times(self, chain_id: int, place: Place = FIRST_PLACE) -> BlockTimes | None:
        """Return when the block came, was last used and went, or None where no event names it."""
        with self._lock:
            slot = self._slot(chain_id, place)
            return None if slot == NOWHERE else self._slots.times(slot)

    def used(self, chain: Sequence[int], at: float) -> None:
        """Note that the blocks of ``chain`` were hit at ``at``: no event tells of a hit."""
        with self._lock:
            slots = self._by_chain.find(np.array(chain, dtype=np.uint64))
            self._slots.use(slots[slots != NOWHERE], at)

    def _slot(self, chain_id: int, place: Place) -> int:
        return self._by_chain.get(chain_id ^ salt_of(place))

    def _follows(self, batch: CacheEventBatch) -> bool:
        replica, sequence = batch.replica, batch.sequence
        known = self._sequences.get(replica)
        if sequence < 0 or (known is not None and sequence <= known[0] and batch.at > known[1]):
            self._clear(replica, batch.at)
            known = None
        if known is not None and sequence <= known[0]:
            return False
        if sequence > (0 if known is None else known[0] + 1):
            self._partial.add(replica)
        self._sequences[replica] = (sequence, batch.at)
        return True

    def _take_over(self, replica: str, at: float, run: Run) -> None:
        # a parent may be removed in the step in which its child is stored, so parents come first
        parents = self._parents(replica, run)
        for place, removed in run.removed.items():
            if (known := self._known.get((replica, place))) is not None:
                hashes = as_keys(removed)
                for some, _ in distinct(hashes, hashes):
                    self._remove(known, some, at)
        for place, stored in run.stored.items():
            known = self._known.get((replica, place))
            if known is None:
                if len(self._known) == _MOST_PLACES:
                    self._partial.add(replica)
                    continue
                known = self._known[replica, place] = _Known()
            self._describe(place, stored)
            hashes = as_keys(list(itertools.chain.from_iterable(event.block_hashes for event in stored)))
            chain = chains(stored, parents)
            if place != FIRST_PLACE:
                chain = self._by_hash(replica, hashes, chain)
            told = chain != UNKNOWN
            if not told.all():
                self.unknown_blocks += int((~told).sum())
                hashes, chain = hashes[told], chain[told]
            for some, keys in distinct(hashes, chain ^ np.uint64(salt_of(place))):
                self._store(known, some, keys, at)

    def _parents(self, replica: str, run: Run) -> dict[int | bytes, int]:
        """Return the chain ids of the parents that are cached before ``run``."""
        found: dict[int | bytes, int] = {}
        for place, stored in run.stored.items():
            parents = [event.parent_block_hash for event in stored if event.parent_block_hash is not None]
            if parents:
                chain = self._chain_at(replica, place, as_keys(parents))
                if place != FIRST_PLACE:
                    chain = self._by_hash(replica, as_keys(parents), chain)
                found |= {one: of for one, of in zip(parents, chain.tolist(), strict=True) if of != UNKNOWN}
        return found

    def _chain_at(self, replica: str, place: Place, hashes: Keys) -> Keys:
        """Return the chain ids of the engine's hashes at ``place``, ``UNKNOWN`` where there is none."""
        known = self._known.get((replica, place))
        if known is None:
            return np.full(len(hashes), UNKNOWN, dtype=np.uint64)
        slots = known.slots.find(hashes)
        chain = self._slots.key[slots] ^ np.uint64(salt_of(place))
        chain[slots == NOWHERE] = UNKNOWN
        return chain

    def _by_hash(self, replica: str, hashes: Keys, chain: Keys) -> Keys:
        """Return ``chain``, completed from the first place: the same hash means the same tokens there.

        An offloading tier tells hashes alone; of layers with a window not which blocks were skipped.
        """
        return np.where(chain == UNKNOWN, self._chain_at(replica, FIRST_PLACE, hashes), chain)

    def _describe(self, place: Place, stored: Sequence[BlockStored]) -> None:
        for event in stored:
            if event.lora_name is not None:
                self.loras.add(event.lora_name)
            if event.kv_cache_spec_kind is not None:
                self.kinds[place.group] = event.kv_cache_spec_kind
            # where hits may end inside a block, parts of blocks are stored too (0.26)
            if place == FIRST_PLACE and event.block_size > (self.block_size or 0):
                self.block_size = event.block_size

    def _store(self, known: _Known, hashes: Keys, keys: Keys, at: float) -> None:
        slots = self._given(keys, at)
        before = known.slots.find(hashes)
        new = before == NOWHERE
        if new.all():
            known.slots.add(hashes, slots)
        else:
            other = ~new & (before != slots)
            if other.any():  # the hash's removal went unheard
                self._lose_all(known, hashes[other], at)
                new |= other
            known.slots.add(hashes[new], slots[new])
            for one in hashes[~new].tolist():
                known.more_copies[one] = known.more_copies.get(one, 0) + 1
        self._cached += self._slots.come(slots, at)

    def _given(self, keys: Keys, at: float) -> Values:
        """Return the slots of blocks that differ, with new ones for those that come for the first time."""
        slots = self._by_chain.find(keys)
        missing = slots == NOWHERE
        if missing.any():
            new = keys[missing]
            given = self._slots.give(new, at)
            self._by_chain.add(new, given)
            slots[missing] = given
        return slots

    def _remove(self, known: _Known, hashes: Keys, at: float) -> None:
        last, several = known.lose(hashes)
        slots = known.slots.pop(last)
        slots = np.concatenate([slots[slots != NOWHERE], known.slots.find(several)])
        self._cached -= self._slots.go(slots, at)

    def _lose_all(self, known: _Known, hashes: Keys, at: float) -> None:
        while len(hashes):
            self._remove(known, hashes, at)
            hashes = hashes[known.slots.find(hashes) != NOWHERE]

    def _clear(self, replica: str, at: float) -> None:
        self._partial.discard(replica)
        for key, known in list(self._known.items()):
            if key[0] == replica:
                more = np.fromiter(known.more_copies, dtype=np.uint64, count=len(known.more_copies))
                self._lose_all(known, more, at)
                self._cached -= self._slots.go(known.slots.values(), at)
                del self._known[key]

    def _forget(self) -> None:
        # where removals go unheard, in lost batches, hashes pile up
        while (
            over := max(len(self._slots), sum(len(known.slots) for known in self._known.values()))
            - self._max_blocks
        ) > 0:
            most = max(over, self._max_blocks // _FORGOTTEN_AT_ONCE)
            evicted = len(self._slots) > max(self._max_blocks, self._cached)
            slots = self._slots.oldest(most, evicted=evicted)
            if not evicted:
                self._drop(slots)
            self._by_chain.pop(self._slots.key[slots])
            self._slots.take_back(slots)

    def _drop(self, slots: Values) -> None:
        """Let go of blocks that are cached: more is cached than may be remembered, and this stays so."""
        self._partial.add("")
        self._cached -= len(slots)
        self.dropped_blocks += len(slots)
        gone = self._slots.marked(slots)
        for known in self._known.values():
            for one in known.slots.discard_where(gone).tolist():
                known.more_copies.pop(one, None)
