"""Cache events as vectors: what may be applied together, the engine's hashes, the own chain ids."""

import dataclasses
import functools
import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kvscope.cache.hashing import block_chain, block_hashes, chained, root_of
from kvscope.cache.table import Keys
from kvscope.model.telemetry import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent

DEVICE = "GPU"
"""The tier that requests compute from; CPU builds too call their own memory so."""
UNKNOWN = 0
"""Stands for the chain id of a block whose parent or tokens are not known."""
_LOW = 0xFFFF_FFFF_FFFF_FFFF
_HASH_BYTES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A group of layers on a tier; ``remote`` is a peer's memory, since vLLM 0.26."""

    group: int = 0
    medium: str = DEVICE
    remote: bool = False


FIRST_PLACE = Place()
"""Where requests look first; the further groups of a hybrid model hold the same tokens again."""


@functools.lru_cache(maxsize=4_096)
def place_of(group: int | None, medium: str | None, locality: str | None) -> Place:
    """Return the place that an event names."""
    return Place(group or 0, medium or DEVICE, locality == "REMOTE")


@functools.lru_cache(maxsize=4_096)
def salt_of(place: Place) -> int:
    """Return what tells the place's blocks from those of the same tokens elsewhere."""
    if place == FIRST_PLACE:
        return 0
    text = repr((place.group, place.medium, place.remote))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).digest(), "little")


@dataclasses.dataclass(slots=True)
class Run:
    """Events that may be applied in any order, all removals first; or a clearing of everything."""

    stored: dict[Place, list[BlockStored]] = dataclasses.field(default_factory=dict)
    removed: dict[Place, list[int | bytes]] = dataclasses.field(default_factory=dict)
    cleared: bool = False


def runs(events: Sequence[CacheEvent]) -> Iterator[Run]:
    """Split events where all blocks are cleared, and where one is removed that was stored just before."""
    split = _removes_its_own(events)
    stored: set[int | bytes] = set()
    run = Run()
    for event in events:
        if isinstance(event, AllBlocksCleared):
            yield run
            yield Run(cleared=True)
            run = Run()
            stored.clear()
            continue
        place = place_of(event.group_idx, event.medium, event.locality)
        if isinstance(event, BlockStored):
            run.stored.setdefault(place, []).append(event)
            if split:
                stored.update(event.block_hashes)
            continue
        if split and not stored.isdisjoint(event.block_hashes):
            yield run
            run = Run()
            stored.clear()
        run.removed.setdefault(place, []).extend(event.block_hashes)
    yield run


def _removes_its_own(events: Sequence[CacheEvent]) -> bool:
    removed: set[int | bytes] = set()
    for event in events:
        if isinstance(event, BlockRemoved):
            removed.update(event.block_hashes)
    return bool(removed) and any(
        not removed.isdisjoint(event.block_hashes) for event in events if isinstance(event, BlockStored)
    )


def as_keys(hashes: Sequence[int | bytes]) -> Keys:
    """Return the low 64 bits of each hash, as vLLM itself shortens them; SGLang's are signed."""
    try:
        return np.frombuffer(array("Q", hashes), dtype=np.uint64)  # type: ignore[type-var]
    except (TypeError, OverflowError):
        low = (int.from_bytes(one[-_HASH_BYTES:]) if isinstance(one, bytes) else one for one in hashes)
        return np.array([one & _LOW for one in low], dtype=np.uint64)


def distinct(hashes: Keys, keys: Keys) -> Iterator[tuple[Keys, Keys]]:
    """Yield the pairs in so many portions that nothing is twice in one of them: nearly always it is one."""
    while len(hashes):
        seen, seen_keys, again = set[int](), set[int](), list[int]()
        ones = hashes.tolist()
        others = ones if keys is hashes else keys.tolist()
        if len(set(ones)) == len(ones) and (others is ones or len(set(others)) == len(others)):
            yield hashes, keys
            return
        for at, (one, other) in enumerate(zip(ones, others, strict=True)):
            if one in seen or other in seen_keys:
                again.append(at)
            seen.add(one)
            seen_keys.add(other)
        first = np.ones(len(ones), dtype=np.bool_)
        first[again] = False
        yield hashes[first], keys[first]
        hashes, keys = hashes[~first], keys[~first]


def chains(stored: Sequence[BlockStored], parents: Mapping[int | bytes, int]) -> Keys:
    """Return the chain id of each block of each event in turn, ``UNKNOWN`` where it cannot be told.

    ``parents`` are the chain ids of the events' parents, as far as the index knows them; an event may also
    hang under one before it.
    """
    hashes = _hashes_by_event(stored)
    within: dict[int | bytes, int] = {}
    nested = any(
        event.parent_block_hash not in parents for event in stored if event.parent_block_hash is not None
    )
    found: list[int] = []
    for event, blocks in zip(stored, hashes, strict=True):
        root = _root(event, within, parents)
        if blocks is None or root == UNKNOWN:
            found += [UNKNOWN] * len(event.block_hashes)
            continue
        chain = chained(blocks, root or 0) if not event.extra_keys else _chain(event, root or 0)
        if nested:
            within.update(zip(event.block_hashes, chain, strict=True))
        found += chain
    return as_keys(found)


def _root(
    event: BlockStored, within: Mapping[int | bytes, int], parents: Mapping[int | bytes, int]
) -> int | None:
    """Return the chain id under which the event's blocks hang, ``UNKNOWN``, or None for the bare root."""
    parent = event.parent_block_hash
    if parent is None:
        return root_of(salt=_salt(event), lora=event.lora_name) or None
    return within.get(parent) or parents.get(parent, UNKNOWN)


def _hashes_by_event(stored: Sequence[BlockStored]) -> list[list[int] | None]:
    """Return the own hashes of each event's blocks, or None where its tokens are not those of its blocks.

    An offloading tier tells no tokens; where layers with a window skip blocks, which ones is not told.
    The tokens of all events of one block size are hashed at once: of one event's they are few.
    """
    tokens: dict[int, list[int]] = {}
    whole = []
    for event in stored:
        blocks, size = len(event.block_hashes), event.block_size
        whole.append(len(event.token_ids) // size == blocks)
        if whole[-1]:
            tokens.setdefault(size, []).extend(event.token_ids[: blocks * size])
    hashed = {
        size: block_hashes(np.frombuffer(array("Q", of_size), dtype=np.uint64), size)
        for size, of_size in tokens.items()
    }
    found: list[list[int] | None] = []
    places = dict.fromkeys(tokens, 0)
    for event, usable in zip(stored, whole, strict=True):
        if not usable:
            found.append(None)
            continue
        begin, size = places[event.block_size], event.block_size
        places[size] = end = begin + len(event.block_hashes)
        found.append(hashed[size][begin:end])
    return found


def _chain(event: BlockStored, root: int) -> list[int]:
    """Return the chain ids of an event with further keys: an image gives a block another id."""
    keys = [_further_keys(event, at) for at in range(len(event.block_hashes))]
    tokens = event.token_ids[: len(keys) * event.block_size]
    if not any(keys):
        return block_chain(tokens, event.block_size, root)
    chain: list[int] = []
    for at, further in enumerate(keys):
        if further:
            digest = hashlib.blake2b(repr((root, further)).encode(), digest_size=_HASH_BYTES).digest()
            root = int.from_bytes(digest, "little")
        root = block_chain(tokens[at * event.block_size :][: event.block_size], event.block_size, root)[0]
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
