"""What an engine's counters are compared with: its records of the time, and what explains a difference."""

import itertools
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select

from kvscope.model.request import Status
from kvscope.model.views import EngineLife, RecordSums
from kvscope.store import schema
from kvscope.store.counters import PROCESS_START

_R = schema.requests.c
_series = schema.metric_series.c
_samples = schema.metric_samples.c
_UNTOLD = _R.cached_tokens.is_(None)


def reached(columns: Any) -> ColumnElement[bool]:
    """Return the condition that a request may have been looked up by its engine.

    Rejected ones never were; nor were those that failed before anything of them was computed, as the gateway
    answers 502 where no server takes a request.
    """
    nothing_told = and_(
        columns.prompt_tokens.is_(None),
        columns.cached_tokens.is_(None),
        columns.ttft_seconds.is_(None),
        columns.ttft_client_seconds.is_(None),
    )
    return or_(
        columns.status.is_(None),
        columns.status.not_in((Status.REJECTED.value, Status.ERROR.value)),
        and_(columns.status == Status.ERROR.value, ~nothing_told),
    )


def record_sums(connection: Connection, engine: str, first_at: float, last_at: float) -> RecordSums:
    """Return the sums over the requests of ``engine`` that arrived within the times and are stored."""
    query = select(
        func.count(),
        func.coalesce(func.sum(_R.prompt_tokens), 0),
        func.coalesce(func.sum(_R.cached_tokens), 0),
        func.count(case((and_(_UNTOLD, _R.status == Status.ABORTED.value), 1))),
        func.count(case((and_(_UNTOLD, _R.status == Status.ERROR.value), 1))),
        func.count(case((_UNTOLD, 1))),
    ).where(_R.engine == engine, _R.arrived_at >= first_at, _R.arrived_at <= last_at, reached(_R))
    requests, prompt, cached, aborted, failed, untold = map(int, connection.execute(query).one())
    return RecordSums(
        requests=requests,
        prompt_tokens=prompt,
        cached_tokens=cached,
        aborted=aborted,
        failed=failed,
        untold=untold - aborted - failed,
    )


def engine_life(connection: Connection, engine: str, first_at: float, last_at: float) -> EngineLife:
    """Return what the engine's own metrics tell of the times, beside its prefix-cache counters."""
    query = (
        select(_samples.value)
        .join(schema.metric_series, _samples.series_id == _series.id)
        .where(_series.engine == engine, _series.name == PROCESS_START, _samples.at <= last_at)
        .order_by(_samples.at)
    )
    starts = list(connection.execute(query).scalars())
    return EngineLife(
        prompt_tokens=_growth(connection, engine, "vllm:prompt_tokens_total", first_at, last_at),
        starts=len(set(starts)),
        changes=sum(one != other for one, other in itertools.pairwise(starts)),
    )


def _growth(connection: Connection, engine: str, name: str, first_at: float, last_at: float) -> float | None:
    """Return how much a counter grew; from zero where no sample is of ``first_at``, the process's start."""
    series = connection.execute(
        select(_series.id).where(_series.engine == engine, _series.name == name)
    ).scalars()
    grown = None
    for one in series:
        value = select(_samples.value).where(_samples.series_id == one)
        last = connection.execute(
            value.where(_samples.at <= last_at, _samples.at >= first_at).order_by(_samples.at.desc()).limit(1)
        ).scalar()
        if last is not None:
            first = connection.execute(value.where(_samples.at == first_at)).scalar()
            grown = (grown or 0.0) + float(last) - float(first or 0.0)
    return grown
