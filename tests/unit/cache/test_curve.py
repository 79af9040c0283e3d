"""Stack distances and the curve on a trace small enough to count by hand."""

import pytest

from kvscope.cache.curve import capacity_curve, reuse
from kvscope.cache.traces import BlockTrace, TraceBuilder
from kvscope.errors import UsageError


def trace(*prompts: list[int], block_size: int = 4) -> BlockTrace:
    builder = TraceBuilder(block_size)
    for prompt in prompts:
        builder.add(prompt, prompt_tokens=len(prompt) * block_size)
    return builder.build()[0]


def runs(made: BlockTrace) -> list[tuple[int, int, int, int]]:
    """The runs as request, position, blocks, and how many blocks are younger."""
    found = reuse(made)
    columns = (found.request, found.position, found.length, found.younger)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_runs_count_younger_blocks_head_first() -> None:
    made = trace([1, 2, 3], [7, 8], [1, 2, 9], [7, 8])
    # before the third: 7, 8, 1, 2, 3 from young to old; before the fourth: 1, 2, 9, 7, 8, 3
    assert runs(made) == [(2, 0, 2, 2), (3, 0, 2, 3)]


def test_a_prompt_whose_parts_were_used_last_by_different_requests() -> None:
    made = trace([1, 2, 3, 4], [1, 2], [1], [1, 2, 3, 4])
    assert runs(made) == [(1, 0, 2, 0), (2, 0, 1, 0), (3, 0, 1, 0), (3, 1, 1, 1), (3, 2, 2, 2)]


def test_stretches_of_one_earlier_request_are_one_run() -> None:
    made = trace([1, 2], [3], [1, 2, 4, 5], [3], [1, 2, 4, 5])
    assert made.blocks.tolist() == [0, 1, 2, 0, 1, 3, 4, 2, 0, 1, 3, 4]
    assert runs(made) == [(2, 0, 2, 1), (3, 0, 1, 4), (4, 0, 4, 1)]


def test_the_curve_gives_hits_for_every_capacity() -> None:
    curve = capacity_curve(trace([1, 2, 3], [7, 8], [1, 2, 9], [7, 8]))
    assert [curve.hits(blocks) for blocks in (3, 4, 5, 100)] == [(1, 4), (3, 12), (4, 16), (4, 16)]
    assert curve.exact
    assert [point.blocks for point in curve.points()] == [3, 4, 5, 6]
    assert curve.points()[-1].block_hit_rate == 4 / 10
    with pytest.raises(UsageError, match="needs 3 blocks; 2 do not hold it"):
        curve.hits(2)


def test_reserved_blocks_hold_nothing() -> None:
    curve = capacity_curve(trace([1, 2, 3], [7, 8], [1, 2, 9], [7, 8]), reserved=1)
    assert curve.smallest == 4
    assert [curve.hits(blocks)[0] for blocks in (4, 5, 6)] == [1, 3, 4]


def test_a_partial_last_block_counts_its_tokens() -> None:
    builder = TraceBuilder(4)
    builder.add([1, 2], prompt_tokens=6)
    builder.add([1, 2], prompt_tokens=6)
    curve = capacity_curve(builder.build()[0])
    assert curve.hits(2) == (2, 6)
    assert curve.point(2).hit_rate == 0.5


def test_what_is_computed_twice_makes_the_curve_an_estimate() -> None:
    builder = TraceBuilder(4)
    builder.add([1, 2], prompt_tokens=8)
    builder.add([1, 2], prompt_tokens=8, lookup_blocks=1)
    curve = capacity_curve(builder.build()[0])
    assert not curve.exact
    assert curve.hits(10) == (1, 4)


def test_no_request() -> None:
    curve = capacity_curve(TraceBuilder(4).build()[0])
    assert [(point.blocks, point.hit_rate) for point in curve.points()] == [(1, None)]


def test_requests_are_put_in_order_of_time_and_scopes_kept_apart() -> None:
    builder = TraceBuilder(4)
    builder.add([5, 6], prompt_tokens=8, at=2.0, scope="a")
    builder.add([5, 7], prompt_tokens=8, at=1.0)
    builder.add([5], prompt_tokens=4, at=1.0, scope="a")
    made, order = builder.build()
    assert order.tolist() == [1, 2, 0]
    assert made.prompt_tokens.tolist() == [8, 4, 8]
    assert made.distinct == 4
    first, second, again = made.blocks[0], made.blocks[2], made.blocks[3]
    assert first != second
    assert second == again


@pytest.mark.parametrize("far", [0, 1 << 63])
def test_ids_that_are_no_prefixes_are_chained(far: int) -> None:
    made = trace([far + 1, far + 2], [far + 3, far + 2], [far + 1, far + 2])
    assert made.rechained
    assert made.distinct == 4
    assert runs(made) == [(2, 0, 2, 2)]
    assert not trace([far + 1, far + 2], [far + 1, far + 2, far + 3]).rechained
    assert trace([far + 1, far + 1]).rechained


def test_block_sizes_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match="at least one token"):
        TraceBuilder(0)
