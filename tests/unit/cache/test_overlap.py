"""Requests that ran at the same time, replayed from their times."""

from collections.abc import Callable
from typing import Any

import pytest

from kvscope.cache.groups import Group
from kvscope.cache.overlap import TimedRequest, overlapping, replay_groups, replay_overlapping
from kvscope.cache.replay import ReplayRequest, replay
from kvscope.errors import UsageError


def timed(name: str, tokens: Any, at: float, finished_at: float | None = None) -> TimedRequest:
    request = ReplayRequest(request_id=name, tokens=list(tokens))
    return TimedRequest(request=request, at=at, finished_at=finished_at)


def test_four_clients_on_a_real_server(recorded_rows: Callable[[str], list[dict[str, Any]]]) -> None:
    requests = [
        TimedRequest(
            request=ReplayRequest(
                request_id=row["request_id"],
                tokens=row["prompt_token_ids"],
                salt=row["body"].get("cache_salt"),
                output_tokens=row["output_token_ids"],
                recorded_cached_tokens=row["cached_tokens"],
            ),
            at=row["sent_at"],
            finished_at=row["done_at"],
        )
        for row in recorded_rows("vllm-0.32.0-concurrent-4")
    ]
    assert overlapping(requests)
    result = replay_overlapping(requests, block_size=32, num_blocks=300)
    assert [each for each in result.per_request if each.hit_tokens != each.recorded_cached_tokens] == []
    assert (result.requests, result.hit_tokens) == (160, 44_256)
    one_by_one = replay([each.request for each in requests], block_size=32, num_blocks=300)
    assert one_by_one.hit_tokens != 44_256


def test_blocks_are_held_until_the_end() -> None:
    first = timed("a", range(32), 0.0, 10.0)
    second = timed("b", range(100, 132), 1.0, 2.0)
    third = timed("c", range(33), 3.0, 4.0)
    result = replay_overlapping([third, first, second], block_size=16, num_blocks=5)
    assert [(each.request_id, each.hit_tokens) for each in result.per_request] == [
        ("a", 0),
        ("b", 0),
        ("c", 32),
    ]


@pytest.mark.parametrize(("at", "hit_tokens"), [(1.0, 4), (7.5, 8)])
def test_generated_tokens_are_found_as_they_come(at: float, hit_tokens: int) -> None:
    """Eleven tokens are computed, four at 0 s and the last at 8 s: ten by 7.5 s, four by 1 s."""
    request = ReplayRequest(request_id="a", tokens=[1, 2, 3, 4], output_tokens=[*range(10, 18)])
    first = TimedRequest(request=request, at=0.0, finished_at=8.0)
    second = timed("b", [1, 2, 3, 4, 10, 11, 12, 13, 99], at)
    for result in (
        replay_overlapping([first, second], block_size=4),
        replay_groups([first, second], [Group(block_size=4)]),
    ):
        assert [each.hit_tokens for each in result.per_request] == [0, hit_tokens]


def test_blocks_before_a_window_are_free_while_a_request_runs() -> None:
    """Of a prompt of 32 tokens a window of 5 needs two blocks of 4 once its first token is computed."""
    request = ReplayRequest(request_id="a", tokens=[*range(32)], output_tokens=[50, 51, 52])
    first = TimedRequest(request=request, at=0.0, finished_at=9.0)
    other = timed("b", range(100, 124), 1.0, 2.0)
    again = timed("a again", range(33), 3.0)
    window = Group(block_size=4, window=5)
    result = replay_groups([first, other, again], [window], num_blocks=10)
    # it waited for nothing; a window is kept before the prompt's last token alone, here before token 28
    assert [each.hit_tokens for each in result.per_request] == [0, 0, 28]
    # in full attention it waits for the first one's end, takes the partial block and five from the last on
    whole = replay_groups([first, other, again], [Group(block_size=4)], num_blocks=10)
    assert [each.hit_tokens for each in whole.per_request] == [0, 0, 12]


def test_one_that_finds_no_blocks_waits_and_an_id_may_come_twice() -> None:
    first = timed("same", range(32), 0.0, 10.0)
    second = timed("same", range(100, 132), 1.0, 20.0)
    result = replay_overlapping([first, second, first], block_size=16, num_blocks=4)
    assert [each.hit_tokens for each in result.per_request] == [0, 16, 0]
    with pytest.raises(UsageError, match="has only 2"):
        replay_overlapping([timed("large", range(48), 0.0)], block_size=16, num_blocks=3)


def test_without_ends_nothing_overlaps() -> None:
    requests = [timed("a", range(32), 0.0), timed("b", range(33), 0.0), timed("c", range(33), 1.0, 3.0)]
    assert not overlapping(requests)
    assert overlapping([*requests, timed("d", range(3), 2.0)])
    result = replay_overlapping(requests, block_size=16)
    assert [each.hit_tokens for each in result.per_request] == [0, 32, 32]
