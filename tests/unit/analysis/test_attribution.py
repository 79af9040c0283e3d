"""Causes of misses, case by case, with numbers worked out by hand. Blocks hold 16 tokens."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from kvscope.analysis.attribution import (
    Attribution,
    PromptFacts,
    attribute,
    attribute_counts,
    attribute_disabled,
)
from kvscope.analysis.ledger import Arrival, Ledger
from kvscope.analysis.reasons import Progress, Times, reasons, seen_blocks
from kvscope.cache.index import BlockIndex
from kvscope.model.request import MissCause
from kvscope.model.telemetry import BlockRemoved, BlockStored, CacheEvent, CacheEventBatch
from kvscope.prompts.segments import Segment

STABLE = list(range(1_000, 1_200))  # 200 tokens that all prompts of the route share


class Engine:
    """Feeds prompts to a ledger, a second apart, each computed half a second after it came."""

    def __init__(self, index: BlockIndex | None = None) -> None:
        self.ledger = Ledger()
        self.progress = Progress()
        self.index = index
        self.now = 0.0
        self.facts: list[PromptFacts] = []

    def send(self, tokens: Sequence[int], cached: int, **more: Any) -> Attribution:
        self.now += 1.0
        facts = self.arrive(tokens, **more)
        self.progress.computed(facts.serial, self.now + 0.5)
        return self.causes(facts, cached)

    def arrive(self, tokens: Sequence[int], text: str = "", **more: Any) -> PromptFacts:
        given: dict[str, Any] = {"engine": "http://a", "route": "r", "block_size": 16} | more
        segments = (Segment(role="system", message_index=0, text=text),) if text else ()
        facts = self.ledger.arrive(Arrival(tokens=tokens, segments=segments, **given))
        self.progress.begin(facts.serial)
        return facts

    def causes(self, facts: PromptFacts, cached: int) -> Attribution:
        times = Times(arrived_at=self.now, admitted_at=self.now, first_token_at=self.now + 0.5)
        return attribute(
            "id",
            facts,
            cached_tokens=cached,
            seen_blocks=seen_blocks(facts, self.index, self.now),
            why=reasons(facts, times, self.progress, self.index),
        )


def stored(tokens: Sequence[int]) -> BlockStored:
    """All full blocks of ``tokens``, hashed 0, 1, 2, ... by the engine."""
    blocks = len(tokens) // 16
    return BlockStored(
        block_hashes=tuple(range(blocks)),
        parent_block_hash=None,
        token_ids=tuple(tokens[: blocks * 16]),
        block_size=16,
    )


def index_of(*events: tuple[float, CacheEvent]) -> BlockIndex:
    index = BlockIndex()
    for sequence, (at, event) in enumerate(events):
        index.apply(CacheEventBatch(engine="a", replica="0", sequence=sequence, at=at, events=(event,)))
    return index


def test_the_first_request_is_cold() -> None:
    found = Engine().send(STABLE, 0)
    assert found.causes == {"cold": 192, "granularity": 8}
    assert [(miss.cause, miss.tokens, miss.role) for miss in found.misses] == [
        (MissCause.COLD, 192, None),
        (MissCause.GRANULARITY, 8, None),
    ]


def test_the_last_token_is_always_computed() -> None:
    engine = Engine()
    engine.send(STABLE[:192], 0)
    assert engine.send(STABLE[:192], 176).causes == {"granularity": 16}
    assert engine.send(STABLE[:193], 192).causes == {"granularity": 1}


def test_a_prompt_shorter_than_a_block() -> None:
    engine = Engine()
    assert engine.send([1, 2, 3], 0).causes == {"granularity": 3}
    assert engine.send([1], 0).causes == {"granularity": 1}


def test_all_cached_leaves_nothing() -> None:
    engine = Engine()
    engine.send(STABLE, 0)
    assert engine.send(STABLE, 200).causes == {}


def test_a_timestamp_in_the_first_line_makes_what_follows_diverge() -> None:
    engine = Engine()
    first = [1, 2, 3, 10, 11, 12, 13, *STABLE]
    text = "Time: 2026-11-29 17:31:05\nYou help."
    engine.send(first, 0, text=text)
    second = [1, 2, 3, 10, 99, 98, 13, *STABLE]
    found = engine.send(second, 0, text="Time: 2026-11-29 18:02:44\nYou help.")
    # of 207 tokens 192 could hit; the first 4 are equal, 2 differ, and all from the 7th on are known runs
    assert found.causes == {"granularity": 4 + 15, "cold": 2, "diverged": 186}
    diverged = next(miss for miss in found.misses if miss.cause is MissCause.DIVERGED)
    assert (diverged.role, diverged.message_index, diverged.value_kind) == ("system", 0, "timestamp")
    assert (diverged.char_start, diverged.char_end) == (6, 25)


def test_new_text_after_a_known_beginning() -> None:
    engine = Engine()
    engine.send([*STABLE, *range(5_000, 5_040)], 0)
    found = engine.send([*STABLE, *range(6_000, 6_040)], 192)
    # 8 shared tokens in the block that breaks; 240 tokens: 224 could hit at most
    assert found.causes == {"granularity": 8 + 16, "cold": 24}


def test_an_appended_turn_is_cold() -> None:
    engine = Engine()
    engine.send(STABLE, 0)
    found = engine.send([*STABLE, *range(6_000, 6_040)], 192)
    assert found.causes == {"granularity": 8 + 16, "cold": 24}


def test_moved_text_of_another_route_does_not_count() -> None:
    engine = Engine()
    engine.send(STABLE, 0)
    assert engine.send([7, *STABLE], 0, route="s").causes == {"cold": 192, "granularity": 9}


def test_nearest_prompt_of_another_route_still_tells_the_difference() -> None:
    engine = Engine()
    engine.send([*STABLE[:24], *range(5_000, 5_024)], 0)
    found = engine.send([*STABLE[:24], *range(6_000, 6_024)], 16, route="s")
    assert found.causes == {"granularity": 8 + 16, "cold": 8}


@pytest.mark.parametrize(
    "index",
    [None, index_of((1.4, stored(STABLE)), (1.6, BlockRemoved(block_hashes=tuple(range(11, 3, -1)))))],
    ids=["without events", "with events"],
)
def test_computed_before_and_gone_is_evicted(index: BlockIndex | None) -> None:
    engine = Engine(index)
    engine.send(STABLE, 0)
    assert engine.send(STABLE, 64).causes == {"evicted": 128, "granularity": 8}


def test_out_of_reach_behind_an_evicted_block_is_evicted_too() -> None:
    engine = Engine(index_of((1.4, stored(STABLE)), (1.6, BlockRemoved(block_hashes=(5,)))))
    engine.send(STABLE, 0)
    assert engine.send(STABLE, 80).causes == {"evicted": 112, "granularity": 8}


def test_events_that_show_the_block_in_the_cache_leave_it_unknown() -> None:
    index = index_of((1.4, stored(STABLE)))
    engine = Engine(index)
    engine.send(STABLE, 0)
    assert engine.send(STABLE, 176).causes == {"unknown": 16, "granularity": 8}
    index.apply(CacheEventBatch(engine="a", replica="0", sequence=9, at=2.1, events=()))
    assert index.partial  # a gap: it may have missed the removal
    assert engine.send(STABLE, 176).causes == {"evicted": 16, "granularity": 8}


def test_generated_tokens_that_were_evicted_are_known_from_events() -> None:
    computed = [*STABLE[:176], *range(7_000, 7_040)]
    engine = Engine(index_of((1.4, stored(computed)), (1.9, BlockRemoved(block_hashes=(12, 11)))))
    engine.send(STABLE[:176], 0)
    # 256 tokens: 240 could hit; blocks 11 and 12 hold generated ones, block 13 the rest of them
    found = engine.send([*computed, *range(8_000, 8_040)], 176)
    assert found.causes == {"evicted": 32, "cold": 32, "granularity": 16}


@pytest.mark.parametrize(
    "index", [None, index_of((10.6, stored(STABLE)))], ids=["without events", "with events"]
)
def test_twice_at_once_is_in_flight(index: BlockIndex | None) -> None:
    engine = Engine(index)
    engine.now = 10.0
    first = engine.arrive(STABLE)
    second = engine.arrive(STABLE)
    engine.progress.computed(first.serial, 10.5)
    assert engine.causes(second, 0).causes == {"in_flight": 192, "granularity": 8}


def test_another_salt_lora_or_engine_is_isolated() -> None:
    engine = Engine()
    engine.send(STABLE, 0)
    for other in ({"salt": "tenant"}, {"lora": "adapter"}, {"engine": "http://b"}):
        assert engine.send(STABLE, 0, **other).causes == {"isolated": 192, "granularity": 8}
    assert engine.send(STABLE, 192, salt="tenant").causes == {"granularity": 8}
    assert engine.send([*STABLE[:100], *range(40)], 96).causes == {"granularity": 4 + 12, "cold": 28}


def test_forgotten_when_never_computed() -> None:
    engine = Engine()
    facts = engine.arrive(STABLE)
    engine.ledger.forget(facts, "http://a")
    assert engine.send(STABLE, 0).causes == {"cold": 192, "granularity": 8}


def test_without_tokens_only_arithmetic() -> None:
    assert attribute_counts("id", 100, 32, 16).causes == {"granularity": 4, "unknown": 64}
    assert attribute_counts("id", 100, 32, None).causes == {"unknown": 68}
    assert attribute_counts("id", 100, 100, 16).causes == {}
    assert attribute_counts("id", 100, 99, 16).causes == {"granularity": 1}
    assert attribute_disabled("id", 100, 0).causes == {"disabled": 100}
    facts = dataclasses.replace(Engine().arrive(STABLE), block_size=None, chain=(), first_serials=())
    found = attribute("id", facts, cached_tokens=0, seen_blocks=0, why=lambda _block: None)
    assert found.causes == {"unknown": 200}


@pytest.mark.parametrize(("prompt", "cached"), [(10, 11), (10, -1)])
def test_counts_that_cannot_be(prompt: Any, cached: Any) -> None:
    with pytest.raises(ValueError, match="cannot be cached"):
        attribute_counts("id", prompt, cached, 16)
