"""The index follows an engine's cache by its events."""

from typing import Any

import pytest

from kvscope.cache.hashing import block_chain, root_of
from kvscope.cache.index import BlockIndex, Presence
from kvscope.model.telemetry import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent, CacheEventBatch


def batch(sequence: int, at: float, *events: CacheEvent, replica: str = "0") -> CacheEventBatch:
    return CacheEventBatch(engine="e", replica=replica, sequence=sequence, at=at, events=events)


def stored(hashes: list[int], tokens: range, parent: int | None = None, **more: Any) -> BlockStored:
    return BlockStored(
        block_hashes=tuple(hashes), parent_block_hash=parent, token_ids=tuple(tokens), block_size=4, **more
    )


CHAIN = block_chain(range(12), 4)


def test_blocks_come_and_go() -> None:
    index = BlockIndex()
    index.apply(batch(0, 10.0, stored([101, 102], range(8))))
    index.apply(batch(1, 11.0, stored([103], range(8, 12), parent=102)))
    assert [index.presence(block, 9.0) for block in CHAIN] == [Presence.LATER] * 3
    assert [index.presence(block, 10.0) for block in CHAIN] == [Presence.CACHED] * 2 + [Presence.LATER]
    index.apply(batch(2, 20.0, BlockRemoved(block_hashes=(103,))))
    assert index.presence(CHAIN[2], 19.0) is Presence.CACHED
    assert index.presence(CHAIN[2], 20.0) is Presence.REMOVED
    index.apply(batch(3, 30.0, stored([103], range(8, 12), parent=102)))
    assert index.presence(CHAIN[2], 25.0) is Presence.REMOVED
    assert index.presence(CHAIN[2], 19.0) is Presence.CACHED
    assert index.presence(CHAIN[2], 30.0) is Presence.CACHED
    index.apply(batch(4, 40.0, BlockRemoved(block_hashes=(103,))))
    assert index.presence(CHAIN[2], 25.0) is Presence.REMOVED
    assert index.presence(CHAIN[2], 40.0) is Presence.REMOVED
    assert index.presence(CHAIN[2], 35.0) is Presence.CACHED
    assert index.presence(12345, 40.0) is Presence.NEVER
    assert len(index) == 2
    assert (index.block_size, index.partial, index.unknown_blocks) == (4, False, 0)


def test_the_latest_turns_are_kept() -> None:
    index = BlockIndex()
    for turn in range(50):
        index.apply(batch(2 * turn, 2.0 * turn, stored([101], range(4))))
        index.apply(batch(2 * turn + 1, 2.0 * turn + 1, BlockRemoved(block_hashes=(101,))))
    for at in range(90, 100):
        expected = Presence.REMOVED if at % 2 else Presence.CACHED
        assert index.presence(CHAIN[0], at + 0.5) is expected
    assert index.presence(CHAIN[0], -1.0) is Presence.LATER
    assert len(index._blocks[CHAIN[0]].turns) <= 16


def test_copies_are_counted() -> None:
    index = BlockIndex()
    index.apply(batch(0, 1.0, stored([101], range(4)), stored([101], range(4))))
    index.apply(batch(1, 2.0, BlockRemoved(block_hashes=(101,))))
    assert index.presence(CHAIN[0], 3.0) is Presence.CACHED
    index.apply(batch(2, 4.0, BlockRemoved(block_hashes=(101,)), BlockRemoved(block_hashes=(999,))))
    assert index.presence(CHAIN[0], 4.0) is Presence.REMOVED
    assert len(index) == 0


def test_salt_lora_and_images_are_other_chains() -> None:
    index = BlockIndex()
    index.apply(
        batch(
            0,
            1.0,
            stored([1], range(4), extra_keys=(("s",),)),
            stored([2], range(4), lora_name="l", extra_keys=(("l",),)),
            stored([3], range(4), lora_name="l", extra_keys=(("l", "s"),)),
            stored([4, 5], range(8), extra_keys=((("image", 2),), None)),
        )
    )
    for root in (root_of("s"), root_of(lora="l"), root_of("s", "l")):
        assert index.presence(block_chain(range(4), 4, root)[0], 1.0) is Presence.CACHED
    assert index.presence(CHAIN[0], 1.0) is Presence.NEVER
    assert index.presence(CHAIN[1], 1.0) is Presence.NEVER
    assert len(index) == 5


def test_late_join_knows_that_it_knows_only_a_part() -> None:
    index = BlockIndex()
    index.apply(batch(7, 1.0, stored([9], range(4), parent=8)))
    assert index.partial
    assert index.unknown_blocks == 1
    index.apply(batch(8, 2.0, stored([101], range(4))))
    assert index.presence(CHAIN[0], 2.0) is Presence.CACHED


def test_gaps_repeats_and_restarts() -> None:
    index = BlockIndex()
    first = batch(0, 1.0, stored([101], range(4)))
    assert index.apply(first)
    assert not index.apply(first)
    assert not index.partial
    index.apply(batch(1, 2.0))
    assert index.apply(batch(0, 3.0, stored([55], range(50, 54))))  # a new process with an empty cache
    assert not index.partial
    assert index.presence(CHAIN[0], 3.0) is Presence.REMOVED
    assert len(index) == 1
    index.apply(batch(5, 4.0))
    assert index.partial
    index.apply(batch(6, 5.0, AllBlocksCleared()))
    assert not index.partial
    index.apply(batch(9, 6.0))
    assert index.partial
    assert index.apply(batch(-1, 7.0, AllBlocksCleared()))  # how the subscriber tells of a restart
    assert index.apply(batch(0, 6.5, stored([55], range(50, 54))))
    assert not index.partial
    assert len(index) == 1


def test_replicas_are_cleared_apart() -> None:
    index = BlockIndex()
    index.apply(batch(0, 1.0, stored([101], range(4))))
    index.apply(batch(0, 1.0, stored([101], range(4)), replica="1"))
    index.apply(batch(1, 2.0, AllBlocksCleared(), replica="1"))
    assert index.presence(CHAIN[0], 2.0) is Presence.CACHED
    index.apply(batch(1, 3.0, AllBlocksCleared()))
    assert index.presence(CHAIN[0], 3.0) is Presence.REMOVED


def test_other_media_and_groups_do_not_count() -> None:
    index = BlockIndex()
    index.apply(
        batch(
            0,
            1.0,
            stored([101], range(4), medium="GPU"),
            stored([101], range(4), medium="CPU"),
            stored([101], range(4), group_idx=1),
            stored([101], range(4), medium="GPU", locality="REMOTE"),
            stored([101], range(4), medium="CPU_PINNED"),
            BlockRemoved(block_hashes=(101,), medium="CPU"),
            BlockRemoved(block_hashes=(101,), group_idx=1),
            stored([77], range(2)),  # fewer tokens than a block: not understood
        )
    )
    assert index.presence(CHAIN[0], 1.0) is Presence.CACHED
    assert len(index) == 1
    assert index.unknown_blocks == 1


@pytest.mark.parametrize("removed", [True, False])
def test_memory_is_bounded(removed: Any) -> None:
    index = BlockIndex(max_blocks=10)
    for at in range(100):
        index.apply(batch(2 * at, at, stored([at], range(4 * at, 4 * at + 4))))
        events = (BlockRemoved(block_hashes=(at,)),) if removed else ()
        index.apply(batch(2 * at + 1, at + 0.5, *events))
    assert len(index._blocks) == 10
    assert len(index._by_hash) <= 10
    assert index.partial is not removed


def test_hashes_whose_removal_went_unheard_do_not_pile_up() -> None:
    index = BlockIndex(max_blocks=10)
    for at in range(100):  # one and the same block under ever new hashes
        index.apply(batch(at, at, stored([at], range(4))))
    assert len(index._by_hash) <= 10
    assert index.partial


def test_recorded_events_leave_what_the_engine_has(recorded_events: Any) -> None:
    index = BlockIndex()
    for recorded in recorded_events("vllm-0.32.0-sequential"):
        assert index.apply(recorded)
    assert sum(copies for _, copies in index._by_hash.values()) == 1_707 - 1_409
    assert index.unknown_blocks == 0
    assert not index.partial
    assert index.block_size == 32
