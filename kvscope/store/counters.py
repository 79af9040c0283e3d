"""What the engines' own counters say since the engine last started.

A counter that falls has started again from zero. ``process_start_time_seconds``, where it is stored, also
tells of a restart after which the counter has already passed its old value.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from kvscope.model.telemetry import MetricSample
from kvscope.model.views import EngineCounters
from kvscope.store import schema

QUERIES = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
PROCESS_START = "process_start_time_seconds"

_NEVER = float("-inf")
_series = schema.metric_series.c
_samples = schema.metric_samples.c


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Baseline:
    """Where an engine's counting starts: the first samples at or after ``at``, or zero at ``at``."""

    at: float
    from_zero: bool


def latest_samples(connection: Connection, name: str) -> list[MetricSample]:
    """Return the newest sample of each series of the metric ``name``, by engine and replica."""
    newest = (
        select(func.max(_samples.at))
        .where(_samples.series_id == _series.id)
        .correlate(schema.metric_series)
        .scalar_subquery()
    )
    query = (
        select(_series.engine, _series.replica, _series.name, _series.labels, _samples.at, _samples.value)
        .join(schema.metric_samples, _samples.series_id == _series.id)
        .where(_series.name == name, _samples.at == newest)
        .order_by(_series.engine, _series.replica, _series.id)
    )
    return [MetricSample(**row) for row in connection.execute(query).mappings()]


def engine_counters(connection: Connection, *, since_at: float | None) -> list[EngineCounters]:
    """Return the growth of each engine's prefix-cache counters since its last restart.

    The growth is from the first sample after the restart (and after ``since_at``). It is from zero, and
    ``first_at`` is the process's start, when the process started after the first sample that is known of its
    engine: then nothing of its life was missed.
    """
    return [row for _, row in _grown(connection, _NEVER if since_at is None else since_at)]


def beginnings(connection: Connection) -> dict[str, list[tuple[float, float]]]:
    """Return where each engine's counting starts, as ``(baseline, first_at)`` of each of its replicas.

    Of the samples before now these suffice for the same counters: in each series the last one before each
    baseline, the first one from it on, and the newest.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for baseline, row in _grown(connection, _NEVER):
        found.setdefault(row.engine, []).append((baseline.at, row.first_at))
    return found


def _grown(connection: Connection, since: float) -> Iterator[tuple[_Baseline, EngineCounters]]:
    starts = {sample.engine: sample.value for sample in latest_samples(connection, PROCESS_START)}
    engines: dict[tuple[str, str], list[Any]] = {}
    query = select(_series.engine, _series.replica, _series.name, _series.id)
    for row in connection.execute(query.where(_series.name.in_((QUERIES, HITS, EXTERNAL_HITS)))):
        engines.setdefault((row.engine, row.replica), []).append(row)
    for (engine, replica), series in sorted(engines.items()):
        baseline = _baseline(connection, engine, series, starts.get(engine), since)
        if row_of := _growth(connection, engine, replica, series, baseline):
            yield baseline, row_of


def _baseline(
    connection: Connection, engine: str, series: Sequence[Any], started_at: float | None, since: float
) -> _Baseline:
    fell_at = max(_last_fall(connection, one.id, since) for one in series)
    if started_at is None or started_at < since:
        return _Baseline(at=max(fell_at, since), from_zero=False)
    seen = [at for one in series if (at := _first_at(connection, one.id, started_at)) is not None]
    if seen and fell_at > min(seen):  # it restarted once more, and that start is not known
        return _Baseline(at=fell_at, from_zero=False)
    known_since = _known_since(connection, engine)
    return _Baseline(at=started_at, from_zero=known_since is not None and known_since < started_at)


def _growth(
    connection: Connection, engine: str, replica: str, series: Sequence[Any], baseline: _Baseline
) -> EngineCounters | None:
    growth = dict.fromkeys((QUERIES, HITS, EXTERNAL_HITS), 0.0)
    firsts, lasts = [], []
    for one in series:
        query = select(_samples.at, _samples.value).where(
            _samples.series_id == one.id, _samples.at >= baseline.at
        )
        first = connection.execute(query.order_by(_samples.at).limit(1)).one_or_none()
        last = connection.execute(query.order_by(_samples.at.desc()).limit(1)).one_or_none()
        if first is None or last is None:
            continue
        firsts.append(first.at)
        lasts.append(last.at)
        growth[one.name] += last.value - (0.0 if baseline.from_zero else first.value)
    if not firsts:
        return None
    return EngineCounters(
        engine=engine,
        replica=replica,
        first_at=baseline.at if baseline.from_zero else min(firsts),
        last_at=max(lasts),
        queries=growth[QUERIES],
        hits=growth[HITS],
        external_hits=growth[EXTERNAL_HITS],
    )


def _last_fall(connection: Connection, series_id: int, since: float) -> float:
    """Return the time of the first sample after the counter last fell."""
    before = func.lag(_samples.value).over(order_by=_samples.at).label("before")
    steps = (
        select(_samples.at, _samples.value, before)
        .where(_samples.series_id == series_id, _samples.at >= since)
        .subquery()
        .c
    )
    found = connection.execute(select(func.max(steps.at)).where(steps.value < steps.before)).scalar()
    return _NEVER if found is None else float(found)


def _first_at(connection: Connection, series_id: int, since: float) -> float | None:
    query = select(func.min(_samples.at)).where(_samples.series_id == series_id, _samples.at >= since)
    found: float | None = connection.execute(query).scalar()
    return found


def _known_since(connection: Connection, engine: str) -> float | None:
    """Return when the first sample of ``engine`` was taken."""
    first = (
        select(func.min(_samples.at))
        .where(_samples.series_id == _series.id)
        .correlate(schema.metric_series)
        .scalar_subquery()
    )
    found: float | None = connection.execute(select(func.min(first)).where(_series.engine == engine)).scalar()
    return found
