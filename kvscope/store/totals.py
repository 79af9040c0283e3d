"""Sums and quantiles of requests: from rollups where minutes have them, from the requests elsewhere."""

from collections.abc import Iterable, Iterator
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
    select,
    text,
)

from kvscope.model.request import MissCause
from kvscope.model.views import ConflictRow, HitRow, SpreadRow, TimelineRow
from kvscope.store import schema, sketches
from kvscope.store.minutes import MINUTE, Coverage, coverage
from kvscope.store.rollups import conflicts_of

Grouping = Literal["route", "tenant", "model", "arm", "total"]
By = Grouping | Literal["cause"]
UNKNOWN_KEY = "(unknown)"
"""Stands for the route, tenant or model of requests of which no source told it."""

# written out, not bound: PostgreSQL takes two bound values for two, and would not group by them
UNKNOWN: ColumnElement[str] = literal_column(f"'{UNKNOWN_KEY}'", Text)

_R = schema.requests.c
_U = schema.rollups.c
_C = schema.rollup_causes.c
_KNOWN = and_(_R.prompt_tokens.is_not(None), _R.cached_tokens.is_not(None))
_CAUSES = tuple(cause.value for cause in MissCause)
_SUMS = ("requests", "known_requests", "prompt_tokens", "cached_tokens", "ttft_requests", "tpot_requests")
_SECONDS = ("ttft_seconds", "tpot_seconds")
_OF_CAUSE = (
    "requests",
    "tokens",
    "known_requests",
    "prompt_tokens",
    "cached_tokens",
    "ttft_requests",
    "ttft_seconds",
)
_CAUSE_SUMS = tuple(f"cause_{cause}" for cause in _CAUSES)

Where = Iterable[ColumnElement[bool]]
Keys = tuple[Label[Any], ...]


def window(since_at: float | None, until_at: float | None) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on requests that arrived from ``since_at`` on and before ``until_at``."""
    since = () if since_at is None else (_R.arrived_at >= since_at,)
    return since if until_at is None else (*since, _R.arrived_at < until_at)


def hits(connection: Connection, by: By, since_at: float | None, until_at: float | None) -> list[HitRow]:
    """Return hits and miss causes by key; see ``Reader.hits``."""
    covered = coverage(connection, since_at, until_at)
    if by == "cause":
        return sorted(_hits_by_cause(connection, covered), key=_most_missed)
    sums = _Sums()
    for piece in covered.raw:
        sums.read(connection, _raw_sums((_key(by, _R).label("named"),), (*_of(by, _R), piece)))
    if covered.rolled is not None:
        sums.read(
            connection, _rolled_sums((_key(by, _U).label("named"),), (*_of(by, _U), covered.rolled(_U)))
        )
    return sorted((_hit_row(key, found) for (key,), found in sums.found.items()), key=_most_prompted)


def timeline(connection: Connection, bucket_seconds: float, since_at: float | None) -> list[TimelineRow]:
    """Return buckets of time by route; see ``Reader.timeline``."""
    number = _floor(connection, _R.arrived_at / literal(bucket_seconds)).label("number")
    keys = number, _key("route", _R).label("named")
    told = _R.arrived_at.is_not(None)
    sums = _Sums()
    if bucket_seconds >= MINUTE and not bucket_seconds % MINUTE:
        covered = coverage(connection, since_at, None)
        for piece in covered.raw:
            sums.read(connection, _raw_sums(keys, (told, piece)))
        if covered.rolled is not None:
            # whole numbers, written out: both databases divide them without a rest
            minutes = literal_column(str(int(bucket_seconds // MINUTE)), BigInteger)
            buckets = cast(_U.minute.op("/")(minutes), BigInteger).label("number")
            rolled = _rolled_sums((buckets, _key("route", _U).label("named")), (covered.rolled(_U),))
            sums.read(connection, rolled)
    else:
        sums.read(connection, _raw_sums(keys, (told, *window(since_at, None))))
    return [
        TimelineRow(
            at=at * bucket_seconds,
            route=route,
            requests=found["requests"],
            prompt_tokens=found["prompt_tokens"],
            cached_tokens=found["cached_tokens"],
            ttft_seconds_mean=_mean(found, "ttft"),
            tpot_seconds_mean=_mean(found, "tpot"),
        )
        for (at, route), found in sorted(sums.found.items())
    ]


def ttft(
    connection: Connection, by: Grouping, since_at: float | None, until_at: float | None
) -> list[SpreadRow]:
    """Return how times to first token are spread, by key; see ``Reader.ttft``."""
    bins: dict[tuple[str, str], sketches.Bins] = {}
    covered = coverage(connection, since_at, until_at)
    for piece in covered.raw:
        query = select(_key(by, _R), _R.ttft_seconds, _R.ttft_client_seconds).where(*_of(by, _R), piece)
        for key, engine, client in connection.execute(query):
            for source, seconds in (("engine", engine), ("client", client)):
                if seconds is not None:
                    sketches.add(bins.setdefault((key, source), {}), seconds)
    if covered.rolled is not None:
        query = select(_key(by, _U), _U.ttft_sketch, _U.ttft_client_sketch)
        for key, engine, client in connection.execute(query.where(*_of(by, _U), covered.rolled(_U))):
            for source, counted in (("engine", engine), ("client", client)):
                if counted:
                    sketches.merge(bins.setdefault((key, source), {}), counted)
    return [_spread_row(key, source, counted) for (key, source), counted in sorted(bins.items())]


class _Sums:
    """Adds up the rows of several queries by their key columns, which come first."""

    def __init__(self) -> None:
        self.found: dict[tuple[Any, ...], dict[str, Any]] = {}

    def read(self, connection: Connection, query: Select[Any]) -> None:
        """Add the rows of ``query``."""
        names = (*_SUMS, *_CAUSE_SUMS, *_SECONDS)
        for row in connection.execute(query):
            if not row.requests:
                continue
            values = row[-len(names) :]
            into = self.found.setdefault(tuple(row[: -len(names)]), dict.fromkeys(names, 0))
            for name, value in zip(names, values, strict=True):
                # PostgreSQL's sums of whole numbers are decimals
                into[name] += value if name in _SECONDS else int(value)


def _raw_sums(keys: Keys, where: Where) -> Select[Any]:
    sums = (
        func.count(),
        func.count(case((_KNOWN, 1))),
        _sum_known(_R.prompt_tokens),
        _sum_known(_R.cached_tokens),
        func.count(_R.ttft_seconds),
        func.count(_R.tpot_seconds),
        *(_sum_known(_cause_tokens(cause)) for cause in _CAUSES),
        func.coalesce(func.sum(_R.ttft_seconds), 0.0),
        func.coalesce(func.sum(_R.tpot_seconds), 0.0),
    )
    return _grouped(keys, sums, where)


def _rolled_sums(keys: Keys, where: Where) -> Select[Any]:
    causes = (_U.causes[cause].as_integer() for cause in _CAUSES)
    columns = (*(_U[name] for name in _SUMS), *causes, *(_U[name] for name in _SECONDS))
    return _grouped(keys, [func.coalesce(func.sum(column), 0) for column in columns], where)


def _grouped(keys: Keys, sums: Iterable[ColumnElement[Any]], where: Where) -> Select[Any]:
    names = (*_SUMS, *_CAUSE_SUMS, *_SECONDS)
    named = (column.label(name) for column, name in zip(sums, names, strict=True))
    query = select(*keys, *named).where(*where)
    # by name: a key may be an expression with bound values, which PostgreSQL would not know again
    return query.group_by(*(text(key.name) for key in keys))


def _sum_known(value: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(case((_KNOWN, value))), 0)


def _cause_tokens(cause: str) -> ColumnElement[int]:
    tokens: ColumnElement[int] = _R.causes[cause].as_integer()
    return tokens


def _key(by: Grouping, columns: Any) -> ColumnElement[str]:
    if by == "total":
        return literal_column("'total'", Text)
    if by == "arm":
        named: ColumnElement[str] = columns.experiment + "/" + func.coalesce(columns.arm, UNKNOWN)
        return named
    return func.coalesce(columns[by], UNKNOWN)


def _of(by: Grouping, columns: Any) -> Iterator[ColumnElement[bool]]:
    if by == "arm":
        yield columns.experiment.is_not(None)


def _floor(connection: Connection, quotient: ColumnElement[Any]) -> ColumnElement[int]:
    """Round down; SQLite may lack ``floor``, and its cast cuts off, which is the same for times."""
    return cast(quotient if connection.dialect.name == "sqlite" else func.floor(quotient), BigInteger)


def _mean(found: dict[str, Any], name: str) -> float | None:
    count = found[f"{name}_requests"]
    return found[f"{name}_seconds"] / count if count else None


def _hit_row(key: str, found: dict[str, Any]) -> HitRow:
    return HitRow(
        key=key,
        requests=found["requests"],
        known_requests=found["known_requests"],
        prompt_tokens=found["prompt_tokens"],
        cached_tokens=found["cached_tokens"],
        ttft_seconds_mean=_mean(found, "ttft"),
        causes={cause: tokens for cause in _CAUSES if (tokens := found[f"cause_{cause}"])},
    )


def _hits_by_cause(connection: Connection, covered: Coverage) -> Iterator[HitRow]:
    """Return a row for each cause that was missed for."""
    sums: dict[str, dict[str, Any]] = {}
    queries = [_raw_cause(cause, piece) for cause in _CAUSES for piece in covered.raw]
    if covered.rolled is not None:
        queries.append(
            select(_C.cause, *(func.sum(_C[name]).label(name) for name in _OF_CAUSE))
            .where(covered.rolled(_C))
            .group_by(_C.cause)
        )
    for query in queries:
        for row in connection.execute(query).mappings():
            into = sums.setdefault(row["cause"], dict.fromkeys(_OF_CAUSE, 0))
            for name in _OF_CAUSE:
                # PostgreSQL's sums of whole numbers are decimals
                into[name] += row[name] if name in _SECONDS else int(row[name])
    for cause, found in sums.items():
        if found["requests"]:
            yield HitRow(
                key=cause,
                requests=found["requests"],
                known_requests=found["known_requests"],
                prompt_tokens=found["prompt_tokens"],
                cached_tokens=found["cached_tokens"],
                ttft_seconds_mean=_mean(found, "ttft"),
                causes={cause: found["tokens"]},
            )


def _raw_cause(cause: str, piece: ColumnElement[bool]) -> Select[Any]:
    tokens = _cause_tokens(cause)
    return select(
        literal_column(f"'{cause}'", Text).label("cause"),
        func.count().label("requests"),
        _sum_known(tokens).label("tokens"),
        func.count(case((_KNOWN, 1))).label("known_requests"),
        _sum_known(_R.prompt_tokens).label("prompt_tokens"),
        _sum_known(_R.cached_tokens).label("cached_tokens"),
        func.count(_R.ttft_seconds).label("ttft_requests"),
        func.coalesce(func.sum(_R.ttft_seconds), 0.0).label("ttft_seconds"),
    ).where(piece, tokens > 0)


def conflicts(connection: Connection, since_at: float | None) -> list[ConflictRow]:
    """Return the conflicts between sources; see ``Reader.conflicts``."""
    found: dict[str, int] = {}
    covered = coverage(connection, since_at, None)
    for piece in covered.raw:
        query = select(_R.sources, _R.conflicts).where(piece, _R.conflicts.is_not(None))
        for sources, told in connection.execute(query):
            sketches.merge(found, conflicts_of(sources, told))
    if covered.rolled is not None:
        rolled = select(_U.conflicts).where(covered.rolled(_U), _U.conflicts.is_not(None))
        for told in connection.execute(rolled).scalars():
            sketches.merge(found, told)
    rows = [
        ConflictRow(field=field, source=source, other=other, requests=requests)
        for named, requests in found.items()
        for field, source, other in (named.split(" "),)
    ]
    return sorted(rows, key=lambda row: (-row.requests, row.field, row.source, row.other))


def _spread_row(key: str, source: str, bins: sketches.Bins) -> SpreadRow:
    p50, p95 = sketches.quantiles(bins, (0.5, 0.95))
    return SpreadRow(key=key, source=source, requests=sum(bins.values()), p50=p50, p95=p95)


def _most_prompted(row: HitRow) -> tuple[int, str]:
    return -row.prompt_tokens, row.key


def _most_missed(row: HitRow) -> tuple[int, str]:
    return -row.causes[row.key], row.key
