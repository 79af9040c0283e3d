"""Tiers, routing and policies against what must be equal whatever the traffic is."""

import itertools
from collections import OrderedDict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvscope.cache.policies import POLICIES, hit_blocks
from kvscope.cache.routing import MOST_LOAD, ROUTINGS, conversations, routed
from kvscope.cache.tiers import tier_hits
from kvscope.cache.traces import BlockTrace, TraceBuilder

# prompts as walks through a small tree: the ids of blocks name their prefixes
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40)
BLOCK_SIZE = 4


def built(prompts: list[list[int]]) -> BlockTrace:
    builder = TraceBuilder(BLOCK_SIZE)
    for prompt in prompts:
        ids = itertools.accumulate(prompt, lambda node, step: node * 3 + step + 1, initial=0)
        builder.add(list(ids)[1:], prompt_tokens=len(prompt) * BLOCK_SIZE)
    return builder.build()[0]


@given(PROMPTS, st.integers(6, 20), st.integers(0, 20))
def test_exclusive_tiers_are_one_cache_of_both_sizes(
    prompts: list[list[int]], upper: int, lower: int
) -> None:
    trace = built(prompts)
    hits = tier_hits(trace, upper, lower, "exclusive")
    assert (hits.upper + hits.lower).tolist() == hit_blocks(trace, "lru", upper + lower).tolist()
    assert hits.upper.tolist() == hit_blocks(trace, "lru", upper).tolist()


@given(PROMPTS, st.integers(6, 20), st.integers(0, 20))
def test_inclusive_tiers_are_one_cache_of_the_larger_size(
    prompts: list[list[int]], upper: int, lower: int
) -> None:
    trace = built(prompts)
    hits = tier_hits(trace, upper, lower, "inclusive")
    assert (hits.upper + hits.lower).tolist() == hit_blocks(trace, "lru", max(upper, lower)).tolist()
    assert hits.loaded == hits.lower.sum()


@given(PROMPTS, st.integers(6, 20), st.integers(1, 4))
def test_each_replica_is_a_cache_of_what_it_was_sent(
    prompts: list[list[int]], blocks: int, replicas: int
) -> None:
    trace = built(prompts)
    numbers = conversations(trace)
    for routing, sent_to in (
        ("round_robin", [number % replicas for number in range(len(prompts))]),
        ("session", [number % replicas for number in numbers]),
    ):
        result = routed(trace, replicas, blocks, routing)
        for replica in range(replicas):
            mine = [place for place, to in enumerate(sent_to) if to == replica]
            alone = built([prompts[place] for place in mine])
            assert result.hits[mine].tolist() == hit_blocks(alone, "lru", blocks).tolist()
    for routing in ROUTINGS:
        alone_hits = routed(trace, 1, blocks, routing).hits
        assert alone_hits.tolist() == hit_blocks(trace, "lru", blocks).tolist()


@given(PROMPTS, st.integers(2, 4))
def test_routing_by_prefix_keeps_the_load_bounded(prompts: list[list[int]], replicas: int) -> None:
    trace = built(prompts)
    result = routed(trace, replicas, None, "prefix")
    most = MOST_LOAD * trace.queried_tokens / replicas + int(trace.prompt_tokens.max())
    assert result.tokens.sum() == trace.queried_tokens
    assert result.tokens.max() <= most
    assert 1 <= result.imbalance <= replicas


@given(PROMPTS, st.integers(6, 20))
def test_no_policy_finds_more_than_there_is(prompts: list[list[int]], blocks: int) -> None:
    trace = built(prompts)
    ceiling = hit_blocks(trace, "infinite", None)
    for policy in POLICIES:
        assert (hit_blocks(trace, policy, blocks) <= ceiling).all()


@given(PROMPTS, st.integers(6, 20))
def test_greedy_dual_size_by_its_definition(prompts: list[list[int]], capacity: int) -> None:
    trace = built(prompts)
    worth: OrderedDict[int, float] = OrderedDict()  # in order of use
    age, hits = 0.0, []
    for start, end in itertools.pairwise(trace.starts.tolist()):
        mine = trace.blocks[start:end].tolist()
        hits.append(len(list(itertools.takewhile(worth.__contains__, mine))))
        for block in reversed(mine):
            worth.pop(block, None)
            worth[block] = age + 1 / len(mine)
            if len(worth) > capacity:
                lowest = min(worth, key=lambda each: worth[each])
                age = worth.pop(lowest)
    assert hit_blocks(trace, "size", capacity).tolist() == hits


def test_a_conversation_goes_on_where_a_prompt_ended() -> None:
    builder = TraceBuilder(2)
    builder.add([1, 2], prompt_tokens=4)  # one conversation
    builder.add([1, 3], prompt_tokens=3)  # another, with a partial block at its end
    builder.add([1, 2, 4], prompt_tokens=6)  # goes on with the first
    builder.add([1, 6], prompt_tokens=4)  # goes on with the second
    builder.add([1, 5], prompt_tokens=4)  # shares its beginning only: a third
    builder.add([1, 2, 4], prompt_tokens=6)  # the first again
    assert conversations(builder.build()[0]) == [0, 1, 0, 1, 2, 0]
    assert np.array_equal(routed(builder.build()[0], 2, None, "session").hits, [0, 0, 2, 1, 1, 3])
