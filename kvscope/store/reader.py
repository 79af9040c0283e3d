"""What the command line, the pages and the reports read of requests."""

from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Label,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
)

from kvscope.model.request import MissCause, RequestRecord, Status
from kvscope.model.telemetry import MetricSample
from kvscope.model.views import EngineCounters, HitRow, MissRow, TimelineRow
from kvscope.store import counters, rows, schema
from kvscope.store.engines import Engines
from kvscope.store.retention import pruned_between

By = Literal["route", "tenant", "model", "arm", "cause", "total"]
UNKNOWN_KEY = "(unknown)"
"""Stands for the route, tenant or model of requests of which no source told it."""

# written out, not bound: PostgreSQL takes two bound values for two, and would not group by them
_UNKNOWN: ColumnElement[str] = literal_column(f"'{UNKNOWN_KEY}'", Text)

_R = schema.requests.c
_KNOWN = and_(_R.prompt_tokens.is_not(None), _R.cached_tokens.is_not(None))
_CAUSES = tuple(cause.value for cause in MissCause)


def _sum_known(value: ColumnElement[Any], name: str) -> Label[Any]:
    return func.coalesce(func.sum(case((_KNOWN, value))), 0).label(name)


def _cause_tokens(cause: str) -> ColumnElement[int]:
    tokens: ColumnElement[int] = _R.causes[cause].as_integer()
    return tokens


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
        query = select(schema.requests).where(*_window(since_at, None))
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
        where = _window(since_at, until_at)
        with self._engines.reading() as connection:
            if by == "cause":
                found = [_hits_of_cause(connection, cause, where) for cause in _CAUSES]
                return sorted((row for row in found if row.requests), key=_most_missed)
            key = _key(by)
            if by == "arm":
                where = (*where, _R.experiment.is_not(None))
            query = _hit_query(key.label("key"), where)
            if by != "total":
                query = query.group_by(text("key"))
            found = [_hit_row(row) for row in connection.execute(query).mappings()]
        return sorted((row for row in found if row.requests), key=_most_prompted)

    def misses(self, *, since_at: float | None = None, route: str | None = None) -> list[MissRow]:
        """Return missed tokens by route, cause and place, most tokens first.

        The example is the request that missed most tokens there.
        """
        m = schema.misses.c
        key = func.coalesce(_R.route, _UNKNOWN)
        group = (key, m.cause, m.role, m.message_index, m.value_kind)
        rank = func.row_number().over(partition_by=group, order_by=(m.tokens.desc(), m.request_id, m.ordinal))
        query = (
            select(
                key.label("route"),
                m.cause,
                m.role,
                m.message_index,
                m.value_kind,
                m.tokens,
                m.request_id,
                m.char_start,
                m.char_end,
                rank.label("rank"),
            )
            .select_from(schema.misses.outerjoin(schema.requests, m.request_id == _R.request_id))
            .where(*_window(since_at, None))
        )
        if route is not None:
            query = query.where(_R.route == route)
        ranked = query.subquery().c
        top = ranked.rank == 1
        grouped = (ranked.route, ranked.cause, ranked.role, ranked.message_index, ranked.value_kind)
        tokens = func.sum(ranked.tokens)
        summed = (
            select(
                *grouped,
                func.count(ranked.request_id.distinct()).label("requests"),
                tokens.label("tokens"),
                func.max(case((top, ranked.request_id))).label("example_request_id"),
                func.max(case((top, ranked.char_start))).label("example_char_start"),
                func.max(case((top, ranked.char_end))).label("example_char_end"),
            )
            .group_by(*grouped)
            .order_by(tokens.desc(), ranked.route, ranked.cause)
        )
        with self._engines.reading() as connection:
            return [
                MissRow(**{**row, "tokens": int(row["tokens"])})
                for row in connection.execute(summed).mappings()
            ]

    def timeline(self, *, bucket_seconds: float, since_at: float | None = None) -> list[TimelineRow]:
        """Return buckets of time by route, oldest first; a bucket begins at a multiple of its length."""
        number = self._floor(_R.arrived_at / literal(bucket_seconds))
        route = func.coalesce(_R.route, _UNKNOWN)
        query = (
            select(
                number.label("number"),
                route.label("route"),
                func.count().label("requests"),
                _sum_known(_R.prompt_tokens, "prompt_tokens"),
                _sum_known(_R.cached_tokens, "cached_tokens"),
                func.avg(_R.ttft_seconds).label("ttft_seconds_mean"),
                func.avg(_R.tpot_seconds).label("tpot_seconds_mean"),
            )
            .where(_R.arrived_at.is_not(None), *_window(since_at, None))
            .group_by(text("number"), route)
            .order_by(text("number"), route)
        )
        with self._engines.reading() as connection:
            return [
                TimelineRow(
                    at=row["number"] * bucket_seconds,
                    route=row["route"],
                    requests=row["requests"],
                    prompt_tokens=int(row["prompt_tokens"]),
                    cached_tokens=int(row["cached_tokens"]),
                    ttft_seconds_mean=row["ttft_seconds_mean"],
                    tpot_seconds_mean=row["tpot_seconds_mean"],
                )
                for row in connection.execute(query).mappings()
            ]

    def _floor(self, quotient: ColumnElement[Any]) -> ColumnElement[int]:
        """Round down; SQLite may lack ``floor``, and its cast cuts off, which is the same for times."""
        if self._engines.readers.dialect.name == "sqlite":
            return cast(quotient, BigInteger)
        return cast(func.floor(quotient), BigInteger)

    def counters(self, *, since_at: float | None = None) -> list[EngineCounters]:
        """Return each engine's prefix-cache counters since its last restart; see ``store.counters``."""
        with self._engines.reading() as connection:
            return counters.engine_counters(connection, since_at=since_at)

    def latest_samples(self, name: str) -> list[MetricSample]:
        """Return the newest sample of each series of the metric ``name``."""
        with self._engines.reading() as connection:
            return counters.latest_samples(connection, name)

    def cached_tokens_between(self, engine: str, first_at: float, last_at: float) -> tuple[int, int]:
        """Return the sum of cached tokens of ``engine``'s requests that arrived within the times.

        The second number counts those whose cached tokens no source told; rejected ones never reached the
        engine and do not count. Requests that retention removed are in both numbers.
        """
        query = select(
            func.coalesce(func.sum(_R.cached_tokens), 0),
            func.count(case((_R.cached_tokens.is_(None), 1))),
        ).where(
            _R.engine == engine,
            _R.arrived_at >= first_at,
            _R.arrived_at <= last_at,
            or_(_R.status.is_(None), _R.status != Status.REJECTED.value),
        )
        with self._engines.reading() as connection:
            cached, unknown = connection.execute(query).one()
            gone_cached, gone_unknown = pruned_between(connection, engine, first_at, last_at)
        return int(cached) + gone_cached, int(unknown) + gone_unknown

    def span_count(self) -> int:
        """Return how many spans are stored."""
        with self._engines.reading() as connection:
            return int(connection.execute(select(func.count()).select_from(schema.spans)).scalar_one())


def _window(since_at: float | None, until_at: float | None) -> tuple[ColumnElement[bool], ...]:
    since = () if since_at is None else (_R.arrived_at >= since_at,)
    return since if until_at is None else (*since, _R.arrived_at < until_at)


def _newest_first(connection: Connection, query: Select[Any], limit: int | None) -> list[RequestRecord]:
    ordered = query.order_by(_R.arrived_at.desc(), _R.request_id.desc()).limit(limit)
    return [rows.request_record(row) for row in connection.execute(ordered).mappings()]


def _key(by: Literal["route", "tenant", "model", "arm", "total"]) -> ColumnElement[str]:
    if by == "total":
        return literal("total")
    if by == "arm":
        return _R.experiment + "/" + func.coalesce(_R.arm, _UNKNOWN)
    column: ColumnElement[str] = _R[by]
    return func.coalesce(column, _UNKNOWN)


def _hit_query(key: Label[Any], where: tuple[ColumnElement[bool], ...]) -> Select[Any]:
    return select(
        key,
        func.count().label("requests"),
        func.count(case((_KNOWN, 1))).label("known_requests"),
        _sum_known(_R.prompt_tokens, "prompt_tokens"),
        _sum_known(_R.cached_tokens, "cached_tokens"),
        func.avg(_R.ttft_seconds).label("ttft_seconds_mean"),
        *(_sum_known(_cause_tokens(cause), f"cause_{cause}") for cause in _CAUSES),
    ).where(*where)


def _hit_row(row: Any) -> HitRow:
    causes = {cause: int(row[f"cause_{cause}"]) for cause in _CAUSES}
    return HitRow(
        key=row["key"],
        requests=row["requests"],
        known_requests=row["known_requests"],
        prompt_tokens=int(row["prompt_tokens"]),
        cached_tokens=int(row["cached_tokens"]),
        ttft_seconds_mean=row["ttft_seconds_mean"],
        causes={cause: tokens for cause, tokens in causes.items() if tokens},
    )


def _hits_of_cause(connection: Connection, cause: str, where: tuple[ColumnElement[bool], ...]) -> HitRow:
    query = _hit_query(literal(cause).label("key"), (*where, _cause_tokens(cause) > 0))
    row = _hit_row(connection.execute(query).mappings().one())
    return HitRow(
        key=cause,
        requests=row.requests,
        known_requests=row.known_requests,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        ttft_seconds_mean=row.ttft_seconds_mean,
        causes={cause: row.causes.get(cause, 0)},
    )


def _most_prompted(row: HitRow) -> tuple[int, str]:
    return -row.prompt_tokens, row.key


def _most_missed(row: HitRow) -> tuple[int, str]:
    return -row.causes[row.key], row.key
