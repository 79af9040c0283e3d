"""What commands that read logs say of lines that they left out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvscope.analysis.formats.records import BadLine

_SHOWN = 5


def skipped_json(skipped: "Sequence[BadLine]") -> list[dict[str, Any]]:
    """Return left-out lines as JSON shows them."""
    return [{"file": each.file, "line": each.line, "reason": each.reason} for each in skipped]


def show_skipped(skipped: "Sequence[BadLine]") -> None:
    """Say on standard error what was left out, the first lines in full."""
    for each in skipped[:_SHOWN]:
        click.echo(f"skipped {each.origin}: {each.reason}", err=True)
    if len(skipped) > _SHOWN:
        click.echo(f"skipped {len(skipped) - _SHOWN:,} more lines", err=True)
