"""Two processes on one store; and a killed one, which loses nothing that it had answered."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from kvscope.errors import UnreachableError
from kvscope.model.request import RequestPart, Source
from kvscope.pipeline.contracts import Batch
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.store import migrate
from kvscope.store.database import Store, open_store

DEADLINE = 30.0

WRITER = """
import sys
from prometheus_client import CollectorRegistry
from kvscope.model.request import RequestPart, Source
from kvscope.model.telemetry import Span
from kvscope.pipeline.contracts import Batch
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.store.database import open_store

writer = Writer(open_store(sys.argv[1]).batches, WriterSettings(), CollectorRegistry())
writer.start()
rest = {"parent_span_id": None, "name": "n", "service": None, "attributes": {}, "resource": {}}

def batch(number):
    ids = [f"{number}-{item}" for item in range(20)]
    values = {"route": "a", "arrived_at": 1.0 * number}
    return Batch(
        parts=[RequestPart(request_id=one, source=Source.GATEWAY, values=values) for one in ids],
        spans=[Span(trace_id=one, span_id="s", start_at=1.0, end_at=2.0, **rest) for one in ids],
    )

for number in range(0, 400, 4):
    receipts = [(step, writer.offer(batch(number + step))) for step in range(4)]
    for step, receipt in receipts:
        receipt.result(30)
        print(number + step, flush=True)
sys.stdin.read()
"""


@contextmanager
def writing_process(url: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a process that writes batches of 20 and prints the number of each when its receipt has resolved."""
    command = [sys.executable, "-c", WRITER, url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def numbers_of(process: "subprocess.Popen[str]", at_least: int) -> list[int]:
    assert process.stdout is not None
    lines: list[str] = []
    while len(lines) < at_least:
        line = process.stdout.readline()
        assert line, "the writing process ended early"
        lines.append(line)
    return [int(line) for line in lines]


def test_a_reader_sees_whole_commits_while_another_process_writes(database_url: str) -> None:
    store = open_store(database_url, upgrade=True)
    with writing_process(database_url) as process:
        counts = []
        for number in numbers_of(process, at_least=20):
            (total,) = store.reader.hits("total")
            requests, spans = total.requests, store.reader.span_count()
            assert requests >= (number + 1) * 20
            assert spans >= requests
            counts.append(requests)
    assert counts == sorted(counts)
    assert all(count % 20 == 0 for count in counts)
    store.close()


def test_kill_9_loses_nothing_that_was_answered(database_url: str) -> None:
    open_store(database_url, upgrade=True).close()
    with writing_process(database_url) as process:
        answered = numbers_of(process, at_least=10)
        os.kill(process.pid, signal.SIGKILL)
        rest, _ = process.communicate(timeout=DEADLINE)
        # the kill can cut a line, also between its number and its end
        answered += [int(line) for line in rest.split("\n")[:-1] if line]
    store = open_store(database_url)
    stored = {record.request_id for record in store.reader.requests()}
    assert {f"{number}-{item}" for number in answered for item in range(20)} <= stored
    assert len(stored) % 20 == 0
    assert store.reader.span_count() == len(stored)
    store.close()


def test_two_processes_merge_parts_of_the_same_requests(database_url: str) -> None:
    """What two agents tell of one request joins in one row, though they write at the same time."""
    store = open_store(database_url, upgrade=True)
    other = open_store(database_url)
    ids = [str(number) for number in range(30)]

    def tell(to: Store, source: Source, field: str) -> None:
        for value in range(10):
            parts = [RequestPart(request_id=one, source=source, values={field: value}) for one in ids]
            assert to.batches.write([Batch(parts=parts)]) == 0

    threads = [
        threading.Thread(target=tell, args=(store, Source.GATEWAY, "prompt_chars")),
        threading.Thread(target=tell, args=(other, Source.SPAN, "prompt_tokens")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = store.reader.requests()
    assert sorted(record.request_id for record in records) == sorted(ids)
    assert {(record.prompt_chars, record.prompt_tokens) for record in records} == {(9, 9)}
    store.close()
    other.close()


def test_a_locked_store_delays_the_answer_and_loses_nothing(sqlite_url: str) -> None:
    store = open_store(sqlite_url, upgrade=True)
    with store.engines.writer.connect() as connection:
        connection.connection.cursor().execute("PRAGMA busy_timeout=20")
    other = open_store(sqlite_url)
    registry = CollectorRegistry()
    writer = Writer(store.batches, WriterSettings(queue_items=10, drain_seconds=5.0), registry)
    writer.start()
    with other.engines.writing():
        part = RequestPart(request_id="1", source=Source.SPAN, values={"model": "m"})
        receipt = writer.offer(Batch(parts=[part]))
        until = time.monotonic() + DEADLINE
        while not registry.get_sample_value("kvscope_commit_failures_total") and time.monotonic() < until:
            time.sleep(0.01)
        assert not receipt.done()
    assert receipt.result(DEADLINE) == 0
    assert [record.request_id for record in store.reader.requests()] == ["1"]
    assert writer.stop() == 0
    store.close()
    other.close()


@pytest.mark.postgres
def test_a_lost_connection_is_told_once_and_then_made_again(postgresql_url: str) -> None:
    store = open_store(postgresql_url, upgrade=True)
    admin = open_store(postgresql_url)
    batch = Batch(parts=[RequestPart(request_id="1", source=Source.SPAN, values={"model": "m"})])
    assert store.batches.write([batch]) == 0
    assert len(store.reader.requests()) == 1

    def cut() -> None:
        with admin.engines.writing() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    cut()
    assert len(store.reader.requests()) == 1
    assert store.batches.write([batch]) == 0

    def cut_within_a_transaction() -> None:
        with store.engines.writing() as connection:
            cut()
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(UnreachableError, match="cannot be used"):
        cut_within_a_transaction()
    assert store.batches.write([batch]) == 0
    store.close()
    admin.close()


def test_upgrades_at_the_same_time_do_not_disturb_each_other(database_url: str) -> None:
    """Several agents may start on one new store."""
    command = [
        sys.executable,
        "-c",
        "import sys; from kvscope.store.migrate import upgrade; upgrade(sys.argv[1])",
    ]
    processes = [
        subprocess.Popen([*command, database_url], stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    outcomes = [(process.communicate(timeout=DEADLINE)[1], process.returncode) for process in processes]
    assert outcomes == [("", 0)] * 4
    assert migrate.check(database_url).ok
