"""Recorded runs of real servers: exact sums for each request, causes that fit how prompts were made."""

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from kvscope.analysis.attribution import Attribution, attribute
from kvscope.analysis.ledger import Arrival, Ledger
from kvscope.analysis.reasons import Progress, Times, reasons, seen_blocks
from kvscope.cache.index import BlockIndex
from kvscope.model.telemetry import BlockRemoved, BlockStored, CacheEvent, CacheEventBatch
from kvscope.prompts.segments import segments

DATA = Path(__file__).parents[2] / "data" / "cache"


def rows_of(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def event_of(given: dict[str, Any]) -> CacheEvent:
    if given["type"] == "BlockRemoved":
        return BlockRemoved(block_hashes=tuple(given["block_hashes"]))
    keys = given["extra_keys"]
    return BlockStored(
        block_hashes=tuple(given["block_hashes"]),
        parent_block_hash=given["parent_block_hash"],
        token_ids=tuple(given["token_ids"]),
        block_size=given["block_size"],
        extra_keys=None if keys is None else tuple(tuple(key) if key else None for key in keys),
    )


def index_of(name: str) -> BlockIndex:
    index = BlockIndex()
    for row in rows_of(f"{name}-events"):
        events = tuple(event_of(event) for event in row["events"])
        index.apply(
            CacheEventBatch(engine="e", replica="0", sequence=row["sequence"], at=row["at"], events=events)
        )
    return index


def attributed(name: str, index: BlockIndex | None) -> list[tuple[dict[str, Any], Attribution]]:
    ledger, progress = Ledger(), Progress()
    arrived = []
    for row in sorted(rows_of(name), key=lambda row: float(row["sent_at"])):
        facts = ledger.arrive(
            Arrival(
                engine="e",
                route=row["kind"],
                tokens=row["prompt_token_ids"],
                segments=segments("chat", row["body"]),
                salt=row["body"].get("cache_salt"),
                block_size=32,
            )
        )
        progress.begin(facts.serial)
        progress.computed(facts.serial, row["first_byte_at"])
        arrived.append((row, facts))
    found = []
    for row, facts in arrived:
        at = row["sent_at"]
        times = Times(arrived_at=at, admitted_at=at, first_token_at=row["first_byte_at"])
        causes = attribute(
            row["request_id"],
            facts,
            cached_tokens=row["cached_tokens"],
            seen_blocks=seen_blocks(facts, index, at),
            why=reasons(facts, times, progress, index),
        )
        found.append((row, causes))
    return found


@pytest.mark.parametrize(
    ("name", "events", "requests"),
    [
        ("vllm-0.32.0-sequential", True, 160),
        ("vllm-0.32.0-sequential", False, 160),
        ("vllm-0.23.0-sequential", True, 120),
        ("vllm-0.23.0-sequential", False, 120),
        ("vllm-0.32.0-concurrent-4", False, 160),
    ],
)
def test_causes_add_up_for_every_request_and_fit_its_kind(name: Any, events: Any, requests: Any) -> None:
    found = attributed(name, index_of(name) if events else None)
    assert len(found) == requests
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    values: dict[str, Counter[str | None]] = defaultdict(Counter)
    for row, attribution in found:
        assert row["cached_tokens"] + sum(attribution.causes.values()) == row["prompt_tokens"]
        by_kind[row["kind"]] += Counter(attribution.causes)
        for miss in attribution.misses:
            if miss.cause == "diverged":
                values[row["kind"]][miss.value_kind] += 1
    everything = sum(by_kind.values(), Counter[str]())
    assert everything["unknown"] == everything["disabled"] == everything["in_flight"] == 0
    assert everything["evicted"] > 0
    assert by_kind["unique"].keys() == {"cold", "granularity"}
    for kind, value in (("timestamp_first", "timestamp"), ("user_first", "hex_id")):
        assert by_kind[kind].keys() == {"cold", "granularity", "diverged"}
        assert by_kind[kind].most_common(1)[0][0] == "diverged"
        assert values[kind].keys() == {value}
    assert values["few_shot_shuffled"].most_common(1)[0][0] == "line_order"
    assert by_kind["few_shot_shuffled"]["diverged"] > by_kind["few_shot_shuffled"]["cold"]
    for kind in ("stable", "multiturn", "repeat"):
        assert by_kind[kind]["diverged"] == 0
    assert by_kind["salted"]["isolated"] > 0
    assert sum(counter["isolated"] for counter in by_kind.values()) <= 2 * by_kind["salted"]["isolated"]


@pytest.mark.parametrize("name", ["vllm-0.32.0-sequential", "vllm-0.23.0-sequential"])
def test_elimination_finds_what_events_tell(name: Any) -> None:
    told = [found.causes for _, found in attributed(name, index_of(name))]
    eliminated = [found.causes for _, found in attributed(name, None)]
    assert eliminated == told


def test_sums_over_the_sequential_run() -> None:
    total = sum(
        (Counter(found.causes) for _, found in attributed("vllm-0.32.0-sequential", None)), Counter[str]()
    )
    assert sum(total.values()) == 101_894 - 45_728
    assert total == {
        "cold": 28_918,
        "diverged": 18_634,
        "granularity": 4_326,
        "evicted": 2_208,
        "isolated": 2_080,
    }
