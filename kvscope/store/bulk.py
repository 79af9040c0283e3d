"""Bulk statements: compiled once, run with tuples, and halved around rows that the database will not take."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Dialect, Insert, Table, Text, any_, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite

from kvscope.store import clean, schema
from kvscope.store.engines import COPY
from kvscope.store.faults import is_data_error
from kvscope.store.rows import Row

_WRITERS_LOCK = 0x6B76_7377  # "kvsw"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """How rows get into one table: ``copy`` is quickest and fails where one is there already."""

    insert: str
    copy: str | None


class Statements:
    """The bulk statements of one dialect as text for its driver; values are in the order of the columns."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.on_sqlite = dialect.name == "sqlite"
        self.spans = self._insert_or_ignore(schema.spans)
        self.series = self._insert_or_ignore(schema.metric_series)
        self.samples = self._insert_or_ignore(schema.metric_samples)
        self.misses = self._new(schema.misses)
        self.new_requests = self._new(schema.requests)
        self.requests = Bulk(insert=self._compile(self.upsert(schema.requests)), copy=None)
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

    def _new(self, table: Table) -> Bulk:
        """Return the statements for rows of which none is there."""
        return Bulk(insert=self._compile(self.insert(table)), copy=self._copy(table))

    def _insert_or_ignore(self, table: Table) -> Bulk:
        return Bulk(insert=self._compile(self.insert(table).on_conflict_do_nothing()), copy=self._copy(table))

    def _copy(self, table: Table) -> str | None:
        if self.on_sqlite:
            return None
        quote = self._dialect.identifier_preparer.quote
        columns = ", ".join(quote(column.name) for column in table.columns)
        return f"{COPY}{quote(table.name)} ({columns}) FROM STDIN"

    def _compile(self, insert: Any) -> str:
        columns = [column.name for column in insert.table.columns]
        compiled = insert.compile(dialect=self._dialect, column_keys=columns)
        if list(compiled.positiontup or ()) != columns:
            raise AssertionError(f"values would go to the wrong columns: {compiled.positiontup}")
        return str(compiled)


def run(connection: Connection, bulk: Bulk, rows: Sequence[Row]) -> list[Row]:
    """Put all ``rows`` into a table and return those that the database refused; the others are in.

    Raises what the driver raises when not a row but the database is at fault.
    """
    if not rows or (bulk.copy is not None and _is_done(connection, bulk.copy, rows)):
        return []
    return _inserted(connection, bulk.insert, rows)


def _inserted(connection: Connection, sql: str, rows: Sequence[Row]) -> list[Row]:
    """Insert what can be, halving around what the database refuses, and return that."""
    if _is_done(connection, sql, rows):
        return []
    if len(rows) == 1:
        return list(rows)
    middle = len(rows) // 2
    return _inserted(connection, sql, rows[:middle]) + _inserted(connection, sql, rows[middle:])


def _is_done(connection: Connection, sql: str, rows: Sequence[Row]) -> bool:
    """Run ``sql`` for all ``rows``; False, with nothing done, where a row is at fault."""
    # as text: SQLAlchemy's own savepoints are compiled anew each time
    connection.exec_driver_sql("SAVEPOINT bulk")
    try:
        connection.exec_driver_sql(sql, list(rows))
    except Exception as error:
        if not is_data_error(error):
            raise  # the whole transaction ends; on a full disk SQLite has already ended it, savepoint and all
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT bulk")
        connection.exec_driver_sql("RELEASE SAVEPOINT bulk")
        return False
    connection.exec_driver_sql("RELEASE SAVEPOINT bulk")
    return True
