"""A store with four requests whose figures can be checked by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvscope.model.request import Miss, MissCause, RequestPart, Source
from kvscope.model.telemetry import MetricSample
from kvscope.pipeline.contracts import Batch
from kvscope.store.database import Store, open_store

ENGINE = "http://127.0.0.1:8000"
NOW = 1_000_500.0


def request(request_id: str, at: float, **values: Any) -> RequestPart:
    """Return one request as a single part."""
    told = {"arrived_at": at, "route": "a", "engine": ENGINE, "model": "tiny", "status": "ok", **values}
    return RequestPart(request_id=request_id, source=Source.GATEWAY, values=told)


@pytest.fixture
def small_store(tmp_path: Path) -> Iterator[Store]:
    """An open, empty store."""
    store = open_store(f"sqlite:///{tmp_path / 'small.db'}", upgrade=True)
    yield store
    store.close()


@pytest.fixture
def four_requests(small_store: Store) -> Store:
    """Three requests of route ``a`` (one with unknown tokens) and one of route ``b``."""
    small_store.batches.write(
        [
            Batch(
                parts=[
                    request(
                        "r1",
                        1_000_100.0,
                        prompt_tokens=100,
                        cached_tokens=60,
                        ttft_seconds=0.1,
                        causes={"diverged": 30, "granularity": 10},
                    ),
                    request(
                        "r2",
                        1_000_200.0,
                        prompt_tokens=100,
                        cached_tokens=20,
                        ttft_seconds=0.3,
                        causes={"diverged": 70, "granularity": 10},
                    ),
                    request("r3", 1_000_300.0),
                    request(
                        "r4",
                        1_000_400.0,
                        route="b",
                        prompt_tokens=50,
                        cached_tokens=0,
                        ttft_client_seconds=0.05,
                        causes={"cold": 50},
                    ),
                ],
                misses=[
                    _miss("r1", MissCause.DIVERGED, 30),
                    _miss("r2", MissCause.DIVERGED, 70),
                    Miss(request_id="r4", cause=MissCause.COLD, tokens=50, role="user", message_index=1),
                ],
                samples=[
                    _sample("vllm:prefix_cache_hits_total", 1_000_000.0, 5.0),
                    _sample("vllm:prefix_cache_queries_total", 1_000_000.0, 5.0),
                    _sample("vllm:prefix_cache_hits_total", 1_000_450.0, 85.0),
                    _sample("vllm:prefix_cache_queries_total", 1_000_450.0, 255.0),
                ],
            )
        ]
    )
    return small_store


def _miss(request_id: str, cause: MissCause, tokens: int) -> Miss:
    return Miss(
        request_id=request_id,
        cause=cause,
        tokens=tokens,
        role="system",
        message_index=0,
        char_start=12,
        char_end=31,
        value_kind="timestamp",
    )


def _sample(name: str, at: float, value: float) -> MetricSample:
    return MetricSample(engine=ENGINE, replica="0", name=name, labels={}, at=at, value=value)
