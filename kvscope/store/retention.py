"""Removes what is old, in transactions of milliseconds with pauses between them, so that writers go on.

Suggestions, models, policies and experiments are never removed, nor are requests of an experiment that has
not ended: its verdict needs all of them. What an engine's counters are compared with survives: of its samples
those at which the counting began, of its requests a sum.
"""

import dataclasses
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, func, or_, select, tuple_

from kvscope.store import counters, minutes, schema
from kvscope.store.bulk import Statements
from kvscope.store.comparison import reached
from kvscope.store.engines import Engines
from kvscope.store.partitions import Partitions, loose

_ROWS = 500
_PAGES = 256  # a step of incremental vacuum: 1 MB
_FREE_SHARE = 0.1  # below it, new rows soon fill what is free
_INCREMENTAL = 2  # what `PRAGMA auto_vacuum` calls it

_R = schema.requests.c
_M = schema.misses.c
_V = schema.metric_samples.c
_P = schema.pruned_requests.c


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What one call removed.

    Of SQLite also the bytes that its file gave back, and those that are free in it for new rows.
    """

    requests: int
    misses: int
    spans: int
    samples: int
    freed_bytes: int | None
    free_bytes: int | None


class Retention:
    """Removes old requests, misses, spans and samples.

    ``prune`` raises ``UnreachableError`` when the database is away; what was removed before stays so.
    """

    def __init__(self, engines: Engines, *, rows: int = _ROWS) -> None:
        self._engines = engines
        self._statements = Statements(engines.writer.dialect)
        self._partitions = Partitions(engines)
        self._rows = rows

    def prune(self, before_at: float, *, stop: Callable[[], bool] = lambda: False) -> Pruned:
        """Remove what is older than ``before_at``; ``stop`` is asked between transactions.

        The engines' counters, and the sums of cached tokens that they are compared with, stay as they were,
        but for engines of which no sample is younger: these are forgotten.
        """
        with self._engines.reading() as connection:
            beginnings = counters.beginnings(connection)
            alive = _heard_since(connection, before_at)
        steps = _Steps(
            before_at=before_at,
            rows=self._rows,
            statements=self._statements,
            loose_spans=loose(self._engines, schema.spans),
            loose_samples=loose(self._engines, schema.metric_samples),
        )
        firsts = {
            engine: min(first for _, first in pairs)
            for engine, pairs in beginnings.items()
            if engine in alive
        }
        requests, misses = self._repeat(lambda c: steps.requests(c, firsts), stop)
        spans = self._partitions.drop(schema.spans, before_at)
        spans += self._repeat(steps.spans, stop)[0]
        baselines = {engine: sorted({at for at, _ in pairs}) for engine, pairs in beginnings.items()}
        samples = self._prune_samples(steps, alive, baselines, stop)
        self._forget_sums(alive, before_at)
        freed, free = self._shrink(stop)
        return Pruned(
            requests=requests,
            misses=misses,
            spans=spans,
            samples=samples,
            freed_bytes=freed,
            free_bytes=free,
        )

    def _repeat(
        self, step: Callable[[Connection], tuple[int, int] | None], stop: Callable[[], bool]
    ) -> tuple[int, int]:
        """Run ``step``, each time in a transaction of its own, until it finds nothing; return its sums."""
        first = second = 0
        while not stop():
            began = time.monotonic()
            with self._engines.writing() as connection:
                found = step(connection)
            if found is None:
                break
            first, second = first + found[0], second + found[1]
            # as long as it held the lock, so that others have it at least half of the time
            time.sleep(time.monotonic() - began)
        return first, second

    def _prune_samples(
        self,
        steps: "_Steps",
        alive: frozenset[str],
        baselines: Mapping[str, Sequence[float]],
        stop: Callable[[], bool],
    ) -> int:
        with self._engines.reading() as connection:
            series = connection.execute(
                select(schema.metric_series.c.id, schema.metric_series.c.engine).where(
                    select(_V.at)
                    .where(_V.series_id == schema.metric_series.c.id, _V.at < steps.before_at)
                    .correlate(schema.metric_series)
                    .exists()
                )
            ).all()
            kept = {
                one.id: _kept_samples(connection, one.id, baselines.get(one.engine, ()))
                if one.engine in alive
                else frozenset[float]()
                for one in series
            }
        removed = self._partitions.drop(schema.metric_samples, steps.before_at, kept)
        for one in series:
            pruning = _SeriesStep(steps, one.id, kept[one.id])
            removed += self._repeat(pruning, stop)[0]
        return removed

    def _forget_sums(self, alive: Iterable[str], before_at: float) -> None:
        gone = delete(schema.pruned_requests).where(_P.engine.not_in(list(alive)), _P.last_at < before_at)
        with self._engines.writing() as connection:
            connection.execute(gone)

    def _shrink(self, stop: Callable[[], bool]) -> tuple[int | None, int | None]:
        """Give free pages of a SQLite file back, where it was made for that and they are many."""
        if not self._statements.on_sqlite:
            return None, None
        with self._engines.writing() as connection:
            size, pages = _pragma(connection, "page_size"), _pragma(connection, "page_count")
            free = _pragma(connection, "freelist_count")
            able = _pragma(connection, "auto_vacuum") == _INCREMENTAL
        before = pages
        if able and free > pages * _FREE_SHARE:
            self._repeat(_vacuum, stop)
            with self._engines.writing() as connection:
                pages, free = _pragma(connection, "page_count"), _pragma(connection, "freelist_count")
        return max(0, before - pages) * size, free * size


@dataclasses.dataclass(slots=True, kw_only=True)
class _Steps:
    """The transactions of one call; each removes the oldest rows of a table and returns how many."""

    before_at: float
    rows: int
    statements: Statements
    loose_spans: Table
    loose_samples: Table
    reached_at: float = float("-inf")  # requests of running experiments before it are passed over

    def requests(self, connection: Connection, firsts: Mapping[str, float]) -> tuple[int, int] | None:
        """Remove requests and their misses, adding to the sums of the engines in ``firsts``."""
        self.statements.lock_requests(connection)
        running = select(schema.experiments.c.id).where(schema.experiments.c.ended_at.is_(None))
        oldest = (
            select(_R.request_id, _R.engine, _R.arrived_at, _R.cached_tokens, reached(_R).label("reached"))
            .where(
                _R.arrived_at >= self.reached_at,
                _R.arrived_at < self.before_at,
                or_(_R.experiment.is_(None), _R.experiment.not_in(running)),
            )
            .order_by(_R.arrived_at)
            .limit(self.rows)
        )
        found = connection.execute(oldest).all()
        if not found:
            return None
        self.reached_at = found[-1].arrived_at
        ids = [row.request_id for row in found]
        missed = connection.execute(
            delete(schema.misses).where(self.statements.among(_M.request_id, ids))
        ).rowcount
        for table in (schema.prompt_blocks, schema.requests):
            connection.execute(delete(table).where(self.statements.among(table.c.request_id, ids)))
        minutes.mark(connection, self.statements, [row.arrived_at for row in found])
        for engine, first_at in firsts.items():
            counted = [
                row for row in found if row.engine == engine and row.arrived_at >= first_at and row.reached
            ]
            if counted:
                self._add_to_sum(connection, engine, first_at, counted)
        return len(ids), missed

    def _add_to_sum(self, connection: Connection, engine: str, first_at: float, rows: Sequence[Any]) -> None:
        known = connection.execute(select(schema.pruned_requests).where(_P.engine == engine)).one_or_none()
        if known is not None and known.last_at < first_at:
            known = None  # of the engine's life before it restarted
        row = {
            "engine": engine,
            "first_at": min(rows[0].arrived_at, known.first_at if known else rows[0].arrived_at),
            "last_at": max(rows[-1].arrived_at, known.last_at if known else rows[-1].arrived_at),
            "requests": len(rows) + (known.requests if known else 0),
            "cached_tokens": sum(row.cached_tokens or 0 for row in rows)
            + (known.cached_tokens if known else 0),
            "unknown_requests": sum(row.cached_tokens is None for row in rows)
            + (known.unknown_requests if known else 0),
        }
        connection.execute(self.statements.upsert(schema.pruned_requests), [row])

    def spans(self, connection: Connection) -> tuple[int, int] | None:
        """Remove spans."""
        s = self.loose_spans.c
        oldest = (
            select(s.trace_id, s.span_id)
            .where(s.start_at < self.before_at)
            .order_by(s.start_at)
            .limit(self.rows)
        )
        gone = delete(self.loose_spans).where(
            tuple_(s.trace_id, s.span_id).in_(oldest), s.start_at < self.before_at
        )
        removed = connection.execute(gone).rowcount
        return (removed, 0) if removed else None


class _SeriesStep:
    """Removes the oldest samples of one series, but for those at the times in ``kept``."""

    def __init__(self, steps: _Steps, series_id: int, kept: frozenset[float]) -> None:
        self._steps = steps
        self._series_id = series_id
        self._kept = kept
        self._reached_at = float("-inf")

    def __call__(self, connection: Connection) -> tuple[int, int] | None:
        v = self._steps.loose_samples.c
        this: ColumnElement[bool] = v.series_id == self._series_id
        oldest = (
            select(v.at)
            .where(this, v.at > self._reached_at, v.at < self._steps.before_at)
            .order_by(v.at)
            .limit(self._steps.rows)
            .subquery()
        )
        last_at = connection.execute(select(func.max(oldest.c.at))).scalar()
        if last_at is None:
            return None
        gone = delete(self._steps.loose_samples).where(
            this, v.at > self._reached_at, v.at <= last_at, v.at.not_in(tuple(self._kept))
        )
        removed = connection.execute(gone).rowcount
        self._reached_at = last_at
        return removed, 0


def pruned_between(connection: Connection, engine: str, first_at: float, last_at: float) -> tuple[int, int]:
    """Return the cached tokens of removed requests within the times, and how many of them are unknown.

    Where the sum reaches over an end of the times, all of its requests are unknown.
    """
    row = connection.execute(select(schema.pruned_requests).where(_P.engine == engine)).one_or_none()
    if row is None or row.last_at < first_at or row.first_at > last_at:
        return 0, 0
    if first_at <= row.first_at and row.last_at <= last_at:
        return int(row.cached_tokens), int(row.unknown_requests)
    return 0, int(row.requests)


def _heard_since(connection: Connection, at: float) -> frozenset[str]:
    """Return the engines that have a sample from ``at`` on."""
    series = schema.metric_series.c
    younger = (
        select(_V.at).where(_V.series_id == series.id, _V.at >= at).correlate(schema.metric_series).exists()
    )
    return frozenset(connection.execute(select(series.engine).distinct().where(younger)).scalars())


def _kept_samples(connection: Connection, series_id: int, baselines: Sequence[float]) -> frozenset[float]:
    """Return the times of the samples that ``counters.beginnings`` calls sufficient."""
    this = _V.series_id == series_id
    queries = [select(func.max(_V.at)).where(this)]
    for at in baselines:
        queries += [
            select(func.max(_V.at)).where(this, _V.at < at),
            select(func.min(_V.at)).where(this, _V.at >= at),
        ]
    found = (connection.execute(query).scalar() for query in queries)
    return frozenset(at for at in found if at is not None)


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def _vacuum(connection: Connection) -> tuple[int, int] | None:
    """Take some free pages off the end of the file."""
    before = _pragma(connection, "freelist_count")
    # a script: the pragma frees a page with each step, and the driver's other calls take one step
    cursor: sqlite3.Cursor = connection.connection.cursor()  # type: ignore[assignment]
    try:
        cursor.executescript(f"PRAGMA incremental_vacuum({_PAGES})")
    except sqlite3.Error:
        return None  # another process is writing: the space is free for new rows, and there is a next time
    finally:
        cursor.close()
    freed = before - _pragma(connection, "freelist_count")
    return (freed, 0) if freed > 0 else None
