"""What an engine's own histograms have counted within a window, from the samples of their buckets.

An engine that starts again begins its counts at zero. That shows where any bucket has fewer than before, or
where ``process_start_time_seconds`` has changed: a busy engine can have passed all its old counts by then.
"""

from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from kvscope.model.views import HistogramRow
from kvscope.stats.histograms import increase
from kvscope.store import schema
from kvscope.store.counters import PROCESS_START

_SERIES = schema.metric_series.c
_SAMPLES = schema.metric_samples.c

_Engine = tuple[str, str]  # and its replica
_Buckets = dict[float, float]  # cumulative counts by upper bound


def histograms(
    connection: Connection, name: str, since_at: float | None, until_at: float | None
) -> list[HistogramRow]:
    """Return what was counted, by engine and replica; see ``Reader.histograms``."""
    reads = _reads(connection, f"{name}_bucket", since_at, until_at)
    starts = _starts(connection)
    return [row for of in sorted(reads) if (row := _row(of, reads[of], starts.get(of[0], {}), since_at))]


def _row(
    of: _Engine, reads: Mapping[float, _Buckets], starts: Mapping[float, float], since_at: float | None
) -> HistogramRow | None:
    """Add up what each read has beyond the one before; the first one counts if all of it is of the window."""
    counted: _Buckets = {}
    times = sorted(reads)
    before_at: float | None = None
    for at in times:
        began_at = _latest(starts, at)
        if before_at is not None:
            fresh = began_at is not None and began_at > before_at
            grown = reads[at] if fresh else increase(reads[before_at], reads[at])
        elif since_at is None or (began_at is not None and began_at >= since_at):
            grown = reads[at]
        else:
            grown = {}
        for bound, count in grown.items():
            counted[bound] = counted.get(bound, 0.0) + count
        before_at = at
    if not counted:
        return None
    return HistogramRow(engine=of[0], replica=of[1], first_at=times[0], last_at=times[-1], buckets=counted)


def _latest(starts: Mapping[float, float], at: float) -> float | None:
    """Return the start that was told last before or at ``at``."""
    told = [time for time in starts if time <= at]
    return starts[max(told)] if told else None


def _reads(
    connection: Connection, name: str, since_at: float | None, until_at: float | None
) -> dict[_Engine, dict[float, _Buckets]]:
    """Return the reads within the window, and the last one before it, summed over other labels."""
    of_name = _SERIES.name == name
    query = select(_SERIES.engine, _SERIES.replica, _SERIES.labels, _SAMPLES.at, _SAMPLES.value)
    query = query.join(schema.metric_samples, _SAMPLES.series_id == _SERIES.id).where(of_name)
    if until_at is not None:
        query = query.where(_SAMPLES.at < until_at)
    if since_at is not None:
        last_before = (
            select(func.max(_SAMPLES.at))
            .where(_SAMPLES.series_id == _SERIES.id, _SAMPLES.at < since_at)
            .correlate(schema.metric_series)
            .scalar_subquery()
        )
        query = query.where(_SAMPLES.at >= func.coalesce(last_before, since_at))
    found: dict[_Engine, dict[float, _Buckets]] = {}
    for engine, replica, labels, at, value in connection.execute(query):
        try:
            bound = float(labels["le"])
        except (KeyError, ValueError):
            continue
        buckets = found.setdefault((engine, replica), {}).setdefault(at, {})
        buckets[bound] = buckets.get(bound, 0.0) + value
    return found


def _starts(connection: Connection) -> dict[str, dict[float, float]]:
    """Return when each engine's process began, by the time it was told."""
    query = select(_SERIES.engine, _SAMPLES.at, _SAMPLES.value)
    query = query.join(schema.metric_samples, _SAMPLES.series_id == _SERIES.id)
    found: dict[str, dict[float, float]] = {}
    for engine, at, value in connection.execute(query.where(_SERIES.name == PROCESS_START)):
        found.setdefault(engine, {})[at] = value
    return found
