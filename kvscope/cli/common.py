"""What the commands share: options, opening the store, JSON and tables."""

import dataclasses
import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from kvscope.clock import iso, system_clock
from kvscope.errors import UsageError

if TYPE_CHECKING:  # the store and the settings are loaded by the commands that use them
    from kvscope.store.database import Store

BLOCKS_MOST = 1_000_000_000  # of a cache: far beyond any, and far below what numbers of 64 bits hold
BLOCK_SIZE = click.IntRange(1, 65_536)  # tokens a block

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


Command = Callable[..., Any]


class PositiveNumber(click.FloatRange):
    """A number above 0 that is one: neither NaN, which passes every bound, nor infinite."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number above 0.", param, ctx)
        return number


def db_option(command: Command) -> Command:
    """Add ``--db URL``."""
    text = "Store; default: KVSCOPE_DB, else kvscope.db in the data directory."
    return click.option("--db", metavar="URL", default=None, help=text)(command)


def json_option(command: Command) -> Command:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(command)


def since_option(command: Command) -> Command:
    """Add ``--since 24h``."""
    text = "Only what is younger: 90s, 30m, 24h, 7d, 2w."
    return click.option("--since", metavar="AGE", default=None, help=text)(command)


def since_at(age: str | None) -> float | None:
    """Return the Unix time that ``age`` ago was; raises ``UsageError`` on other forms."""
    return None if age is None else ago(age, "--since")


def ago(age: str, option: str) -> float:
    """Return the Unix time that ``age`` ago was; raises ``UsageError`` that names ``option``."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhdw])", age)
    if match is None:
        raise UsageError(f"{option} {age!r}: write a number and a unit, such as 90s, 30m, 24h, 7d or 2w")
    return system_clock() - float(match[1]) * _UNITS[match[2]]


def store_url(db: str | None) -> str:
    """Return ``db`` or the default store's URL; raises ``UsageError`` while there is no default store."""
    from kvscope.config.load import data_directory, default_db

    url = db or default_db()
    if url.startswith(f"sqlite:///{data_directory()}") and not data_directory().exists():
        raise UsageError("there is no store yet: start `kvscope agent`, or name one with --db URL")
    return url


def not_an_input(output: Path | None, inputs: Iterable[Path]) -> None:
    """Raise ``UsageError`` where ``output`` is one of ``inputs``, which would be lost."""
    if output is None or not output.exists():
        return
    if any(each.exists() and output.samefile(each) for each in inputs):
        raise UsageError(f"{output} is read and would be lost: name another file with -o")


@contextmanager
def opened(db: str | None) -> "Iterator[Store]":
    """Open the store for one command and close it after."""
    from kvscope.store.database import open_store

    store = open_store(store_url(db))
    try:
        yield store
    finally:
        store.close()


def as_json_value(value: Any) -> Any:
    """Return ``value`` as JSON-able data: dataclasses as objects, ``*_at`` fields as ISO 8601 text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return as_json_value({name: getattr(value, name) for name in names})
    if isinstance(value, dict):
        return {
            str(key): iso(item)
            if (key == "at" or str(key).endswith("_at")) and isinstance(item, float)
            else as_json_value(item)
            for key, item in value.items()
        }
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Iterable):
        return [as_json_value(item) for item in value]
    return str(value)


def emit_json(value: Any) -> None:
    """Print one JSON document."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    click.echo(json.dumps(as_json_value(value), indent=2, ensure_ascii=not unicode))


def emit_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print a table, or the line ``empty`` where there is nothing to show."""
    shown = [[show(cell) for cell in row] for row in rows]
    if not shown:
        click.echo(empty)
        return
    from kvscope.cli.tables import print_table

    # a pipe has no width of its own
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print_table(title, columns, shown, width=width)


def show(value: Any) -> str:
    """Return a cell's text; what is not known is a dash, never a zero."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in str(value))


def percent(value: float | None) -> str:
    """Return a rate for people."""
    return "–" if value is None else f"{value:.1%}"


def milliseconds(value: float | None) -> str:
    """Return seconds as milliseconds for people."""
    return "–" if value is None else f"{value * 1000:,.1f} ms"
