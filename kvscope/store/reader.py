"""What the command line, the pages and the reports read of requests."""

from typing import Any

from sqlalchemy import Connection, Select, func, select

from kvscope.model.request import RequestRecord
from kvscope.model.telemetry import MetricSample
from kvscope.model.views import (
    ConflictRow,
    EngineCounters,
    EngineLife,
    HistogramRow,
    HitRow,
    MissRow,
    RecordSums,
    SpreadRow,
    TimelineRow,
)
from kvscope.store import comparison, counters, histograms, missed, rows, schema, totals
from kvscope.store.engines import Engines
from kvscope.store.retention import pruned_between
from kvscope.store.totals import UNKNOWN_KEY, By, Grouping

__all__ = ["UNKNOWN_KEY", "By", "Reader"]

_R = schema.requests.c


class Reader:
    """Answers questions about what is stored; each answer is of one moment of the store.

    A filter on time leaves out requests whose arrival no source told. Every method raises
    ``UnreachableError`` when the database is away.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def requests(
        self,
        *,
        last: int | None = None,
        since_at: float | None = None,
        route: str | None = None,
        experiment: str | None = None,
    ) -> list[RequestRecord]:
        """Return requests, oldest first; ``last`` keeps that many of the newest.

        Those without a time of arrival count as the oldest.
        """
        query = select(schema.requests).where(*totals.window(since_at, None))
        if route is not None:
            query = query.where(_R.route == route)
        if experiment is not None:
            query = query.where(_R.experiment == experiment)
        with self._engines.reading() as connection:
            # two queries: the order of nulls differs between the databases, and so would the use of the index
            found = _newest_first(connection, query.where(_R.arrived_at.is_not(None)), last)
            if since_at is None and (last is None or len(found) < last):
                rest = None if last is None else last - len(found)
                found += _newest_first(connection, query.where(_R.arrived_at.is_(None)), rest)
        return found[::-1]

    def hits(self, by: By, *, since_at: float | None = None, until_at: float | None = None) -> list[HitRow]:
        """Return hits and miss causes, most prompt tokens first.

        ``by="arm"`` has the keys ``experiment/arm`` and only requests of an experiment. ``by="cause"`` has a
        row a cause, over the requests that have it, with that cause's tokens alone.
        """
        with self._engines.reading() as connection:
            return totals.hits(connection, by, since_at, until_at)

    def ttft(
        self, by: Grouping, *, since_at: float | None = None, until_at: float | None = None
    ) -> list[SpreadRow]:
        """Return how times to first token are spread, by key and by who measured; keys without are left out.

        The quantiles are a sketch's: within one percent of a time of that rank.
        """
        with self._engines.reading() as connection:
            return totals.ttft(connection, by, since_at, until_at)

    def misses(self, *, since_at: float | None = None, route: str | None = None) -> list[MissRow]:
        """Return missed tokens by route, cause and place, most tokens first.

        The example is the request that missed most tokens there.
        """
        with self._engines.reading() as connection:
            return missed.misses(connection, since_at, route)

    def conflicts(self, *, since_at: float | None = None) -> list[ConflictRow]:
        """Return on which fields sources contradict each other, and in how many requests; most first."""
        with self._engines.reading() as connection:
            return totals.conflicts(connection, since_at)

    def timeline(self, *, bucket_seconds: float, since_at: float | None = None) -> list[TimelineRow]:
        """Return buckets of time by route, oldest first; a bucket begins at a multiple of its length."""
        with self._engines.reading() as connection:
            return totals.timeline(connection, bucket_seconds, since_at)

    def counters(self, *, since_at: float | None = None) -> list[EngineCounters]:
        """Return each engine's prefix-cache counters since its last restart; see ``store.counters``."""
        with self._engines.reading() as connection:
            return counters.engine_counters(connection, since_at=since_at)

    def histograms(
        self, name: str, *, since_at: float | None = None, until_at: float | None = None
    ) -> list[HistogramRow]:
        """Return what the engines' histogram ``name`` has counted in the window, over their restarts.

        By engine and replica; ``stats.histograms`` makes quantiles of it. What was read last before
        ``since_at`` is where it begins; without, it is all that the first read told. Engines of which the
        window has no such growth are left out.
        """
        with self._engines.reading() as connection:
            return histograms.histograms(connection, name, since_at, until_at)

    def latest_samples(self, name: str) -> list[MetricSample]:
        """Return the newest sample of each series of the metric ``name``."""
        with self._engines.reading() as connection:
            return counters.latest_samples(connection, name)

    def cached_tokens_between(self, engine: str, first_at: float, last_at: float) -> tuple[int, int]:
        """Return the sum of cached tokens of ``engine``'s requests that arrived within the times.

        The second number counts those whose cached tokens no source told; rejected ones, and those that no
        server took, never reached the engine and do not count. Requests that retention removed are in both.
        """
        with self._engines.reading() as connection:
            sums = comparison.record_sums(connection, engine, first_at, last_at)
            gone_cached, gone_unknown = pruned_between(connection, engine, first_at, last_at)
        return sums.cached_tokens + gone_cached, sums.unknown + gone_unknown

    def compared(self, engine: str, first_at: float, last_at: float) -> tuple[RecordSums, EngineLife]:
        """Return what tells why ``engine``'s counters and its stored records may differ within the times."""
        with self._engines.reading() as connection:
            return (
                comparison.record_sums(connection, engine, first_at, last_at),
                comparison.engine_life(connection, engine, first_at, last_at),
            )

    def span_count(self) -> int:
        """Return how many spans are stored."""
        with self._engines.reading() as connection:
            return int(connection.execute(select(func.count()).select_from(schema.spans)).scalar_one())


def _newest_first(connection: Connection, query: Select[Any], limit: int | None) -> list[RequestRecord]:
    ordered = query.order_by(_R.arrived_at.desc(), _R.request_id.desc()).limit(limit)
    return [rows.request_record(row) for row in connection.execute(ordered).all()]
