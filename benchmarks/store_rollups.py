"""How much quicker sums are read from rollups than from requests, and how fast minutes are rolled up.

The same questions are put to one SQLite store before and after its minutes are rolled up; the answers must be
the same. Run ``python benchmarks/store_rollups.py [--json]``.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from kvscope.model.request import Miss, MissCause, RequestPart, Source
from kvscope.pipeline.contracts import Batch
from kvscope.store.database import Store, open_store

_START_AT = 1_764_000_000.0
_BATCH = 2_000
_TURNS = 5


def fill(store: Store, *, requests: int, per_second: float, seed: int) -> None:
    """Write requests of four routes and three tenants."""
    chance = random.Random(seed)
    for first in range(0, requests, _BATCH):
        parts = [
            RequestPart(
                request_id=f"chatcmpl-{number}",
                source=Source.SPAN,
                values={
                    "arrived_at": _START_AT + number / per_second,
                    "route": chance.choice("abcd"),
                    "tenant": chance.choice("xyz"),
                    "model": "m",
                    "prompt_tokens": 2_000,
                    "cached_tokens": chance.randrange(2_000),
                    "ttft_seconds": chance.lognormvariate(-2, 0.5),
                    "tpot_seconds": chance.lognormvariate(-4, 0.2),
                    "causes": {"cold": chance.randrange(500)},
                },
            )
            for number in range(first, min(first + _BATCH, requests))
        ]
        misses = [
            Miss(
                request_id=part.request_id,
                cause=MissCause.DIVERGED,
                tokens=chance.randrange(1, 500),
                role="system",
                message_index=0,
                value_kind=chance.choice(["timestamp", "uuid"]),
            )
            for part in parts
        ]
        store.batches.write([Batch(parts=parts, misses=misses)])


def questions(store: Store) -> dict[str, Callable[[], Any]]:
    """Return what the overview and the page of misses ask."""
    return {
        "hits by route": lambda: store.reader.hits("route"),
        "hits by cause": lambda: store.reader.hits("cause"),
        "places of misses": store.reader.misses,
        "hits in total": lambda: store.reader.hits("total"),
        "timeline by minute": lambda: store.reader.timeline(bucket_seconds=60.0),
        "p50 and p95 of TTFT": lambda: store.reader.ttft("total"),
    }


def seconds(question: Callable[[], Any]) -> float:
    """Return the median time of an answer."""
    taken = []
    for _ in range(_TURNS):
        began = time.perf_counter()
        question()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def tokens(store: Store) -> list[tuple[str, int, int]]:
    """Return what must be the same before and after."""
    return [(row.key, row.requests, row.cached_tokens) for row in store.reader.hits("route")]


def main() -> None:
    """Print the times and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--per-second", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/store.db", upgrade=True)
        fill(store, requests=options.requests, per_second=options.per_second, seed=7)
        answers = tokens(store)
        raw = {name: seconds(question) for name, question in questions(store).items()}
        began = time.perf_counter()
        minutes = store.rollups.refresh(2 * _START_AT)
        rate = options.requests / (time.perf_counter() - began)
        rolled = {name: seconds(question) for name, question in questions(store).items()}
        if tokens(store) != answers:
            raise AssertionError("rollups and requests say different things")
        store.close()
    if options.json:
        print(json.dumps({"raw": raw, "rolled": rolled, "minutes": minutes, "requests_per_second": rate}))
        return
    for name, before in raw.items():
        after = rolled[name]
        print(
            f"{name:22} {before * 1e3:8.1f} ms from requests"
            f" {after * 1e3:8.1f} ms from rollups {before / after:6.1f} times"
        )
    print(f"{minutes} minutes rolled up at {rate:,.0f} requests/s, pauses included")


if __name__ == "__main__":
    main()
