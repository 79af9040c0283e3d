"""``kvscope report``: the tuning report."""

from pathlib import Path
from typing import Any

import click

from kvscope.cli.common import db_option, opened, since_at, since_option
from kvscope.clock import system_clock
from kvscope.errors import UsageError

_BY_SUFFIX = {".md": "md", ".html": "html", ".htm": "html", ".json": "json"}


@click.command()
@db_option
@since_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File; default: standard output.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "html", "json"]),
    help="Default: by the file's ending, else md.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def report(db: str | None, since: str | None, output: Path | None, form: Any, as_json: bool) -> None:
    """Write the tuning report."""
    from kvscope.reports.tuning import build_report, render

    chosen: Any = "json" if as_json else form or (_BY_SUFFIX.get(output.suffix) if output else None) or "md"
    with opened(db) as store:
        text = render(build_report(store, now=system_clock(), since_at=since_at(since)), chosen)
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    click.echo(f"wrote {output}", err=True)
