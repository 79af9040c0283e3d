"""Policies on traces that can be counted by hand."""

import pytest

from kvscope.cache.policies import POLICIES, hit_blocks
from kvscope.cache.traces import BlockTrace, TraceBuilder
from kvscope.errors import UsageError


def trace(*prompts: list[int]) -> BlockTrace:
    builder = TraceBuilder(1)
    for prompt in prompts:
        builder.add(prompt, prompt_tokens=len(prompt))
    return builder.build()[0]


ONES = ([1], [2], [1], [3], [2], [1], [1])


@pytest.mark.parametrize(
    ("policy", "hits"),
    [
        # two blocks: after 1, 2, 1 comes 3
        ("lru", [0, 0, 1, 0, 0, 0, 1]),  # 2 goes, then 1
        ("lfu", [0, 0, 1, 0, 0, 1, 1]),  # 2 goes, then 3; 1 was used twice
        ("fifo", [0, 0, 1, 0, 1, 0, 1]),  # 1 goes
        ("size", [0, 0, 1, 0, 0, 0, 1]),  # requests of one block each: as lru
        ("priority", [0, 0, 1, 0, 0, 1, 1]),  # 2 goes, then 3; 1 was found again
        ("optimal", [0, 0, 1, 0, 1, 1, 1]),  # 3, never used again, goes at once
        ("infinite", [0, 0, 1, 0, 1, 1, 1]),
    ],
)
def test_what_each_policy_gives_up(policy: str, hits: list[int]) -> None:
    assert hit_blocks(trace(*ONES), policy, 2).tolist() == hits


def test_a_prefix_that_is_broken_hits_nothing_behind() -> None:
    made = trace([1, 2, 3], [1, 2, 3])
    assert hit_blocks(made, "fifo", 3).tolist() == [0, 3]
    builder = TraceBuilder(1)
    builder.add([1, 2, 3], prompt_tokens=3)
    builder.add([1, 2, 3], prompt_tokens=3, lookup_blocks=2)
    for policy in POLICIES:
        assert hit_blocks(builder.build()[0], policy, 3).tolist() == [0, 2]


def test_without_limit_all_policies_are_one() -> None:
    assert {tuple(hit_blocks(trace(*ONES), policy, None).tolist()) for policy in POLICIES} == {
        (0, 0, 1, 0, 1, 1, 1)
    }


def test_wrong_names_and_sizes() -> None:
    with pytest.raises(UsageError, match="no policy 'arc'; known are lru, lfu"):
        hit_blocks(trace([1]), "arc", 2)
    with pytest.raises(UsageError, match="needs 3 blocks of 1 tokens, but the cache has only 2"):
        hit_blocks(trace([1, 2, 3]), "lru", 2)
