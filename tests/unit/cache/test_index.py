"""The index follows an engine's cache by its events."""

from collections import Counter
from typing import Any

import pytest

from kvscope.cache.event_chains import Place
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


def test_the_latest_two_turns_are_kept() -> None:
    index = BlockIndex()
    for turn in range(50):
        index.apply(batch(2 * turn, 2.0 * turn, stored([101], range(4))))
        index.apply(batch(2 * turn + 1, 2.0 * turn + 1, BlockRemoved(block_hashes=(101,))))
    for at in range(96, 100):
        expected = Presence.REMOVED if at % 2 else Presence.CACHED
        assert index.presence(CHAIN[0], at + 0.5) is expected
    assert index.presence(CHAIN[0], -1.0) is Presence.LATER
    assert index.presence(CHAIN[0], 50.0) is Presence.REMOVED  # it was there before, and is not known to be


def test_times_of_a_block() -> None:
    index = BlockIndex()
    index.apply(batch(0, 10.0, stored([101], range(4))))
    index.used([CHAIN[0], 12345], 14.0)
    index.used(CHAIN[:1], 13.0)  # told late
    times = index.times(CHAIN[0])
    assert times is not None
    assert (times.first_stored_at, times.stored_at, times.used_at, times.evicted_at) == (
        10.0,
        10.0,
        14.0,
        None,
    )
    index.apply(batch(1, 20.0, BlockRemoved(block_hashes=(101,))))
    index.apply(batch(2, 30.0, stored([101], range(4)), stored([101], range(4))))
    times = index.times(CHAIN[0])
    assert times is not None
    assert (times.first_stored_at, times.stored_at, times.used_at, times.copies) == (10.0, 30.0, 30.0, 2)
    index.apply(batch(3, 40.0, BlockRemoved(block_hashes=(101,)), BlockRemoved(block_hashes=(101,))))
    times = index.times(CHAIN[0])
    assert times is not None
    assert (times.stored_at, times.evicted_at, times.copies) == (30.0, 40.0, 0)
    assert index.times(12345) is None


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


def test_media_and_groups_are_places_of_their_own() -> None:
    index = BlockIndex()
    index.apply(
        batch(
            0,
            1.0,
            stored([101], range(4), medium="GPU"),
            stored([101], range(4), medium="CPU"),
            stored([101], range(4), group_idx=1, kv_cache_spec_kind="sliding_window"),
            stored([101], range(4), medium="GPU", locality="REMOTE"),
            stored([77], range(2)),  # fewer tokens than a block: not understood
        )
    )
    places = [Place(), Place(medium="CPU"), Place(group=1), Place(remote=True)]
    assert index.hashes() == dict.fromkeys(places, 1)
    assert len(index) == 4
    assert index.unknown_blocks == 1
    assert index.kinds == {1: "sliding_window"}
    index.apply(
        batch(
            1,
            2.0,
            BlockRemoved(block_hashes=(101,), medium="CPU"),
            BlockRemoved(block_hashes=(101,), group_idx=1),
        )
    )
    found = [index.presence(CHAIN[0], 2.0, place) for place in places]
    assert found == [Presence.CACHED, Presence.REMOVED, Presence.REMOVED, Presence.CACHED]


def test_a_tier_that_tells_hashes_alone_holds_the_tokens_of_the_device() -> None:
    index = BlockIndex()
    offloaded = BlockStored(
        block_hashes=(101, 102, 103), parent_block_hash=None, token_ids=(), block_size=4, medium="CPU"
    )
    index.apply(batch(0, 1.0, stored([101, 102], range(8)), offloaded))
    index.apply(batch(1, 2.0, BlockRemoved(block_hashes=(101, 102))))
    cpu = Place(medium="CPU")
    assert [index.presence(block, 2.0, cpu) for block in CHAIN[:2]] == [Presence.CACHED] * 2
    assert [index.presence(block, 2.0) for block in CHAIN[:2]] == [Presence.REMOVED] * 2
    assert index.unknown_blocks == 1  # 103, which nobody knows


def test_one_batch_may_take_out_what_it_put_in() -> None:
    index = BlockIndex()
    index.apply(
        batch(
            0,
            1.0,
            stored([101, 102], range(8)),
            BlockRemoved(block_hashes=(102,)),
            stored([103], range(4, 8), parent=101),  # the same tokens under another hash
            BlockRemoved(block_hashes=(101,)),
            stored([104], range(8, 12), parent=103),
        )
    )
    found = [index.presence(block, 1.0) for block in CHAIN]
    assert found == [Presence.REMOVED, Presence.CACHED, Presence.CACHED]
    assert (len(index), index.unknown_blocks) == (2, 0)


def test_a_hash_that_comes_back_with_other_tokens_has_lost_its_removal() -> None:
    index = BlockIndex()
    index.apply(batch(0, 1.0, stored([101], range(4)), stored([101], range(4))))
    index.apply(batch(1, 2.0, stored([101], range(50, 54))))
    assert index.presence(CHAIN[0], 2.0) is Presence.REMOVED
    assert index.presence(block_chain(range(50, 54), 4)[0], 2.0) is Presence.CACHED
    assert len(index) == 1


@pytest.mark.parametrize("removed", [True, False])
def test_memory_is_bounded(removed: Any) -> None:
    index = BlockIndex(max_blocks=10)
    for at in range(100):
        index.apply(batch(2 * at, at, stored([at], range(4 * at, 4 * at + 4))))
        events = (BlockRemoved(block_hashes=(at,)),) if removed else ()
        index.apply(batch(2 * at + 1, at + 0.5, *events))
    known = [at for at in range(100) if index.times(block_chain(range(4 * at, 4 * at + 4), 4)[0])]
    assert known == list(range(90, 100))
    assert sum(index.hashes().values()) == (0 if removed else 10)
    assert index.partial is not removed
    assert index.dropped_blocks == (0 if removed else 90)


def test_what_was_used_last_is_dropped_last() -> None:
    index = BlockIndex(max_blocks=10)
    for at in range(100):
        index.apply(batch(at, at, stored([at], range(4 * at, 4 * at + 4))))
        index.used(CHAIN[:1], at + 0.5)
    assert index.presence(CHAIN[0], 100.0) is Presence.CACHED
    assert (len(index), index.dropped_blocks, index.partial) == (10, 90, True)


def test_hashes_whose_removal_went_unheard_do_not_pile_up() -> None:
    index = BlockIndex(max_blocks=10)
    for at in range(100):  # one and the same block under ever new hashes
        index.apply(batch(at, at, stored([at], range(4))))
    assert sum(index.hashes().values()) <= 10
    assert index.partial


@pytest.mark.parametrize("version", ["0.32.0", "0.23.0"])
def test_recorded_events_leave_what_the_engine_has(version: str, recorded_events: Any) -> None:
    index = BlockIndex()
    cached: Counter[Any] = Counter()
    for recorded in recorded_events(f"vllm-{version}-sequential"):
        assert index.apply(recorded)
        for event in recorded.events:
            if not isinstance(event, AllBlocksCleared):
                many = 1 if isinstance(event, BlockStored) else -1
                cached.update(dict.fromkeys(event.block_hashes, many))
    assert sum(index.hashes().values()) == len(+cached)
    assert len(+cached) == {"0.32.0": 298, "0.23.0": 271}[version]
    assert index.unknown_blocks == 0
    assert not index.partial
    assert index.block_size == 32
