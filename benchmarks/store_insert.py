"""How fast the store takes spans, against raw ``sqlite3`` inserting the same rows in the same transactions.

All write into files made by the same migrations, in turns within one run, so that the machine's mood falls on
all; on a busy machine the processor time says more than the clock. The store starts from decoded spans; raw
``sqlite3`` is given finished rows. Run ``python benchmarks/store_insert.py [--json]``.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kvscope.model.merge import Join
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
    """Medians over the rounds of one way: on the clock, and by this process's own processor time."""

    per_second: float
    cpu_microseconds: float  # a span


def take(way: Way, transactions: Sequence[Sequence[Span]]) -> tuple[float, float]:
    """Return the seconds on the clock and of processor time."""
    began, began_cpu = time.perf_counter(), time.process_time()
    for transaction in transactions:
        way.write(transaction)
    return time.perf_counter() - began, time.process_time() - began_cpu


def raw_way(file: Path, finished: Mapping[str, tuple[rows.Row, rows.Row]], *, requests: bool) -> Way:
    """Return the way of plain ``sqlite3``, with the store's own pragmas and rows that are already made."""
    connection = sqlite3.connect(file, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
    marks = ", ".join("?" * len(rows.REQUEST_COLUMNS))

    def write(transaction: Sequence[Span]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        own = [finished[span.trace_id] for span in transaction]
        connection.executemany(_INSERT, [span for span, _ in own])
        if requests:
            connection.executemany(f"INSERT INTO requests VALUES ({marks})", [request for _, request in own])
        connection.execute("COMMIT")

    what = "spans and requests" if requests else "spans"
    return Way(name=f"raw sqlite3, {what}", write=write)


def store_way(store: Store, *, requests: bool) -> Way:
    """Return the store's way: spans alone, or spans with the request parts that they tell."""

    def write(transaction: Sequence[Span]) -> None:
        parts = [part_of(span) for span in transaction] if requests else []
        store.batches.write([Batch(spans=transaction, parts=parts)])

    what = "spans and request parts" if requests else "spans"
    return Way(name=f"kvscope store, {what}", write=write)


def finished_rows(span: Span) -> tuple[rows.Row, rows.Row]:
    """Return the rows of a span and of its request, as the store would write them."""
    part = part_of(span)
    join = Join(part.request_id)
    join.add(part)
    return rows.span_row(span), rows.request_row(join)


def measure(*, count: int, size: int, rounds: int) -> dict[str, Rate]:
    """Return how fast each way is, medians over ``rounds`` turns."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stores = []
        for number in range(4):
            stores.append(open_store(f"sqlite:///{folder}/{number}.db", upgrade=True))
            stack.callback(stores[-1].close)
        made = spans(count * rounds, seed=7)
        finished = {span.trace_id: finished_rows(span) for span in made}
        ways = [
            raw_way(Path(folder) / "0.db", finished, requests=False),
            store_way(stores[1], requests=False),
            raw_way(Path(folder) / "2.db", finished, requests=True),
            store_way(stores[3], requests=True),
        ]
        takes: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
        for turn in range(rounds):
            mine = made[turn * count : (turn + 1) * count]
            transactions = [mine[at : at + size] for at in range(0, count, size)]
            for way in ways:
                takes[way.name].append(take(way, transactions))
        if {store.reader.span_count() for store in stores} != {count * rounds}:
            raise AssertionError("the ways did not write the same spans")
        if stores[2].reader.requests() != stores[3].reader.requests():
            raise AssertionError("the ways did not write the same requests")
    return {
        name: Rate(
            per_second=count / statistics.median(seconds for seconds, _ in found),
            cpu_microseconds=statistics.median(cpu for _, cpu in found) / count * 1e6,
        )
        for name, found in takes.items()
    }


def main() -> None:
    """Print the rates and their ratios to raw ``sqlite3`` that writes the same rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=20_480, help="spans in each round")
    parser.add_argument("--batch", type=int, default=512, help="spans in each transaction")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates = measure(count=options.spans, size=options.batch, rounds=options.rounds)
    if options.json:
        print(json.dumps({"ways": {name: dataclasses.asdict(r) for name, r in rates.items()}, "aim": _AIM}))
        return
    base = next(iter(rates.values()))
    for name, rate in rates.items():
        base = rate if name.startswith("raw") else base
        print(
            f"{name:40} {rate.per_second:10,.0f} spans/s {rate.cpu_microseconds:6.0f} us of processor a span"
            f"   {rate.per_second / base.per_second:5.2f} of raw"
            f" ({base.cpu_microseconds / rate.cpu_microseconds:.2f} by processor time)"
        )
    print(f"aim: {_AIM} of raw")


if __name__ == "__main__":
    main()
