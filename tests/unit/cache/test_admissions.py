"""The order in which an engine let requests in, from its KV-cache events."""

from collections.abc import Callable, Sequence
from typing import Any

from kvscope.cache.admissions import admissions
from kvscope.cache.overlap import TimedRequest, replay_overlapping
from kvscope.cache.replay import ReplayRequest
from kvscope.model.telemetry import BlockStored, CacheEventBatch


def sent(name: str, tokens: Sequence[int], at: float, finished_at: float) -> TimedRequest:
    return TimedRequest(request=ReplayRequest(request_id=name, tokens=tokens), at=at, finished_at=finished_at)


def stored(at: float, hashes: list[int], tokens: Sequence[int], parent: int | None = None) -> CacheEventBatch:
    event = BlockStored(
        block_hashes=tuple(hashes), parent_block_hash=parent, token_ids=tuple(tokens), block_size=4
    )
    return CacheEventBatch(engine="e", replica="0", sequence=int(at * 10), at=at, events=(event,))


def names(requests: Sequence[TimedRequest]) -> list[str]:
    return [each.request.request_id for each in requests]


FIRST, SECOND = [*range(8), 50, 51, 52, 53, 1], [*range(8), 60, 61, 62, 63, 1]


def test_the_one_that_stored_what_both_begin_with_came_first() -> None:
    requests = [sent("sent first", FIRST, 1.0, 2.0), sent("sent second", SECOND, 1.001, 2.0)]
    events = [
        stored(1.1, [1, 2, 13], SECOND[:12]),  # all of the second one
        stored(1.2, [23], FIRST[8:12], parent=2),  # the first one found two blocks
    ]
    found = admissions(requests, events, 4)
    assert names(found.requests) == ["sent second", "sent first"]
    assert (found.told, [each.at for each in found.requests]) == (2, [1.001, 1.001])
    hits = replay_overlapping(found.requests, block_size=4).per_request
    assert [(each.request_id, each.hit_tokens) for each in hits] == [("sent second", 0), ("sent first", 8)]


def test_a_prompt_in_parts_and_generated_tokens_are_of_the_request_that_began() -> None:
    long = sent("long", list(range(20)), 1.0, 5.0)
    later = sent("later", [*range(20), 7, 7, 7, 7, 9], 6.0, 7.0)
    events = [
        stored(1.1, [1, 2], range(8)),
        stored(1.2, [3, 4, 5], range(8, 20), parent=2),
        stored(6.1, [6], [7, 7, 7, 7], parent=5),
    ]
    found = admissions([later, long], events, 4)
    assert (names(found.requests), found.told) == (["long", "later"], 2)


def test_one_that_no_event_tells_of_stands_behind_what_it_found() -> None:
    whole = sent("whole", FIRST, 1.0, 3.0)
    known = sent("known", FIRST[:9], 0.999, 2.0)  # all its full blocks are of the other
    other = sent("other", range(100, 109), 1.5, 3.0)
    events = [
        stored(1.1, [1, 2, 13], FIRST[:12]),
        stored(1.6, [31, 32], range(100, 108)),
    ]
    found = admissions([known, whole, other], events, 4)
    assert (names(found.requests), found.told) == (["whole", "known", "other"], 2)
    without = admissions([other, known, whole], [], 4)
    assert (names(without.requests), without.told) == (["known", "whole", "other"], 0)


def test_four_clients_on_a_real_server(
    recorded_rows: Callable[[str], list[dict[str, Any]]],
    recorded_events: Callable[[str], list[CacheEventBatch]],
) -> None:
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
    found = admissions(requests, recorded_events("vllm-0.32.0-concurrent-4"), 32)
    assert found.told == 148  # the prompts of the others were in the cache but for their last tokens
    result = replay_overlapping(found.requests, block_size=32, num_blocks=300)
    assert [each for each in result.per_request if each.hit_tokens != each.recorded_cached_tokens] == []
