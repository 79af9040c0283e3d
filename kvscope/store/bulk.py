"""Bulk statements: compiled once, run with tuples, and halved around rows that the database will not take."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Dialect, Insert, Table, Text, any_, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite

from kvscope.store import clean, schema
from kvscope.store.faults import is_data_error
from kvscope.store.rows import Row

_WRITERS_LOCK = 0x6B76_7377  # "kvsw"


class Statements:
    """The bulk statements of one dialect as text for its driver; values are in the order of the columns."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.on_sqlite = dialect.name == "sqlite"
        self.spans = self._insert_or_ignore(schema.spans)
        self.series = self._insert_or_ignore(schema.metric_series)
        self.samples = self._insert_or_ignore(schema.metric_samples)
        self.misses = self._compile(self.insert(schema.misses))
        self.new_requests = self._compile(self.insert(schema.requests))
        self.requests = self._compile(self.upsert(schema.requests))
        self.changes = self._compile(self.upsert(schema.rollup_changes))

    def insert(self, table: Table) -> Any:
        """Return the dialect's own insert, which knows conflicts."""
        return sqlite.insert(table) if self.on_sqlite else postgresql.insert(table)

    def upsert(self, table: Table, *, keep: frozenset[str] = frozenset()) -> Insert:
        """Return an insert that replaces the row of the same key, but for the columns in ``keep``."""
        insert = self.insert(table)
        keys = [column.name for column in table.primary_key.columns]
        changed = {
            column.name: insert.excluded[column.name]
            for column in table.columns
            if column.name not in keys and column.name not in keep
        }
        statement: Insert = insert.on_conflict_do_update(index_elements=keys, set_=changed)
        return statement

    def among(self, column: ColumnElement[str], ids: Sequence[str]) -> ColumnElement[bool]:
        """Return the condition that ``column`` is one of ``ids``, which are bound as one value."""
        if self.on_sqlite:
            listed = func.json_each(clean.json_text(ids)).table_valued("value")
            return column.in_(select(listed.c.value))
        return column == any_(literal(list(ids), postgresql.ARRAY(Text)))

    def lock_requests(self, connection: Connection) -> None:
        """Keep others from reading requests to change them until the transaction ends.

        Two agents on one PostgreSQL must not merge the same request at once; SQLite has one writer anyway.
        """
        if not self.on_sqlite:
            connection.execute(select(func.pg_advisory_xact_lock(_WRITERS_LOCK)))

    def _insert_or_ignore(self, table: Table) -> str:
        return self._compile(self.insert(table).on_conflict_do_nothing())

    def _compile(self, insert: Any) -> str:
        columns = [column.name for column in insert.table.columns]
        compiled = insert.compile(dialect=self._dialect, column_keys=columns)
        if list(compiled.positiontup or ()) != columns:
            raise AssertionError(f"values would go to the wrong columns: {compiled.positiontup}")
        return str(compiled)


def run(connection: Connection, sql: str, rows: Sequence[Row]) -> list[Row]:
    """Run ``sql`` for all ``rows`` and return those that the database refused; the others are done.

    Raises what the driver raises when not a row but the database is at fault.
    """
    if not rows:
        return []
    savepoint = connection.begin_nested()
    try:
        connection.exec_driver_sql(sql, list(rows))
    except Exception as error:
        if not is_data_error(error):
            raise  # the whole transaction ends; on a full disk SQLite has already ended it, savepoint and all
        savepoint.rollback()
    else:
        savepoint.commit()
        return []
    if len(rows) == 1:
        return list(rows)
    middle = len(rows) // 2
    return run(connection, sql, rows[:middle]) + run(connection, sql, rows[middle:])
