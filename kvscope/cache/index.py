"""What one engine has in its prefix cache and what it evicted when, from its KV-cache events.

The engine's own hashes are used to find a block's parent only; what is kept is the own chain id, so that
prompts can be compared with the cache (see ``cache.hashing``). Facts on events: vLLM 0.23 to 0.32, executed.
"""

import bisect
import dataclasses
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from typing import Any

from kvscope.cache.hashing import block_chain, root_of
from kvscope.model.telemetry import AllBlocksCleared, BlockRemoved, BlockStored, CacheEventBatch

_KEPT_TURNS = 16
_DEVICE_MEDIA = (None, "GPU")  # CPU builds too call their own memory "GPU"


class Presence(Enum):
    """Where a block was at a point in time, as far as the events tell."""

    NEVER = "never"  # no event names it
    LATER = "later"  # it was first stored after that time
    CACHED = "cached"
    REMOVED = "removed"


@dataclasses.dataclass(slots=True)
class _Block:
    """One chain id: ``copies`` in the cache now, and the times at which it came and went in turn.

    The times are of the engine's clock and begin with a coming; only the latest ones are kept.
    """

    first_stored_at: float
    turns: list[float]
    copies: int


class BlockIndex:
    """The cache of one engine, all its replicas together; safe to call from several threads.

    Remembers at most ``max_blocks`` blocks, and as many of the engine's hashes. Those that were removed first
    are forgotten first; should what is cached alone be more, the index becomes ``partial``.
    """

    def __init__(self, max_blocks: int = 2_000_000) -> None:
        self._max_blocks = max_blocks
        self._blocks: dict[int, _Block] = {}
        self._removed: OrderedDict[int, None] = OrderedDict()
        # (replica, the engine's hash) -> chain id and number of copies
        self._by_hash: dict[tuple[str, int | bytes], tuple[int, int]] = {}
        self._sequences: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._partial: set[str] = set()  # replicas of which not all is known
        self.unknown_blocks = 0
        self.block_size: int | None = None
        self.loras: set[str] = set()

    def __len__(self) -> int:
        """Return the number of blocks that are cached now."""
        return len(self._blocks) - len(self._removed)

    @property
    def partial(self) -> bool:
        """Whether blocks may have been stored or removed without the index knowing."""
        return bool(self._partial)

    def apply(self, batch: CacheEventBatch) -> bool:
        """Take over a batch; False for one that was seen before.

        A first batch that is not number 0, and a gap in the numbers, make the index ``partial``: blocks may
        be cached or gone without its knowing, until the engine clears its cache. A number that goes back
        with a later time is a new engine process, as is a negative number, which stands for one.
        """
        with self._lock:
            if not self._follows(batch):
                return False
            for event in batch.events:
                match event:
                    case BlockStored():
                        self._store(batch, event)
                    case BlockRemoved():
                        self._remove(batch, event)
                    case AllBlocksCleared():
                        self._clear(batch.replica, batch.at)
            self._forget()
            return True

    def presence(self, chain_id: int, at: float) -> Presence:
        """Return where the block was at time ``at``."""
        with self._lock:
            block = self._blocks.get(chain_id)
            if block is None:
                return Presence.NEVER
            if block.first_stored_at > at:
                return Presence.LATER
            cached = bisect.bisect_right(block.turns, at) % 2
            return Presence.CACHED if cached else Presence.REMOVED

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

    def _store(self, batch: CacheEventBatch, event: BlockStored) -> None:
        if not _counts(event) or not event.block_hashes:
            return
        self.block_size = event.block_size
        if event.lora_name is not None:
            self.loras.add(event.lora_name)
        root = self._root(batch.replica, event)
        if root is None or len(event.token_ids) < len(event.block_hashes) * event.block_size:
            self.unknown_blocks += len(event.block_hashes)
            return
        by_hash, replica, at = self._by_hash, batch.replica, batch.at
        for block_hash, chain_id in zip(event.block_hashes, _chain(event, root), strict=False):
            key = (replica, block_hash)
            known = by_hash.get(key)
            by_hash[key] = (chain_id, 1 if known is None else known[1] + 1)
            self._add(chain_id, at)

    def _root(self, replica: str, event: BlockStored) -> int | None:
        """Return the chain id under which the event's blocks hang, or None where their parent is unknown."""
        if event.parent_block_hash is None:
            return root_of(salt=_salt(event), lora=event.lora_name)
        parent = self._by_hash.get((replica, event.parent_block_hash))
        return None if parent is None else parent[0]

    def _add(self, chain_id: int, at: float) -> None:
        block = self._blocks.get(chain_id)
        if block is None:
            self._blocks[chain_id] = _Block(first_stored_at=at, turns=[at], copies=1)
            return
        if not block.copies:
            block.turns.append(at)
            del block.turns[: max(len(block.turns) + 1 - _KEPT_TURNS, 0) // 2 * 2]
            self._removed.pop(chain_id, None)
        block.copies += 1

    def _remove(self, batch: CacheEventBatch, event: BlockRemoved) -> None:
        if not _counts(event):
            return
        for block_hash in event.block_hashes:
            key = (batch.replica, block_hash)
            known = self._by_hash.pop(key, None)
            if known is None:
                continue
            chain_id, copies = known
            if copies > 1:
                self._by_hash[key] = (chain_id, copies - 1)
            self._take(chain_id, 1, batch.at)

    def _take(self, chain_id: int, copies: int, at: float) -> None:
        block = self._blocks.get(chain_id)
        if block is None:
            return
        block.copies = max(block.copies - copies, 0)
        if not block.copies:
            block.turns.append(at)
            self._removed[chain_id] = None

    def _clear(self, replica: str, at: float) -> None:
        self._partial.discard(replica)
        for key in [key for key in self._by_hash if key[0] == replica]:
            chain_id, copies = self._by_hash.pop(key)
            self._take(chain_id, copies, at)

    def _forget(self) -> None:
        # where removals go unheard, in lost batches, hashes would pile up
        while len(self._by_hash) > self._max_blocks:
            chain_id, _ = self._by_hash.pop(next(iter(self._by_hash)))
            self._partial.add("")
            self._blocks.pop(chain_id, None)
            self._removed.pop(chain_id, None)
        while len(self._blocks) > self._max_blocks:
            if self._removed:
                chain_id, _ = self._removed.popitem(last=False)
            else:
                chain_id = next(iter(self._blocks))
                self._partial.add("")  # this stays: more is cached than may be remembered
            del self._blocks[chain_id]


def _counts(event: BlockStored | BlockRemoved) -> bool:
    """Whether the event is about the cache that requests compute from: no tier below, no peer's.

    Further groups of a hybrid model hold the same tokens again, so the first one tells of all.
    """
    return event.medium in _DEVICE_MEDIA and event.locality != "REMOTE" and not event.group_idx


def _chain(event: BlockStored, root: int) -> Sequence[int]:
    """Return the chain ids of the event's blocks; further keys (an image) give a block another id."""
    if not event.extra_keys:
        return block_chain(event.token_ids, event.block_size, root)
    keys = [_further_keys(event, at) for at in range(len(event.block_hashes))]
    if not any(keys):
        return block_chain(event.token_ids, event.block_size, root)
    chain: list[int] = []
    for at, further in enumerate(keys):
        tokens = event.token_ids[at * event.block_size : (at + 1) * event.block_size]
        if further:
            digest = hashlib.blake2b(repr((root, further)).encode(), digest_size=8).digest()
            root = int.from_bytes(digest, "little")
        root = block_chain(tokens, event.block_size, root)[0]
        chain.append(root)
    return chain


def _further_keys(event: BlockStored, at: int) -> tuple[Any, ...]:
    """Return what the block's hash depends on besides tokens, LoRA and salt."""
    keys = event.extra_keys[at] if event.extra_keys and at < len(event.extra_keys) else None
    return tuple(key for key in keys or () if not isinstance(key, str))


def _salt(event: BlockStored) -> str | None:
    """Return the cache salt: the last text among the first block's keys that is not the LoRA's name."""
    first = event.extra_keys[0] if event.extra_keys else None
    names = [key for key in first or () if isinstance(key, str) and key != event.lora_name]
    return names[-1] if names else None
