"""What spans sent over OTLP are compared with: the database alone, and Phoenix."""

import contextlib
import http.client
import json
import sqlite3
import subprocess
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _otlp_sending import BATCH, bodies
from sqlalchemy import make_url

from kvscope.demo.engines import answers, free_port
from kvscope.demo.process import ChildProcess
from kvscope.store.database import open_store

_TABLES = ("spans", "requests", "rollup_changes")
_PHOENIX_SPANS = 2_048

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
    for first in range(0, len(rows["spans"]), BATCH):
        part = {table: rows[table][first : first + BATCH] for table in ("spans", "requests")}
        # a batch of 512 spans at 100 a second marks one minute
        minute = first // BATCH % max(1, len(rows["rollup_changes"]))
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
