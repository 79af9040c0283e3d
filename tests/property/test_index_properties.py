"""The index against plain dicts: whatever the events, in whatever batches, both know the same blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvscope.cache.event_chains import FIRST_PLACE, Place
from kvscope.cache.hashing import block_chain
from kvscope.cache.index import BlockIndex, Presence
from kvscope.cache.table import NOWHERE, BucketTable
from kvscope.model.telemetry import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent, CacheEventBatch

PLACES = (FIRST_PLACE, Place(medium="CPU"), Place(group=1))
_NUMBERS = range(6)


def _chain_id(number: int) -> int:
    return block_chain([number, number], 2)[0]


def _stored(number: int, place: Place) -> BlockStored:
    return BlockStored(
        block_hashes=(number,), parent_block_hash=None, token_ids=(number, number), block_size=2,
        medium=place.medium, group_idx=place.group,
    )  # fmt: skip


def _removed(number: int, place: Place) -> BlockRemoved:
    return BlockRemoved(block_hashes=(number,), medium=place.medium, group_idx=place.group)


some_events = st.lists(
    st.builds(_stored, st.sampled_from(_NUMBERS), st.sampled_from(PLACES))
    | st.builds(_removed, st.sampled_from(_NUMBERS), st.sampled_from(PLACES))
    | st.builds(AllBlocksCleared),
    max_size=12,
)


def _follow(copies: dict[tuple[int, Place], int], event: CacheEvent) -> None:
    if isinstance(event, AllBlocksCleared):
        copies.clear()
        return
    block = int(event.block_hashes[0]), Place(event.group_idx or 0, event.medium or "GPU")
    change = 1 if isinstance(event, BlockStored) else -1
    copies[block] = max(copies.get(block, 0) + change, 0)


@given(st.lists(some_events, max_size=6))
def test_copies_are_those_that_counting_gives(batches: list[list[CacheEvent]]) -> None:
    index = BlockIndex()
    copies: dict[tuple[int, Place], int] = {}
    for sequence, events in enumerate(batches):
        index.apply(
            CacheEventBatch(
                engine="e", replica="0", sequence=sequence, at=float(sequence), events=tuple(events)
            )
        )
        for event in events:
            _follow(copies, event)
        for number in _NUMBERS:
            for place in PLACES:
                expected = copies.get((number, place), 0)
                times = index.times(_chain_id(number), place)
                assert (times.copies if times else 0) == expected
                presence = index.presence(_chain_id(number), float(sequence), place)
                assert (presence is Presence.CACHED) == (expected > 0)
        assert len(index) == sum(number > 0 for number in copies.values())


@given(
    st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 200), max_size=40)), max_size=20),
    st.integers(1, 2**63).map(lambda odd: odd * 2 + 1),
)
def test_the_table_is_a_dict(steps: list[tuple[bool, set[int]]], spread: int) -> None:
    table, plain = BucketTable(), dict[int, int]()
    for putting, some in steps:
        keys = np.array([key * spread % 2**64 for key in sorted(some)], dtype=np.uint64)
        found = table.find(keys)
        assert found.tolist() == [plain.get(key, NOWHERE) for key in keys.tolist()]
        if putting:
            new = keys[found == NOWHERE]
            table.add(new, np.arange(len(new), dtype=np.int32))
            plain |= zip(new.tolist(), range(len(new)), strict=True)
        else:
            assert table.pop(keys).tolist() == [plain.pop(key, NOWHERE) for key in keys.tolist()]
        assert len(table) == len(plain)
        assert sorted(table.values().tolist()) == sorted(plain.values())
        assert all(table.get(key) == number for key, number in plain.items())
    even = [key for key, number in plain.items() if number % 2 == 0]
    assert sorted(table.discard_where(lambda numbers: numbers % 2 == 0).tolist()) == sorted(
        key or 0x9E37_79B9_7F4A_7C15 for key in even
    )
    assert len(table) == len(plain) - len(even)


def test_keys_of_one_bucket_lie_beside_it_and_are_found() -> None:
    table = BucketTable()
    step = pow(0x9E37_79B9_7F4A_7C15, -1, 2**64)  # undoes the spreading: these keys begin with equal bits
    keys = np.array([number * step % 2**64 for number in range(1, 21)], dtype=np.uint64)
    for begin in range(0, 20, 4):
        table.add(keys[begin : begin + 4], np.arange(begin, begin + 4, dtype=np.int32))
    assert table.find(keys).tolist() == list(range(20))
    assert [table.get(int(key)) for key in keys] == list(range(20))
    assert table.pop(keys[::2]).tolist() == list(range(0, 20, 2))
    assert table.find(keys).tolist() == [number if number % 2 else NOWHERE for number in range(20)]
    table.add(keys[::2], np.arange(0, 20, 2, dtype=np.int32))
    more = np.arange(1, 500, dtype=np.uint64) << np.uint64(20)
    table.add(more, np.arange(1_000, 1_499, dtype=np.int32))  # it grows, and what lay beside moves along
    assert table.find(keys).tolist() == list(range(20))
    assert sorted(table.discard_where(lambda numbers: numbers < 20).tolist()) == sorted(keys.tolist())
    assert len(table) == len(more)
