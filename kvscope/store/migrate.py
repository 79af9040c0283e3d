"""Brings a store's schema to the revision that this version speaks, and says where it stands.

The scripts lie in ``migrations/`` in the source tree and in ``kvscope/store/migrations`` in the wheel.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

import kvscope
from kvscope.errors import SchemaError, UsageError
from kvscope.store.engines import connect
from kvscope.store.faults import translated
from kvscope.store.schema import metadata
from kvscope.store.urls import Location, locate

VERSION_TABLE = "kvscope_version"
_LOCK = 0x6B76_7363  # "kvsc": keeps two upgrades of one PostgreSQL database apart


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """The revision a store has (None: none yet) and the one this version speaks."""

    found: str | None
    expected: str
    ok: bool


def upgrade(url: str) -> str:
    """Bring the store at ``url`` to the newest revision, all steps or none, and return that revision.

    Creates a SQLite file that does not exist. Raises ``SchemaError`` when the store is newer than we are.
    """
    location = locate(url)
    scripts = _scripts()
    expected = _head(scripts)
    _refuse_missing_folder(location)
    with _migrating(location) as connection:
        found = _revision(connection)
        _refuse_unknown(location, scripts, found, expected)
        if found is None:
            _refuse_foreign_tables(location, connection)
        if found != expected:
            command.upgrade(_config(connection), "head")
    return expected


def downgrade(url: str, revision: str) -> None:
    """Take the store at ``url`` back to ``revision`` (``base``: no tables); data of newer tables is lost."""
    with _migrating(locate(url)) as connection:
        command.downgrade(_config(connection), revision)


def check(url: str) -> SchemaStatus:
    """Return where the schema at ``url`` stands, without changing or creating anything."""
    location = locate(url)
    expected = _head(_scripts())
    _refuse_missing_folder(location)
    if location.path is not None and not location.path.exists():
        return SchemaStatus(found=None, expected=expected, ok=False)
    engines = connect(location)
    try:
        with engines.reading() as connection:
            found = _revision(connection)
    finally:
        engines.close()
    return SchemaStatus(found=found, expected=expected, ok=found == expected)


def require(url: str) -> None:
    """Raise ``SchemaError``, with what to do, unless the store at ``url`` has our schema."""
    location = locate(url)
    status = check(url)
    if status.ok:
        return
    remedy = f"run `kvscope db upgrade --db {location.shown}` or start the agent"
    if location.path is not None and not location.path.exists():
        raise SchemaError(f"the store {location.shown} does not exist yet: {remedy}")
    if status.found is None:
        raise SchemaError(
            f"the store {location.shown} has no schema yet, expected revision {status.expected}: {remedy}"
        )
    _refuse_unknown(location, _scripts(), status.found, status.expected)
    raise SchemaError(
        f"the store {location.shown} is at the older revision {status.found}, "
        f"expected {status.expected}: {remedy}"
    )


@contextmanager
def _migrating(location: Location) -> Iterator[Connection]:
    """Give a connection in one transaction, alone on the store, with foreign keys off on SQLite.

    Alembic rewrites a SQLite table by copying it and dropping the old one; with foreign keys on, the drop
    would delete the rows that refer to it.
    """
    engines = connect(location)
    try:
        with translated(location), engines.writer.connect() as connection:
            if location.path is not None:
                _driver_pragma(connection, "foreign_keys=OFF")
            with connection.begin():
                if location.path is None:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
                yield connection
                if location.path is not None:
                    _refuse_broken_references(connection)
    finally:
        engines.close()


def _driver_pragma(connection: Connection, pragma: str) -> None:
    """Set a pragma outside any transaction, where alone SQLite obeys some of them."""
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _refuse_broken_references(connection: Connection) -> None:
    if broken := connection.exec_driver_sql("PRAGMA foreign_key_check").all():
        raise SchemaError(f"the migration would leave {len(broken)} rows without the row they refer to")


def _refuse_missing_folder(location: Location) -> None:
    if location.path is None:
        return
    folder = location.path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the store's folder {folder} does not exist; create it or name another with --db")
    if location.path.is_dir():
        raise UsageError(f"the store {location.path} is a folder; name a file with --db")


def _refuse_unknown(location: Location, scripts: ScriptDirectory, found: str | None, expected: str) -> None:
    if found is None or found in {script.revision for script in scripts.walk_revisions()}:
        return
    raise SchemaError(
        f"the store {location.shown} is at revision {found}, unknown to this kvscope"
        f" ({kvscope.__version__}, expected {expected}): run `pip install --upgrade kvscope`"
    )


def _refuse_foreign_tables(location: Location, connection: Connection) -> None:
    if taken := sorted(metadata.tables.keys() & set(inspect(connection).get_table_names())):
        raise SchemaError(
            f"the store {location.shown} holds tables that kvscope did not make ({', '.join(taken)}): "
            "name another database with --db"
        )


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()  # noqa: S608 - a constant
    return found


def _folder() -> Path:
    beside = Path(__file__).parent / "migrations"
    source = Path(__file__).parents[2] / "migrations"
    for folder in (beside, source):
        if (folder / "env.py").is_file():
            return folder
    raise SchemaError("the migration scripts are missing from this installation: reinstall kvscope")


def _config(connection: Connection | None = None) -> Config:
    """Return Alembic's settings; there is no file, so that nothing reconfigures logging."""
    config = Config()
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, metadata=metadata, version_table=VERSION_TABLE)
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _head(scripts: ScriptDirectory) -> str:
    head = scripts.get_current_head()
    if head is None:
        raise SchemaError("the migration scripts are missing from this installation: reinstall kvscope")
    return head
