"""PostgreSQL's partitions: spans and samples lie by day of UTC, so that old days leave in one step.

Partitions are made ahead. What belongs to no day that has one (clocks that are wrong, logs of long ago, a day
before its partition) lies in the default partition, and moves when its day's is made. SQLite has none.
"""

import datetime as dt
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from sqlalchemy import Connection, MetaData, Table, func, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError

from kvscope.errors import UnreachableError
from kvscope.store import schema
from kvscope.store.engines import Engines

DAY = 86_400.0
_AHEAD_DAYS = 3
_EPOCH = dt.date(1970, 1, 1)
_LOCK_TIMEOUT = "1s"  # a longer wait would hold up the writer behind us; there is a next time
_LOCK_NOT_AVAILABLE = "55P03"
_TIMES = {schema.spans: "start_at", schema.metric_samples: "at"}

Kept = Mapping[int, Iterable[float]]
"""The times of a series' samples that stay."""

_Result = TypeVar("_Result")


def loose(engines: Engines, table: Table) -> Table:
    """Return where the rows lie that are removed one by one: on PostgreSQL those of no day's partition."""
    return table if _has_none(engines) else _named(table, f"{table.name}_default")


class Partitions:
    """Makes the partitions of the days to come and drops those of days gone by.

    Its methods raise ``UnreachableError`` when the database is away.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._made_until = 0

    def make_ahead(self, now: float) -> list[str]:
        """Make the partitions of today and of the next days; return the names of the new ones.

        Where others hold a lock on a table for long, its partitions are left to the next call.
        """
        today = math.floor(now / DAY)
        if _has_none(self._engines) or today + _AHEAD_DAYS <= self._made_until:
            return []
        wanted = [(table, day) for table in _TIMES for day in range(today, today + _AHEAD_DAYS + 1)]
        known = self._names()
        missing = [one for one in wanted if _name(*one) not in known]
        made = [one for one in missing if self._soon(functools.partial(_make, table=one[0], day=one[1]))]
        if made == missing:
            self._made_until = today + _AHEAD_DAYS
        return [_name(*one) for one in made]

    def drop(self, table: Table, before_at: float, kept: Kept | None = None) -> int:
        """Drop the days of ``table`` that are over at ``before_at``; return how many rows went.

        The samples in ``kept`` move to the default partition.
        """
        if _has_none(self._engines):
            return 0
        begin = f"{table.name}_"
        dates = (name.removeprefix(begin) for name in self._names() if name.startswith(begin))
        days = sorted(_day(date) for date in dates if date.isdecimal())
        gone = [
            self._soon(functools.partial(_drop, table=table, day=day, kept=kept or {}))
            for day in days
            if (day + 1) * DAY <= before_at
        ]
        return sum(rows for rows in gone if rows is not None)

    def _names(self) -> frozenset[str]:
        with self._engines.reading() as connection:
            return frozenset(inspect(connection).get_table_names())

    def _soon(self, act: Callable[[Connection], _Result]) -> _Result | None:
        """Do ``act`` in a transaction of its own, or nothing where others hold its locks for long."""
        try:
            with self._engines.writing() as connection:
                connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
                # what a partition's foreign key locks; first, as whoever writes samples does
                connection.execute(text("LOCK TABLE metric_series IN SHARE ROW EXCLUSIVE MODE"))
                return act(connection)
        except UnreachableError as error:
            cause = error.__cause__
            if isinstance(cause, DBAPIError) and getattr(cause.orig, "sqlstate", "") == _LOCK_NOT_AVAILABLE:
                return None
            raise


def _has_none(engines: Engines) -> bool:
    return engines.location.path is not None


def _named(table: Table, name: str) -> Table:
    return table.to_metadata(MetaData(), name=name)


def _name(table: Table, day: int) -> str:
    return f"{table.name}_{_EPOCH + dt.timedelta(days=day):%Y%m%d}"


def _day(date: str) -> int:
    return (dt.datetime.strptime(date, "%Y%m%d").date() - _EPOCH).days  # noqa: DTZ007 - a date alone


def _make(connection: Connection, table: Table, day: int) -> bool:
    """Make the partition of ``day``, with the rows of that day that lie in the default one."""
    name, default = _name(table, day), f"{table.name}_default"
    at, begin, end = _TIMES[table], day * DAY, (day + 1) * DAY
    taken = f"DELETE FROM {default} WHERE {at} >= {begin} AND {at} < {end} RETURNING *"  # noqa: S608 - as below
    for statement in (
        f"CREATE TABLE {name} (LIKE {table.name})",
        f"LOCK TABLE {default} IN ACCESS EXCLUSIVE MODE",
        f"WITH taken AS ({taken}) INSERT INTO {name} SELECT * FROM taken",  # noqa: S608 - names of ours
        f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES FROM ({begin}) TO ({end})",
    ):
        connection.exec_driver_sql(statement)
    return True


def _drop(connection: Connection, table: Table, day: int, kept: Kept) -> int:
    partition = _named(table, _name(table, day))
    rows = int(connection.execute(select(func.count()).select_from(partition)).scalar_one())
    staying = []
    for series_id, times in kept.items():
        if within := [at for at in times if day * DAY <= at < (day + 1) * DAY]:
            of = select(partition).where(partition.c.series_id == series_id, partition.c.at.in_(within))
            staying += [dict(row) for row in connection.execute(of).mappings()]
    connection.exec_driver_sql(f"ALTER TABLE {table.name} DETACH PARTITION {partition.name}")
    connection.exec_driver_sql(f"DROP TABLE {partition.name}")
    if staying:
        connection.execute(insert(table), staying)
    return rows - len(staying)
