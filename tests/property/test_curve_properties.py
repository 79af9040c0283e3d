"""The curve of one pass equals a replay of each capacity, and policies equal their plain definitions."""

from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.cache.curve import capacity_curve
from kvscope.cache.policies import hit_blocks
from kvscope.cache.pool import BlockPool
from kvscope.cache.traces import BlockTrace, TraceBuilder

# prompts as walks through a small tree: the ids of blocks name their prefixes
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=30)


def prefixes(prompt: list[int]) -> list[int]:
    made = []
    node = 0
    for step in prompt:
        node = node * 3 + step + 1
        made.append(node)
    return made


def built(prompts: list[list[int]], block_size: int = 4) -> BlockTrace:
    builder = TraceBuilder(block_size)
    for prompt in prompts:
        builder.add(prefixes(prompt), prompt_tokens=len(prompt) * block_size)
    return builder.build()[0]


@given(PROMPTS)
def test_the_curve_equals_a_plain_cache_at_each_capacity(prompts: list[list[int]]) -> None:
    trace = built(prompts)
    curve = capacity_curve(trace)
    for capacity in range(curve.smallest, trace.distinct + 2):
        cache: OrderedDict[int, None] = OrderedDict()
        hits = []
        for prompt in map(prefixes, prompts):
            found = 0
            while found < len(prompt) and prompt[found] in cache:
                found += 1
            hits.append(found)
            for block in reversed(prompt):
                cache[block] = None
                cache.move_to_end(block)
            while len(cache) > capacity:
                cache.popitem(last=False)
        assert curve.hits(capacity)[0] == sum(hits)
        assert hit_blocks(trace, "lru", capacity).tolist() == hits


@given(PROMPTS, st.lists(st.booleans(), min_size=30, max_size=30))
@settings(max_examples=60)
def test_the_curve_equals_the_engines_pool_at_each_capacity(
    prompts: list[list[int]], partial: list[bool]
) -> None:
    """Prompts end with a partial block, or with a full one of their own."""
    block_size = 4
    builder = TraceBuilder(block_size)
    requests = []
    for number, (prompt, ends) in enumerate(zip(prompts, partial, strict=False)):
        chain = prefixes(prompt) if ends else [*prefixes(prompt), 1 << 40 | number]
        tokens = len(chain) * block_size + ends
        requests.append((chain, tokens))
        builder.add(chain, prompt_tokens=tokens, lookup_blocks=(tokens - 1) // block_size, uncached=int(ends))
    trace, _ = builder.build()
    curve = capacity_curve(trace, reserved=1)
    assert curve.exact
    for capacity in range(max(curve.smallest, 2), trace.distinct + 4):
        pool = BlockPool(block_size, capacity)
        hits = 0
        for number, (chain, tokens) in enumerate(requests):
            found = pool.admit(str(number), chain, tokens)
            assert found is not None
            hits += found // block_size
            pool.finish(str(number))
        assert curve.hits(capacity)[0] == hits


@given(PROMPTS)
def test_no_policy_beats_the_ceilings(prompts: list[list[int]]) -> None:
    trace = built(prompts)
    infinite = hit_blocks(trace, "infinite", None).sum()
    for capacity in {max(trace.largest, 1), max(trace.distinct // 2, trace.largest)}:
        optimal = hit_blocks(trace, "optimal", capacity).sum()
        assert optimal <= infinite
        for policy in ("lru", "lfu", "fifo"):
            assert hit_blocks(trace, policy, capacity).sum() <= optimal
