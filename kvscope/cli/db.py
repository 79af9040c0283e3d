"""``kvscope db``: the store's schema and its size."""

import dataclasses

import click

from kvscope.cli.common import ago, db_option, emit_json, json_option, opened, store_url
from kvscope.clock import iso
from kvscope.config.load import default_db, make_data_directory
from kvscope.errors import SchemaError
from kvscope.store import migrate


@click.group()
def db() -> None:
    """Upgrade, check or prune the store."""


@db.command()
@db_option
@json_option
def upgrade(db: str | None, as_json: bool) -> None:
    """Bring the schema to this version's; makes the store when there is none."""
    url = db or default_db()
    make_data_directory(url)
    revision = migrate.upgrade(url)
    if as_json:
        emit_json({"revision": revision})
    else:
        click.echo(f"the store's schema is at revision {revision}")


@db.command()
@db_option
@json_option
def check(db: str | None, as_json: bool) -> int:
    """Say whether the schema is this version's; exit code 1 when it is not."""
    url = store_url(db)
    status = migrate.check(url)
    if as_json:
        emit_json({"ok": status.ok, "found": status.found, "expected": status.expected})
    elif status.ok:
        click.echo(f"the store's schema is at revision {status.found}, as this version needs")
    else:
        try:
            migrate.require(url)  # says what every other command would, older and newer apart
        except SchemaError as error:
            click.echo(str(error))
    return 0 if status.ok else 1


@db.command()
@db_option
@json_option
@click.option(
    "--older-than", metavar="AGE", default="30d", show_default=True, help="Age, such as 12h, 30d, 8w."
)
def prune(db: str | None, as_json: bool, older_than: str) -> None:
    """Remove old requests, misses, spans and samples; an agent may go on writing meanwhile.

    Suggestions, models, experiments and the requests of those that still run are kept, and so are
    requests of which no source told when they arrived.
    """
    before_at = max(0.0, ago(older_than, "--older-than"))
    with opened(db) as store:
        pruned = store.retention.prune(before_at)
    if as_json:
        emit_json({"before_at": before_at} | dataclasses.asdict(pruned))
        return
    click.echo(
        f"removed {pruned.requests:,} requests, {pruned.misses:,} misses, {pruned.spans:,} spans and"
        f" {pruned.samples:,} samples from before {iso(before_at)}"
    )
    if pruned.freed_bytes is not None:
        click.echo(_space(pruned.freed_bytes, pruned.free_bytes or 0))


def _space(freed_bytes: int, free_bytes: int) -> str:
    if freed_bytes:
        return f"the file gave back {freed_bytes / 1e6:,.1f} MB; {free_bytes / 1e6:,.1f} MB in it are free"
    return f"the file keeps its size; {free_bytes / 1e6:,.1f} MB in it are free for new rows"
