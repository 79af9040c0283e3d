"""How fast the store takes spans, against raw ``sqlite3`` inserting the same rows in the same transactions.

Both write into files made by the same migrations, in turns within one run, so that the machine's mood falls
on both. The store starts from decoded spans; raw ``sqlite3`` is given finished rows. Run
``python benchmarks/store_insert.py [--json]``.
"""

import argparse
import contextlib
import dataclasses
import json
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvscope.model.request import RequestPart, Source, Status
from kvscope.model.telemetry import Span
from kvscope.pipeline.contracts import Batch
from kvscope.store import rows
from kvscope.store.database import Store, open_store

_AIM = 0.5
_INSERT = "INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"


def spans(count: int, seed: int) -> list[Span]:
    """Return spans as vLLM 0.32 sends them, about 600 bytes of attributes each."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        start = 1_764_000_000.0 + number / 100
        made.append(
            Span(
                trace_id=f"{chance.getrandbits(128):032x}",
                span_id=f"{chance.getrandbits(64):016x}",
                parent_span_id=f"{chance.getrandbits(64):016x}",
                name="llm_request",
                service="vllm-server",
                start_at=start,
                end_at=start + chance.random(),
                attributes={
                    "gen_ai.response.model": "meta-llama/Llama-3.1-8B-Instruct",
                    "gen_ai.request.id": f"chatcmpl-{chance.getrandbits(128):032x}",
                    "gen_ai.request.temperature": 0.7,
                    "gen_ai.request.top_p": 0.95,
                    "gen_ai.request.max_tokens": 512,
                    "gen_ai.request.n": 1,
                    "gen_ai.usage.prompt_tokens": chance.randrange(8_000),
                    "gen_ai.usage.completion_tokens": chance.randrange(512),
                    "gen_ai.usage.cached_tokens": chance.randrange(8_000),
                    "gen_ai.latency.time_in_queue": chance.random(),
                    "gen_ai.latency.time_to_first_token": chance.random(),
                    "gen_ai.latency.e2e": chance.random(),
                    "gen_ai.latency.time_in_model_prefill": chance.random(),
                    "gen_ai.latency.time_in_model_decode": chance.random(),
                    "gen_ai.latency.time_in_model_inference": chance.random(),
                },
                resource={"service.name": "vllm-server", "telemetry.sdk.language": "python"},
            )
        )
    return made


def part_of(span: Span) -> RequestPart:
    """Return the part of a request that such a span tells."""
    attributes = span.attributes
    return RequestPart(
        request_id=attributes["gen_ai.request.id"],
        source=Source.SPAN,
        values={
            "trace_id": span.trace_id,
            "span_id": span.span_id,
            "model": attributes["gen_ai.response.model"],
            "arrived_at": span.start_at,
            "status": Status.OK,
            "prompt_tokens": attributes["gen_ai.usage.prompt_tokens"],
            "output_tokens": attributes["gen_ai.usage.completion_tokens"],
            "cached_tokens": attributes["gen_ai.usage.cached_tokens"],
            "ttft_seconds": attributes["gen_ai.latency.time_to_first_token"],
            "queue_seconds": attributes["gen_ai.latency.time_in_queue"],
            "prefill_seconds": attributes["gen_ai.latency.time_in_model_prefill"],
            "decode_seconds": attributes["gen_ai.latency.time_in_model_decode"],
            "e2e_seconds": attributes["gen_ai.latency.e2e"],
        },
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """One way of writing the same spans; ``write`` gets one transaction's worth."""

    name: str
    write: Callable[[Sequence[Span]], None]


def rate(way: Way, transactions: Sequence[Sequence[Span]]) -> float:
    """Return spans a second."""
    began = time.perf_counter()
    for transaction in transactions:
        way.write(transaction)
    return sum(map(len, transactions)) / (time.perf_counter() - began)


def raw_way(file: Path, finished: dict[str, rows.Row]) -> Way:
    """Return the way of plain ``sqlite3``, with the store's own pragmas and rows that are already made."""
    connection = sqlite3.connect(file, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")

    def write(transaction: Sequence[Span]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_INSERT, [finished[span.trace_id] for span in transaction])
        connection.execute("COMMIT")

    return Way(name="raw sqlite3, spans", write=write)


def store_ways(with_spans: Store, with_parts: Store) -> tuple[Way, Way]:
    """Return the store's ways: spans alone, and spans with the request parts that they tell."""

    def spans_alone(transaction: Sequence[Span]) -> None:
        with_spans.batches.write([Batch(spans=transaction)])

    def spans_and_parts(transaction: Sequence[Span]) -> None:
        with_parts.batches.write([Batch(spans=transaction, parts=[part_of(span) for span in transaction])])

    return (
        Way(name="kvscope store, spans", write=spans_alone),
        Way(name="kvscope store, spans and request parts", write=spans_and_parts),
    )


def measure(*, count: int, size: int, rounds: int) -> dict[str, float]:
    """Return the median spans a second of each way over ``rounds`` turns."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        opened = []
        for name in ("raw", "spans", "parts"):
            opened.append(open_store(f"sqlite:///{folder}/{name}.db", upgrade=True))
            stack.callback(opened[-1].close)
        made = spans(count * rounds, seed=7)
        finished = {span.trace_id: rows.span_row(span) for span in made}
        ways = [raw_way(Path(folder) / "raw.db", finished), *store_ways(opened[1], opened[2])]
        rates: dict[str, list[float]] = {way.name: [] for way in ways}
        for turn in range(rounds):
            mine = made[turn * count : (turn + 1) * count]
            transactions = [mine[at : at + size] for at in range(0, count, size)]
            for way in ways:
                rates[way.name].append(rate(way, transactions))
        if [store.reader.span_count() for store in opened] != [count * rounds] * 3:
            raise AssertionError("the ways did not write the same spans")
    return {name: statistics.median(found) for name, found in rates.items()}


def main() -> None:
    """Print the rates and their ratio to raw ``sqlite3``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=20_480, help="spans in each round")
    parser.add_argument("--batch", type=int, default=512, help="spans in each transaction")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates = measure(count=options.spans, size=options.batch, rounds=options.rounds)
    raw, store, joined = rates.values()
    if options.json:
        found = {
            "spans_per_second": rates,
            "ratio_to_raw": store / raw,
            "ratio_to_raw_with_parts": joined / raw,
            "aim": _AIM,
        }
        print(json.dumps(found))
        return
    for name, value in rates.items():
        print(f"{name:40} {value:10,.0f} spans/s   {value / raw:5.2f} of raw")
    print(f"aim: {_AIM} of raw for spans")


if __name__ == "__main__":
    main()
