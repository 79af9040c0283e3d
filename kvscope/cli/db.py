"""``kvscope db``: the store's schema."""

import click

from kvscope.cli.common import db_option, emit_json, json_option, store_url
from kvscope.config.load import default_db, make_data_directory
from kvscope.store import migrate


@click.group()
def db() -> None:
    """Upgrade or check the store."""


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
    status = migrate.check(store_url(db))
    if as_json:
        emit_json({"ok": status.ok, "found": status.found, "expected": status.expected})
    elif status.ok:
        click.echo(f"the store's schema is at revision {status.found}, as this version needs")
    else:
        click.echo(
            f"the store's schema is at revision {status.found or 'none'}, this version needs"
            f" {status.expected}: run `kvscope db upgrade`"
        )
    return 0 if status.ok else 1
