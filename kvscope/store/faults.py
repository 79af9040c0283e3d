"""Turns what drivers raise into kvscope's errors: one line, without SQL, values or passwords."""

import contextlib
import sqlite3
from collections.abc import Iterator

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from kvscope.errors import UnreachableError
from kvscope.store.urls import Location

_PROGRAM_LIMIT = "54"  # SQLSTATE class: the value, not the server, is at fault (an index row too large)
_NOT_OURS = frozenset({"42501", "42P01"})  # no permission; the table is gone
_BINDING_ERRORS = (OverflowError, UnicodeError, TypeError, ValueError)
_HINTS = {  # of SQLite's result codes
    "READONLY": "its file, folder or file system is read-only: make it writable, or name another with --db",
    "FULL": "the disk is full: free some space, or remove old requests with `kvscope db prune`",
}


def is_data_error(error: BaseException) -> bool:
    """Whether a value is to blame, so that the same row will fail again while others will not."""
    if isinstance(error, (DataError, IntegrityError)):
        return True
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None) or ""
        return isinstance(error.orig, sqlite3.InterfaceError) or state.startswith(_PROGRAM_LIMIT)
    return isinstance(error, _BINDING_ERRORS)


def first_line(error: BaseException) -> str:
    """Return the driver's own message, first line only: later ones may quote stored values."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(cause).strip().splitlines()
    said = lines[0].strip() if lines else type(cause).__name__
    kind = (getattr(cause, "sqlite_errorname", None) or "").removeprefix("SQLITE_").partition("_")[0]
    return f"{said}; {_HINTS[kind]}" if kind in _HINTS else said


@contextlib.contextmanager
def translated(location: Location) -> Iterator[None]:
    """Raise ``UnreachableError`` in place of what the database raises when it, not our SQL, is at fault."""
    try:
        yield
    except PoolTimeoutError as error:
        raise UnreachableError(
            f"the store {location.shown} is busy: no connection became free in time"
        ) from error
    except (DataError, IntegrityError):
        raise
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) not in _NOT_OURS:
            raise
        raise UnreachableError(f"the store {location.shown} cannot be used: {first_line(error)}") from error
    except DBAPIError as error:
        raise UnreachableError(f"the store {location.shown} cannot be used: {first_line(error)}") from error
