"""Tiers and routing on traces that can be counted by hand, and wrong sizes and names."""

import pytest

from kvscope.cache.routing import routed
from kvscope.cache.tiers import tier_hits
from kvscope.cache.traces import BlockTrace, TraceBuilder
from kvscope.errors import UsageError


def trace(*prompts: list[int]) -> BlockTrace:
    builder = TraceBuilder(1)
    for prompt in prompts:
        builder.add(prompt, prompt_tokens=len(prompt))
    return builder.build()[0]


def test_what_moves_between_the_tiers() -> None:
    ones = trace([1], [2], [1], [3], [2])
    exclusive = tier_hits(ones, 1, 1, "exclusive")  # 1 goes down, comes up and 2 goes down, 1 pushes 2 out
    assert (exclusive.upper.tolist(), exclusive.lower.tolist()) == ([0] * 5, [0, 0, 1, 0, 0])
    assert (exclusive.loaded, exclusive.stored) == (1, 4)
    inclusive = tier_hits(ones, 1, 2, "inclusive")  # below: 1; 1 2; 2 1; 1 3; 3 2
    assert (inclusive.upper.tolist(), inclusive.lower.tolist()) == ([0] * 5, [0, 0, 1, 0, 0])
    assert (inclusive.loaded, inclusive.stored) == (1, 4)


def test_three_ways_to_route_two_conversations() -> None:
    turns = trace([1], [2], [2, 3], [1, 4], [1, 4, 5], [2, 3, 6])
    assert routed(turns, 2, None, "round_robin").hits.tolist() == [0, 0, 0, 0, 1, 1]
    assert routed(turns, 2, None, "session").hits.tolist() == [0, 0, 1, 1, 2, 2]
    assert routed(turns, 2, None, "prefix").hits.tolist() == [0, 0, 1, 1, 2, 2]
    by_name = routed(turns, 2, None, "session", sessions=[0, 0, 0, 0, 0, 0])
    assert (by_name.hits.tolist(), by_name.imbalance) == ([0, 0, 1, 1, 2, 2], 2.0)


def test_wrong_names_and_sizes() -> None:
    ones = trace([1, 2])
    with pytest.raises(UsageError, match="no rule 'both' between tiers; known are inclusive, exclusive"):
        tier_hits(ones, 2, 2, "both")
    with pytest.raises(UsageError, match="needs 2 blocks of the upper tier, which has 1"):
        tier_hits(ones, 1, 2, "exclusive")
    with pytest.raises(UsageError, match="no routing 'random'; known are round_robin, session, prefix"):
        routed(ones, 2, None, "random")
    with pytest.raises(UsageError, match="at least one replica, not 0"):
        routed(ones, 0, None, "prefix")
    with pytest.raises(UsageError, match="a replica has only 1"):
        routed(ones, 2, 1, "prefix")
