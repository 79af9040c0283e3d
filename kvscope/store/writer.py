"""Writes batches in one transaction each call; what is written twice changes nothing."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection, delete, select

from kvscope.errors import KvscopeError
from kvscope.model.merge import Join
from kvscope.model.request import Miss, RequestPart
from kvscope.model.telemetry import MetricSample, Span
from kvscope.pipeline.contracts import Batch
from kvscope.store import bulk, clean, minutes, rows, schema
from kvscope.store.engines import Engines

_LOG = logging.getLogger(__name__)

Conflict = tuple[str, str, str]
"""A field, the source whose value was taken, and the one that told another."""
OnConflict = Callable[[Conflict, int], None]
"""Hears of new conflicts after the commit, and of how many requests."""


class SqlBatchStore:
    """The store as the pipeline's writer sees it."""

    def __init__(self, engines: Engines, on_conflict: OnConflict | None = None) -> None:
        self._engines = engines
        self._on_conflict = on_conflict
        self._statements = bulk.Statements(engines.writer.dialect)
        self._known_series: frozenset[int] = frozenset()

    def write(self, batches: Sequence[Batch]) -> int:
        """Write and commit ``batches``; return how many items were refused, wholly or in part.

        A row that the database will not take is left out and counted; the others are written. A batch that
        breaks our own code is refused whole. Raises ``UnreachableError`` when the database is at fault; then
        the same batches may be written again.
        """
        try:
            return self._write(batches)
        except KvscopeError:
            raise
        except Exception:  # noqa: BLE001 - whatever our own code trips over, the other batches are written
            if len(batches) > 1:
                return sum(self.write([batch]) for batch in batches)
            # trying again would fail again and hold up everything behind it
            _LOG.exception("a batch of %d items was refused", len(batches[0]))
            return len(batches[0])

    def _write(self, batches: Sequence[Batch]) -> int:
        work = _Work(self._statements, self._known_series)
        for batch in batches:
            work.add(batch)
        with self._engines.writing() as connection:
            work.run(connection)
        # only now: a series of a transaction that was rolled back does not exist
        self._known_series |= work.series.keys()
        if self._on_conflict is not None:
            for conflict, requests in work.conflicts.items():
                self._on_conflict(conflict, requests)
        return work.refused


class _Work:
    """What one call of ``write`` has to do, as rows, and how many items were refused."""

    def __init__(self, statements: bulk.Statements, known_series: frozenset[int]) -> None:
        self._statements = statements
        self._known_series = known_series
        self._parts: dict[str, list[RequestPart]] = {}
        self._spans: list[rows.Row] = []
        self._samples: list[rows.Row] = []
        self._misses: dict[str, list[rows.Row]] = {}
        self.series: dict[int, rows.Row] = {}
        self.refused = 0
        self.conflicts: Counter[Conflict] = Counter()

    def add(self, batch: Batch) -> None:
        """Turn the items of ``batch`` into rows; counts those that no database could hold."""
        for part in batch.parts:
            self._add_part(part)
        for span in batch.spans:
            self._add_span(span)
        for sample in batch.samples:
            self._add_sample(sample)
        if batch.misses:
            self._add_misses(batch.misses)

    def _add_part(self, part: RequestPart) -> None:
        try:
            cleaned, whole = rows.clean_part(part)
        except clean.UnfitError:
            self.refused += 1
            return
        self.refused += not whole
        self._parts.setdefault(cleaned.request_id, []).append(cleaned)

    def _add_span(self, span: Span) -> None:
        try:
            self._spans.append(rows.span_row(span))
        except clean.UnfitError:
            self.refused += 1

    def _add_sample(self, sample: MetricSample) -> None:
        try:
            series, row = rows.sample_rows(sample)
        except clean.UnfitError:
            self.refused += 1
            return
        self._samples.append(row)
        if series[0] not in self._known_series:
            self.series[series[0]] = series

    def _add_misses(self, misses: Sequence[Miss]) -> None:
        """A batch holds all misses of a request that it names; the set offered last counts."""
        sets: dict[str, dict[rows.Row, rows.Row]] = {}
        for miss in misses:
            try:
                row = rows.miss_row(miss)
            except clean.UnfitError:
                self.refused += 1
                continue
            sets.setdefault(row[0], {})[rows.miss_place(row)] = row
        self._misses.update((request_id, list(places.values())) for request_id, places in sets.items())

    def run(self, connection: Connection) -> None:
        """Write everything within the connection's transaction."""
        if self._parts or self._misses:
            self._statements.lock_requests(connection)
        self.refused += len(bulk.run(connection, self._statements.spans, self._spans))
        bulk.run(connection, self._statements.series, list(self.series.values()))
        self.refused += len(bulk.run(connection, self._statements.samples, self._samples))
        self._run_parts(connection)
        self._run_misses(connection)

    def _run_parts(self, connection: Connection) -> None:
        if not self._parts:
            return
        known = self._known_requests(connection)
        new: list[rows.Row] = []
        changed: list[rows.Row] = []
        arrivals: set[float | None] = set()
        for request_id, parts in self._parts.items():
            before = known.get(request_id)
            into = new if before is None else changed
            join = Join(request_id) if before is None else before
            arrived_at, conflicts = join.values.get("arrived_at"), dict(join.conflicts)
            grown = [join.add(part) for part in parts]
            if before is None or any(grown):
                into.append(rows.request_row(join))
                arrivals.add(arrived_at)
                arrivals.add(join.values.get("arrived_at"))
                if join.conflicts:
                    self._count_conflicts(join, conflicts)
        minutes.mark(connection, self._statements, arrivals)
        refused = bulk.run(connection, self._statements.new_requests, new)
        refused += bulk.run(connection, self._statements.requests, changed)
        self.refused += sum(len(self._parts[row[0]]) for row in refused)

    def _count_conflicts(self, join: Join, before: Mapping[str, str]) -> None:
        for field, doubter in join.conflicts.items():
            teller = join.sources[field]
            if doubter not in (teller, before.get(field)):
                self.conflicts[field, teller, doubter] += 1

    def _known_requests(self, connection: Connection) -> dict[str, Join]:
        column = schema.requests.c.request_id
        found = connection.execute(
            select(schema.requests).where(self._statements.among(column, list(self._parts)))
        )
        return {row.request_id: rows.request_join(row) for row in found.all()}

    def _run_misses(self, connection: Connection) -> None:
        if not self._misses:
            return
        column = schema.misses.c.request_id
        connection.execute(delete(schema.misses).where(self._statements.among(column, list(self._misses))))
        numbered = [
            rows.numbered_miss_row(row, ordinal)
            for places in self._misses.values()
            for ordinal, row in enumerate(places)
        ]
        self.refused += len(bulk.run(connection, self._statements.misses, numbered))
        told = select(schema.requests.c.arrived_at).where(
            self._statements.among(schema.requests.c.request_id, list(self._misses))
        )
        minutes.mark(connection, self._statements, connection.execute(told).scalars())
