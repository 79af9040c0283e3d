"""Cached tokens and causes add up to the prompt for every prompt, cached count, block size and history."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.analysis.attribution import attribute, attribute_counts, attribute_disabled
from kvscope.analysis.ledger import Arrival, Ledger
from kvscope.analysis.reasons import Progress, Times, reasons, seen_blocks
from kvscope.cache.index import BlockIndex
from kvscope.cache.pool import BlockPool
from kvscope.model.request import MissCause
from kvscope.model.telemetry import BlockRemoved, BlockStored, CacheEventBatch

PIECES = st.sampled_from(
    [list(range(start, start + length)) for start in (0, 100, 200) for length in (3, 17, 40)]
)
TOKENS = st.lists(PIECES | st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=5).map(
    lambda pieces: [token for piece in pieces for token in piece] or [1]
)
REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "tokens": TOKENS,
            "route": st.sampled_from("ab"),
            "salt": st.sampled_from([None, "s"]),
            "engine": st.sampled_from(["e", "f"]),
            "share": st.floats(0, 1),
            "finished": st.booleans(),
        }
    ),
    max_size=12,
)


def some_events(requests: list[dict[str, Any]], block_size: int) -> BlockIndex:
    index = BlockIndex()
    for at, request in enumerate(requests):
        blocks = len(request["tokens"]) // block_size
        if not blocks:
            continue
        stored = BlockStored(
            block_hashes=tuple(at * 1000 + block for block in range(blocks)),
            parent_block_hash=None,
            token_ids=tuple(request["tokens"][: blocks * block_size]),
            block_size=block_size,
        )
        removed = BlockRemoved(block_hashes=(at * 1000 + blocks - 1,))
        index.apply(
            CacheEventBatch(engine="e", replica="0", sequence=at, at=at + 0.3, events=(stored, removed))
        )
    return index


@settings(max_examples=150, deadline=None)
@given(requests=REQUESTS, block_size=st.sampled_from([None, 1, 4, 16, 1000]), events=st.booleans())
def test_sums_are_exact_whatever_the_engine_says(requests: Any, block_size: Any, events: Any) -> None:
    ledger, progress = Ledger(group_prompts=3), Progress()
    index = some_events(requests, block_size) if events and block_size else None
    for at, request in enumerate(requests):
        prompt = len(request["tokens"])
        cached = int(request["share"] * prompt)
        facts = ledger.arrive(
            Arrival(
                engine=request["engine"],
                route=request["route"],
                tokens=request["tokens"],
                segments=(),
                salt=request["salt"],
                block_size=block_size,
            )
        )
        progress.begin(facts.serial)
        if request["finished"]:
            progress.computed(facts.serial, at + 0.5)
        times = Times(arrived_at=at, admitted_at=at, first_token_at=at + 0.5)
        found = attribute(
            "id",
            facts,
            cached_tokens=cached,
            seen_blocks=seen_blocks(facts, index, at),
            why=reasons(facts, times, progress, index),
        )
        assert cached + sum(found.causes.values()) == prompt
        assert all(tokens > 0 for tokens in found.causes.values())
        assert {miss.cause.value: miss.tokens for miss in found.misses} == found.causes
        assert found.causes.keys() <= set(MissCause)


@given(prompt=st.integers(0, 10_000), share=st.floats(0, 1), block_size=st.none() | st.integers(1, 600))
def test_sums_of_counts_are_exact(prompt: Any, share: Any, block_size: Any) -> None:
    cached = int(share * prompt)
    for found in (
        attribute_counts("id", prompt, cached, block_size),
        attribute_disabled("id", prompt, cached),
    ):
        assert cached + sum(found.causes.values()) == prompt


@settings(max_examples=100, deadline=None)
@given(requests=REQUESTS, num_blocks=st.integers(80, 120))
def test_an_engine_that_behaves_leaves_nothing_unknown_and_misses_only_what_it_may(
    requests: Any, num_blocks: Any
) -> None:
    """Against the pool's model, sequentially: nothing is evicted or unknown before the pool evicts."""
    ledger, progress = Ledger(), Progress()
    pools = {engine: BlockPool(4, num_blocks) for engine in "ef"}
    for at, request in enumerate(requests):
        pool = pools[request["engine"]]
        facts = ledger.arrive(
            Arrival(
                engine=request["engine"],
                route=request["route"],
                tokens=request["tokens"],
                segments=(),
                salt=request["salt"],
                block_size=4,
            )
        )
        progress.begin(facts.serial)
        progress.computed(facts.serial, at + 0.5)
        evicted_before = pool.evictions
        cached = pool.admit(str(at), facts.chain, len(request["tokens"]))
        assert cached is not None
        pool.finish(str(at))
        times = Times(arrived_at=at, admitted_at=at, first_token_at=at + 0.5)
        found = attribute(
            "id",
            facts,
            cached_tokens=cached,
            seen_blocks=facts.seen_blocks,
            why=reasons(facts, times, progress, None),
        )
        allowed = {"cold", "diverged", "granularity", "isolated"} | ({"evicted"} if evicted_before else set())
        assert found.causes.keys() <= allowed
        if not evicted_before:
            assert cached // 4 == min(facts.seen_blocks, (len(request["tokens"]) - 1) // 4)
