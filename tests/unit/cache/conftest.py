"""Recordings of real vLLM servers for the tests of the cache model."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope.cache.replay import ReplayRequest
from kvscope.model.telemetry import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent, CacheEventBatch

DATA = Path(__file__).parents[2] / "data" / "cache"


def _rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def _event(given: dict[str, Any]) -> CacheEvent:
    if given["type"] == "BlockStored":
        keys = given["extra_keys"]
        return BlockStored(
            block_hashes=tuple(given["block_hashes"]),
            parent_block_hash=given["parent_block_hash"],
            token_ids=tuple(given["token_ids"]),
            block_size=given["block_size"],
            extra_keys=None if keys is None else tuple(tuple(key) if key else None for key in keys),
        )
    if given["type"] == "BlockRemoved":
        return BlockRemoved(block_hashes=tuple(given["block_hashes"]))
    return AllBlocksCleared()


@pytest.fixture
def recorded_rows() -> Callable[[str], list[dict[str, Any]]]:
    return _rows


@pytest.fixture
def recorded_events() -> Callable[[str], list[CacheEventBatch]]:
    def load(name: str) -> list[CacheEventBatch]:
        return [
            CacheEventBatch(
                engine="http://e",
                replica="0",
                sequence=row["sequence"],
                at=row["at"],
                events=tuple(_event(event) for event in row["events"]),
            )
            for row in _rows(f"{name}-events")
        ]

    return load


@pytest.fixture
def replay_requests() -> Callable[[str], list[ReplayRequest]]:
    def load(name: str) -> list[ReplayRequest]:
        return [
            ReplayRequest(
                request_id=row["request_id"],
                tokens=row["prompt_token_ids"],
                salt=row["body"].get("cache_salt"),
                output_tokens=row["output_token_ids"],
                recorded_cached_tokens=row["cached_tokens"],
            )
            for row in _rows(name)
        ]

    return load
