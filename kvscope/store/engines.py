"""Connections: one that writes and some that read, with each dialect's settings and why they are so."""

import dataclasses
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, create_engine, event

from kvscope.store import clean
from kvscope.store.faults import translated
from kvscope.store.urls import Location

_BUSY_MILLISECONDS = 10_000
_CHECKOUT_SECONDS = 30
_READERS = 4
_JOURNAL_BYTES = 64 * 2**20
# locks first: what is read within the transaction cannot be outdated by another writer
_EXCLUSIVE = "BEGIN IMMEDIATE"
COPY = "COPY "
"""How a statement begins whose rows PostgreSQL reads as a stream."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The two doors of one store; every error that leaves them is kvscope's own."""

    location: Location
    writer: Engine
    readers: Engine

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give the writing connection in a transaction that commits at the end or rolls back."""
        with translated(self.location), self.writer.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one moment of the store and cannot change it."""
        with translated(self.location), self.readers.connect() as connection:
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self.readers.dispose()
        self.writer.dispose()


def connect(location: Location) -> Engines:
    """Return the doors to ``location``; nothing is opened before the first use."""
    if location.path is not None:
        return _sqlite(location)
    return _postgresql(location)


def _sqlite(location: Location) -> Engines:
    def engine(*, size: int, begin: str, pragmas: tuple[str, ...]) -> Engine:
        made = create_engine(
            location.url,
            # callers queue for the one writer: SQLite has one write lock, and polling it is not fair
            pool_size=size,
            max_overflow=0,
            pool_timeout=_CHECKOUT_SECONDS,
            connect_args={"check_same_thread": False, "timeout": _BUSY_MILLISECONDS / 1000},
            json_serializer=clean.json_text,
            json_deserializer=msgspec.json.decode,
            hide_parameters=True,
        )

        @event.listens_for(made, "connect")
        def _configure(connection: Any, _record: Any) -> None:
            # the driver's own BEGIN comes late and never before DDL; ours comes from the event below
            connection.isolation_level = None
            if begin == _EXCLUSIVE and not connection.execute("PRAGMA page_count").fetchone()[0]:
                # of a new file alone, and before anything is in it: what is pruned can then leave the file
                _set_pragma(connection, "auto_vacuum=INCREMENTAL")
            for pragma in pragmas:
                _set_pragma(connection, pragma)

        @event.listens_for(made, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

        return made

    return Engines(
        location=location,
        writer=engine(
            size=1,
            begin=_EXCLUSIVE,
            pragmas=(
                "journal_mode=WAL",  # readers never wait for the writer
                "synchronous=NORMAL",  # survives kill -9; a power cut may take the last commits, not the file
                "foreign_keys=ON",
                f"journal_size_limit={_JOURNAL_BYTES}",
            ),
        ),
        readers=engine(size=_READERS, begin="BEGIN", pragmas=("query_only=ON",)),
    )


def _set_pragma(connection: sqlite3.Connection, pragma: str) -> None:
    """Set a pragma; the first switch to WAL does not wait for other connections by itself, so we do."""
    deadline = time.monotonic() + _BUSY_MILLISECONDS / 1000
    while True:
        try:
            connection.execute(f"PRAGMA {pragma}")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _postgresql(location: Location) -> Engines:
    def engine(*, size: int, **options: Any) -> Engine:
        return create_engine(
            location.url,
            paramstyle="format",  # positional, so that bulk rows are tuples on both dialects
            pool_size=size,
            max_overflow=0,
            pool_timeout=_CHECKOUT_SECONDS,
            pool_pre_ping=True,  # a restarted server costs one round trip, not an error
            connect_args={"connect_timeout": 5, "application_name": "kvscope"},
            json_serializer=clean.json_text,
            json_deserializer=msgspec.json.decode,
            hide_parameters=True,
            **options,
        )

    readers = engine(size=_READERS, isolation_level="REPEATABLE READ")
    writer = engine(size=1)

    # within SQLAlchemy's own call, so that errors and lost connections are its business as ever
    @event.listens_for(writer, "do_execute")
    def _copy_one(cursor: Any, statement: str, row: Any, _context: Any) -> bool:
        return _copied(cursor, statement, [row])

    @event.listens_for(writer, "do_executemany")
    def _copy_all(cursor: Any, statement: str, rows: Any, _context: Any) -> bool:
        return _copied(cursor, statement, rows)

    return Engines(
        location=location,
        writer=writer,
        readers=readers.execution_options(postgresql_readonly=True),
    )


def _copied(cursor: Any, statement: str, rows: Sequence[Any]) -> bool:
    """Send ``rows`` where ``statement`` is a COPY; False leaves another statement to SQLAlchemy."""
    if not statement.startswith(COPY):
        return False
    with cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)
    return True
