"""Migrations: one line of them, each up, down and up again with rows in the tables; equal to the models."""

import difflib
import logging
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, insert, inspect, select, text

from kvscope.errors import SchemaError
from kvscope.store import migrate, schema
from kvscope.store.database import open_store
from kvscope.store.engines import connect
from kvscope.store.urls import locate

DATA = Path(__file__).parents[2] / "data" / "schema"
HEAD = "0009"
FOLLOWING = "9000"

NEXT = '''"""A step that rewrites a table that others refer to."""

import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "HEAD"


def upgrade() -> None:
    with op.batch_alter_table("experiments") as table:
        table.add_column(sa.Column("note", sa.Text(), nullable=False, server_default=""))
        table.alter_column("route", new_column_name="path", existing_type=sa.Text())


def downgrade() -> None:
    with op.batch_alter_table("experiments") as table:
        table.alter_column("path", new_column_name="route", existing_type=sa.Text())
        table.drop_column("note")
'''.replace("HEAD", HEAD)


@pytest.fixture
def next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Pretend that there is one more migration; gives its revision."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrate._folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9000_next.py").write_text(NEXT)
    monkeypatch.setattr(migrate, "_folder", lambda: folder)
    return FOLLOWING


def sample_value(column: Any) -> Any:
    if isinstance(column.type, schema.StoredText):
        return f"a {column.name}"
    kind = column.type.python_type
    return [{"of": column.name}] if kind is object else kind(1)


def fill(url: str) -> dict[str, list[Any]]:
    """Put one row with a value in every column into every table; return what is then in them."""
    engines = connect(locate(url))
    with engines.writing() as connection:
        for table in schema.metadata.sorted_tables:
            row = {column.name: sample_value(column) for column in table.columns}
            for key in table.foreign_keys:
                row[key.parent.name] = sample_value(key.column)
            connection.execute(insert(table), [row])
    engines.close()
    return rows_of(url)


def rows_of(url: str) -> dict[str, list[Any]]:
    engines = connect(locate(url))
    with engines.reading() as connection:
        found = {
            table.name: list(connection.execute(select(table)).all())
            for table in schema.metadata.sorted_tables
        }
    engines.close()
    return found


def tables_of(url: str) -> set[str]:
    engines = connect(locate(url))
    with engines.reading() as connection:
        found = set(inspect(connection).get_table_names())
    engines.close()
    return found


def set_revision(url: str, revision: str) -> None:
    engines = connect(locate(url))
    with engines.writing() as connection:
        connection.execute(text("UPDATE kvscope_version SET version_num = :to"), {"to": revision})
    engines.close()


def test_the_migrations_form_one_line_with_one_head() -> None:
    scripts = migrate._scripts()
    assert scripts.get_heads() == [HEAD]
    assert scripts.get_bases() == ["0001"]
    steps = list(scripts.walk_revisions())
    assert all(not step.is_merge_point and not step.is_branch_point for step in steps)


def test_no_migration_imports_kvscope() -> None:
    scripts = list((migrate._folder() / "versions").glob("*.py"))
    assert scripts
    assert [script.name for script in scripts if "kvscope" in script.read_text()] == []


def test_up_down_up(database_url: str) -> None:
    assert migrate.upgrade(database_url) == HEAD
    rows = fill(database_url)
    assert all(len(found) == 1 for found in rows.values())
    assert migrate.upgrade(database_url) == HEAD
    assert rows_of(database_url) == rows
    migrate.downgrade(database_url, "base")
    assert tables_of(database_url) == {"kvscope_version"}
    assert migrate.upgrade(database_url) == HEAD
    assert all(found == [] for found in rows_of(database_url).values())
    assert fill(database_url) == rows


def test_a_step_that_rewrites_a_parent_table_keeps_its_children(
    database_url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    migrate.upgrade(database_url)
    rows = fill(database_url)
    following = request.getfixturevalue("next_step")
    with pytest.raises(
        SchemaError,
        match=rf"is at the older revision {HEAD}, expected {FOLLOWING}: run `kvscope db upgrade",
    ):
        open_store(database_url)
    assert migrate.upgrade(database_url) == following
    migrate.downgrade(database_url, HEAD)
    monkeypatch.undo()
    assert rows_of(database_url) == rows
    assert migrate.check(database_url).ok


def test_a_step_that_fails_leaves_everything_as_it_was(database_url: str, next_step: str) -> None:
    broken = migrate._folder() / "versions" / "9000_next.py"
    broken.write_text(
        NEXT.replace('        table.drop_column("note")\n', "").replace(
            "def downgrade", '    raise RuntimeError(f"step {revision} fails")\n\n\ndef downgrade'
        )
    )
    with pytest.raises(RuntimeError, match=f"step {next_step} fails"):
        migrate.upgrade(database_url)
    assert tables_of(database_url) == set()


def test_the_models_equal_the_migrations(database_url: str) -> None:
    migrate.upgrade(database_url)
    options = {
        "compare_type": True,
        "compare_server_default": True,
        "version_table": migrate.VERSION_TABLE,
        "include_name": lambda name, kind, _: kind != "table" or not name.endswith("_default"),
    }
    engines = connect(locate(database_url))
    with engines.reading() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []
    engines.close()


def dump_sqlite(connection: Connection) -> str:
    query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY tbl_name, type DESC, name"
    return "\n\n".join(connection.execute(text(query)).scalars()) + "\n"


def dump_postgresql(connection: Connection) -> str:
    columns = """
        SELECT format('%s.%s %s%s%s', table_name, column_name, data_type,
                      CASE is_nullable WHEN 'NO' THEN ' not null' ELSE '' END, ' default ' || column_default)
        FROM information_schema.columns WHERE table_schema = 'public' ORDER BY table_name, ordinal_position"""
    constraints = """
        SELECT format('%s: %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
        ORDER BY conrelid::regclass::text, conname"""
    partitions = """
        SELECT format(
            '%s: %s', oid::regclass, coalesce(pg_get_partkeydef(oid), pg_get_expr(relpartbound, oid))
        )
        FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
        AND (relkind = 'p' OR relispartition) ORDER BY relname"""
    indices = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY tablename, indexname"
    parts = [
        connection.execute(text(query)).scalars().all()
        for query in (columns, constraints, partitions, indices)
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def test_the_schema_is_as_written_down(database_url: str) -> None:
    """A change of the tables shows in review; the failure prints the command that takes it over."""
    migrate.upgrade(database_url)
    engines = connect(locate(database_url))
    dialect = engines.writer.dialect.name
    with engines.reading() as connection:
        found = dump_sqlite(connection) if dialect == "sqlite" else dump_postgresql(connection)
    engines.close()
    golden = DATA / f"{dialect}.txt"
    if os.environ.get("KVSCOPE_UPDATE_GOLDEN"):
        golden.write_text(found)
    difference = "".join(
        difflib.unified_diff(
            golden.read_text().splitlines(keepends=True),
            found.splitlines(keepends=True),
            "written down",
            "found",
        )
    )
    assert not difference, (
        f"{difference}\nKVSCOPE_UPDATE_GOLDEN=1 pytest {Path(__file__).name} -k written_down"
    )


def test_check_says_where_a_store_stands(database_url: str) -> None:
    before = migrate.check(database_url)
    assert (before.found, before.expected, before.ok) == (None, HEAD, False)
    migrate.upgrade(database_url)
    assert migrate.check(database_url) == migrate.SchemaStatus(found=HEAD, expected=HEAD, ok=True)
    set_revision(database_url, "9999")
    assert migrate.check(database_url) == migrate.SchemaStatus(found="9999", expected=HEAD, ok=False)


def test_a_newer_schema_is_refused_in_one_line(database_url: str) -> None:
    migrate.upgrade(database_url)
    set_revision(database_url, "9999")
    for upgrade in (False, True):
        with pytest.raises(SchemaError) as refused:
            open_store(database_url, upgrade=upgrade)
        message = str(refused.value)
        assert "is at revision 9999, unknown to this kvscope" in message
        assert f"expected {HEAD}): run `pip install --upgrade kvscope`" in message
        assert "\n" not in message


def test_a_database_without_our_tables_is_refused_until_upgraded(database_url: str) -> None:
    location = locate(database_url)
    if location.path is not None:
        sqlite3.connect(location.path).execute("CREATE TABLE mine (x)").connection.close()
    with pytest.raises(
        SchemaError, match=rf"has no schema yet, expected revision {HEAD}: run `kvscope db upgrade"
    ):
        open_store(database_url)
    open_store(database_url, upgrade=True).close()
    assert migrate.check(database_url).ok


def test_tables_of_another_program_are_not_touched(database_url: str) -> None:
    engines = connect(locate(database_url))
    with engines.writing() as connection:
        connection.execute(text("CREATE TABLE requests (theirs TEXT)"))
    engines.close()
    with pytest.raises(SchemaError, match=r"holds tables that kvscope did not make \(requests\)"):
        open_store(database_url, upgrade=True)
    assert tables_of(database_url) == {"requests"}


def test_a_migration_leaves_logging_alone(database_url: str) -> None:
    logger = logging.getLogger("kvscope.tests.migrations")
    before = (logging.root.level, list(logging.root.handlers))
    migrate.upgrade(database_url)
    assert (logging.root.level, list(logging.root.handlers)) == before
    assert not logger.disabled
