"""What the demo prints: tables for people, on a terminal or in a file; progress on a terminal alone."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_PIPE_WIDTH = 160  # a pipe has no width of its own: wide enough that nothing is cut


class Screen:
    """Prints to stdout, or to stderr when stdout is for the JSON document."""

    def __init__(self, *, to_stderr: bool) -> None:
        out = sys.stderr if to_stderr else sys.stdout
        self._terminal = out.isatty()
        self._console = Console(
            file=out, highlight=False, markup=False, width=None if self._terminal else _PIPE_WIDTH
        )

    def heading(self, text: str) -> None:
        """Begin a part of the story."""
        self._console.print()
        self._console.print(f"== {text}", style="bold")

    def line(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; the first column holds words, the others figures."""
        table = Table(
            title=title,
            title_justify="left",
            title_style="",
            box=box.SIMPLE_HEAD if self._terminal else box.MARKDOWN,
        )
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number and _is_figure(rows, number) else "left")
        for row in rows:
            table.add_row(*row)
        self._console.print()
        self._console.print(table)

    @contextmanager
    def progress(self, text: str, total: int | None = None) -> Iterator[Callable[[float], None]]:
        """Show a bar (or, without a total, the seconds) on a terminal; a line when it ends elsewhere."""
        if not self._terminal:
            self._console.print(f"{text} ...", soft_wrap=True)
            yield lambda _: None
            return
        columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
        if total is not None:
            columns.append(MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self._console) as progress:
            task = progress.add_task(text, total=total)
            yield lambda done: progress.update(task, completed=done)


def _is_figure(rows: Sequence[Sequence[str]], column: int) -> bool:
    return all(row[column][:1] in "0123456789+-–<" for row in rows if row[column])


def percent(value: float | None) -> str:
    """Return a rate; what is not known is a dash."""
    return "–" if value is None else f"{value:.1%}"


def milliseconds(value: float | None, *, sign: bool = False) -> str:
    """Return seconds as milliseconds."""
    if value is None:
        return "–"
    return f"{value * 1000:+.0f} ms" if sign else f"{value * 1000:.0f} ms"


def number(value: float | None) -> str:
    """Return a count with separators."""
    return "–" if value is None else f"{value:,.0f}"
