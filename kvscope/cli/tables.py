"""Tables for terminals: what does not fit is folded between words or written row by row, never cut."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from typing_extensions import override

_PROSE_FROM = 25  # characters: a longer cell with spaces in it may be folded
_PROSE_WIDTH = 20
_FRAME = 3  # a column's border and padding; one more border ends the row

Rows = Sequence[Sequence[str]]


class _Console(Console):
    @override
    def on_broken_pipe(self) -> None:
        # rich would exit with 1, which says that a check does not hold
        raise BrokenPipeError


def print_table(title: str, columns: Sequence[str], rows: Rows, *, width: int | None) -> None:
    """Print a table no wider than ``width`` columns (None: as wide as it is)."""
    natural = [max(map(_widest_line, cells)) for cells in zip(columns, *rows, strict=True)]
    needed = _framed(natural)
    console = _Console(
        width=needed if width is None else width, markup=False, emoji=False, highlight=False, soft_wrap=False
    )
    if width is None or needed <= width:
        console.print(_table(title, columns, rows, [None] * len(columns)))
        return
    rigid = [_rigid(header, cells) for header, *cells in zip(columns, *rows, strict=True)]
    if _framed([each or _PROSE_WIDTH for each in rigid]) <= width:
        console.print(_table(title, columns, rows, rigid))
        return
    console.print(title, style="italic")
    label = max(map(cell_len, columns))
    for row in rows:
        console.print()
        for column, cell in zip(columns, row, strict=True):
            # a terminal wraps a line that is too long; a break of ours would be copied along with an id
            console.print(f"  {column + ':':<{label + 1}} {cell}", soft_wrap=True)
    console.print()


def _table(title: str, columns: Sequence[str], rows: Rows, widths: Sequence[int | None]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column, width=width, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _rigid(header: str, cells: Sequence[str]) -> int | None:
    """Return the width that a column must have, or None where its cells can be folded between words."""
    if any(_widest_line(cell) >= _PROSE_FROM and _longest_word(cell) <= _PROSE_WIDTH for cell in cells):
        return None
    return max(_longest_word(header), *map(_widest_line, cells))


def _framed(widths: Sequence[int]) -> int:
    return sum(widths) + _FRAME * len(widths) + 1


def _widest_line(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
