"""Drivers' errors become one line of kvscope's own, and only those that are not our fault."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DataError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from kvscope.errors import UnreachableError
from kvscope.store.faults import is_data_error, translated
from kvscope.store.urls import locate

LOCATION = locate("postgresql://u:secret@h/d")


class ServerError(Exception):
    """A driver's error with the server's code."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("the first line\nDETAIL: Key (request_id)=(abc) exists")
        self.sqlstate = sqlstate


def wrapped(
    kind: type[OperationalError | ProgrammingError | DataError | IntegrityError], orig: Exception
) -> Exception:
    return kind("INSERT INTO t VALUES ('private')", {"value": "private"}, orig)


@pytest.mark.parametrize(
    "error",
    [
        wrapped(OperationalError, ServerError("57P01")),
        wrapped(OperationalError, sqlite3.OperationalError("the first line")),
        wrapped(ProgrammingError, ServerError("42501")),
        wrapped(ProgrammingError, ServerError("42P01")),
    ],
)
def test_what_the_database_is_at_fault_for_is_one_line(error: Exception) -> None:
    with pytest.raises(UnreachableError) as raised, translated(LOCATION):
        raise error
    assert str(raised.value) == "the store postgresql://u:***@h/d cannot be used: the first line"


def test_a_busy_pool_is_unreachable() -> None:
    with pytest.raises(UnreachableError, match="is busy"), translated(LOCATION):
        raise PoolTimeoutError


@pytest.mark.parametrize(
    "error",
    [
        wrapped(ProgrammingError, ServerError("42601")),
        wrapped(DataError, ServerError("22003")),
        wrapped(IntegrityError, ServerError("23505")),
        ZeroDivisionError(),
    ],
)
def test_what_our_own_code_is_at_fault_for_stays(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, translated(LOCATION):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (wrapped(DataError, ServerError("22003")), True),
        (wrapped(IntegrityError, ServerError("23502")), True),
        (wrapped(OperationalError, ServerError("54000")), True),
        (wrapped(OperationalError, sqlite3.InterfaceError("unsupported type")), True),
        (OverflowError("int too large"), True),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), True),
        (wrapped(OperationalError, ServerError("57P01")), False),
        (wrapped(OperationalError, sqlite3.OperationalError("database is locked")), False),
        (wrapped(ProgrammingError, ServerError("42P01")), False),
        (RuntimeError(), False),
    ],
)
def test_data_errors_are_told_from_the_others(error: Exception, *, expected: bool) -> None:
    assert is_data_error(error) is expected


def test_a_read_only_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "k.db"
    sqlite3.connect(file).close()
    engine = create_engine(f"sqlite:///file:{file}?mode=ro&uri=true")
    with (
        pytest.raises(UnreachableError, match="readonly database; its file, folder or"),
        translated(LOCATION),
        engine.begin() as connection,
    ):
        connection.execute(text("CREATE TABLE t (a)"))
    engine.dispose()
