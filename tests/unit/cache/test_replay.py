"""The block pool's model gives each request of real servers exactly the hits that the servers reported."""

from collections import Counter
from typing import Any

import pytest

from kvscope.cache.event_chains import chains
from kvscope.cache.replay import ReplayRequest, computed_chain, recorded_requests, replay
from kvscope.errors import UsageError
from kvscope.model.telemetry import BlockRemoved, BlockStored

RECORDINGS = pytest.mark.parametrize(
    ("name", "uncached_first", "sums"),
    [
        ("vllm-0.32.0-sequential", True, (160, 101_894, 45_728, 1_409)),
        ("vllm-0.23.0-sequential", False, (120, 74_732, 34_688, 949)),
    ],
)


@RECORDINGS
def test_every_request_hits_what_the_server_reported(
    replay_requests: Any, name: str, uncached_first: bool, sums: tuple[int, ...]
) -> None:
    result = replay(replay_requests(name), block_size=32, num_blocks=300, uncached_first=uncached_first)
    assert [r.request_id for r in result.per_request if r.hit_tokens != r.recorded_cached_tokens] == []
    assert (result.requests, result.queried_tokens, result.hit_tokens, result.evictions) == sums
    assert result.exact
    assert result.hit_rate == pytest.approx(sums[2] / sums[1])


@RECORDINGS
def test_evicted_blocks_are_the_servers_in_its_order(
    replay_requests: Any, recorded_events: Any, name: str, uncached_first: bool, sums: tuple[int, ...]
) -> None:
    evicted: list[int] = []
    replay(
        replay_requests(name),
        block_size=32,
        num_blocks=300,
        uncached_first=uncached_first,
        on_evict=evicted.append,
    )
    removed: list[int] = []
    known: dict[int | bytes, int] = {}  # the server's hash -> own chain id
    for batch in recorded_events(name):
        for event in batch.events:
            if isinstance(event, BlockRemoved):
                removed += [known[block_hash] for block_hash in event.block_hashes]
            if isinstance(event, BlockStored):
                known.update(zip(event.block_hashes, map(int, chains([event], known)), strict=True))
    assert len(removed) == sums[3]
    assert evicted == removed


def test_the_null_block_and_the_order_matter(replay_requests: Any) -> None:
    requests = replay_requests("vllm-0.32.0-sequential")
    assert replay(requests, block_size=32, num_blocks=301).evictions != 1_409
    other_order = replay(requests, block_size=32, num_blocks=300, uncached_first=False)
    assert other_order.evictions == 1_426


def test_without_limit_nothing_is_evicted(replay_requests: Any) -> None:
    limited = replay(replay_requests("vllm-0.32.0-sequential"), block_size=32, num_blocks=300)
    unlimited = replay(replay_requests("vllm-0.32.0-sequential"), block_size=32)
    assert unlimited.evictions == 0
    assert all(
        most.hit_tokens >= some.hit_tokens
        for most, some in zip(unlimited.per_request, limited.per_request, strict=True)
    )


def test_three_prompts_with_shared_prefixes() -> None:
    first = list(range(7_000))
    second = first[:2_000] + list(range(50_000, 53_000))
    third = first + list(range(60_000, 60_150))
    result = replay(
        [ReplayRequest(request_id=str(at), tokens=t) for at, t in enumerate((first, second, third))],
        block_size=1,
    )
    assert result.queried_tokens == 19_150
    assert result.queried_tokens - result.hit_tokens == 10_150


def test_only_the_number_of_generated_tokens_is_known() -> None:
    prompt = list(range(40))
    turns = [
        ReplayRequest(request_id="a", tokens=prompt, output_tokens=30),
        ReplayRequest(request_id="b", tokens=[*prompt, *range(900, 940)]),
    ]
    result = replay(turns, block_size=16)
    assert [r.hit_tokens for r in result.per_request] == [0, 32]
    assert not result.exact
    assert result.block_hit_rate == pytest.approx(2 / (3 + 5))


def test_generated_tokens_are_cached_but_for_the_last() -> None:
    prompt, answer = list(range(10)), list(range(100, 107))  # 16 computed, of 17
    again = [*prompt, *answer, 1, 2, 3]
    requests = [
        ReplayRequest(request_id="a", tokens=prompt, output_tokens=answer),
        ReplayRequest(request_id="b", tokens=again),
    ]
    assert [r.hit_tokens for r in replay(requests, block_size=8).per_request] == [0, 16]
    assert len(computed_chain(requests[0], 8)) == 2


def test_salt_and_lora_isolate_and_no_lookup_is_not_queried() -> None:
    prompt = list(range(64))
    requests = [
        ReplayRequest(request_id="plain", tokens=prompt),
        ReplayRequest(request_id="salt", tokens=prompt, salt="a"),
        ReplayRequest(request_id="other salt", tokens=prompt, salt="b"),
        ReplayRequest(request_id="lora", tokens=prompt, lora="a"),
        ReplayRequest(request_id="salt again", tokens=prompt, salt="a"),
        ReplayRequest(request_id="no lookup", tokens=prompt, lookup=False),
    ]
    result = replay(requests, block_size=16)
    assert Counter({r.request_id: r.hit_tokens for r in result.per_request}) == Counter({"salt again": 48})
    assert result.queried_tokens == 5 * 64


def test_nothing_to_replay() -> None:
    result = replay([], block_size=16, num_blocks=10)
    assert (result.requests, result.hit_rate, result.block_hit_rate) == (0, None, None)


@pytest.mark.parametrize(("block_size", "num_blocks"), [(0, 10), (-1, None), (16, 1), (16, 0)])
def test_sizes_that_no_engine_has(block_size: Any, num_blocks: Any) -> None:
    with pytest.raises(UsageError, match="at least"):
        replay([], block_size=block_size, num_blocks=num_blocks)


def test_a_prompt_larger_than_the_pool() -> None:
    with pytest.raises(UsageError, match="'big' needs 4 blocks of 16 tokens, but the pool has only 3"):
        replay([ReplayRequest(request_id="big", tokens=range(60))], block_size=16, num_blocks=4)


def test_rows_of_a_recording() -> None:
    row = {
        "request_id": "b",
        "sent_at": 2.0,
        "prompt_token_ids": [1],
        "output_token_ids": [2],
        "body": {"cache_salt": "s"},
        "usage": {"prompt_tokens_details": {"cached_tokens": 0}},
    }
    earlier = row | {"request_id": "a", "sent_at": 1.0, "usage": {"prompt_tokens_details": None}}
    first, second = recorded_requests([row, earlier])
    assert (first.request_id, first.recorded_cached_tokens) == ("a", None)
    assert (second.request_id, second.recorded_cached_tokens, second.salt) == ("b", 0, "s")
    with pytest.raises(UsageError, match="row 2"):
        recorded_requests([row, {"request_id": "c"}])
