"""Missed tokens by place: from rollups where minutes have them, from the misses elsewhere."""

import dataclasses
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, func, literal, select

from kvscope.model.views import MissRow
from kvscope.store import schema
from kvscope.store.minutes import coverage
from kvscope.store.totals import UNKNOWN

_R = schema.requests.c
_M = schema.misses.c
_U = schema.rollup_misses.c
_PLACE = ("route", "cause", "role", "message_index", "value_kind")
_EXAMPLE = ("tokens", "request_id", "ordinal", "char_start", "char_end")

_Place = tuple[Any, ...]


@dataclasses.dataclass(slots=True)
class _Sum:
    """What was missed at one place; the example sorts before the others."""

    requests: int
    tokens: int
    example: tuple[Any, ...]


def misses(connection: Connection, since_at: float | None, route: str | None) -> list[MissRow]:
    """Return missed tokens by route, cause and place; see ``Reader.misses``."""
    found: dict[_Place, _Sum] = {}
    covered = coverage(connection, since_at, None)
    for piece in covered.raw:
        _read(connection, _by_place(_raw(piece, route)), found)
    if covered.rolled is not None:
        _read(connection, _by_place(_rolled(covered.rolled(_U), route)), found)
    rows = [
        MissRow(
            **dict(zip(_PLACE, place, strict=True)),
            requests=one.requests,
            tokens=one.tokens,
            example_request_id=one.example[1],
            example_char_start=one.example[3],
            example_char_end=one.example[4],
        )
        for place, one in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.tokens, row.route, row.cause, str(row)))


def _raw(piece: ColumnElement[bool], route: str | None) -> Select[Any]:
    """Select misses; of a request's misses at one place only the first counts as a request."""
    name = func.coalesce(_R.route, UNKNOWN)
    place = (name, _M.cause, _M.role, _M.message_index, _M.value_kind)
    within = func.row_number().over(partition_by=(_M.request_id, *place), order_by=_M.ordinal)
    query = select(
        name.label("route"),
        *place[1:],
        case((within == 1, 1), else_=0).label("requests"),
        _M.tokens.label("sum"),
        *(_M[column] for column in _EXAMPLE),
    )
    query = query.select_from(schema.misses.outerjoin(schema.requests, _M.request_id == _R.request_id))
    return query.where(piece, *(() if route is None else (_R.route == route,)))


def _rolled(piece: ColumnElement[bool], route: str | None) -> Select[Any]:
    query = select(
        func.coalesce(_U.route, UNKNOWN).label("route"),
        *(_U[column] for column in _PLACE[1:]),
        _U.requests,
        _U.tokens.label("sum"),
        *(_U[f"example_{column}"].label(column) for column in _EXAMPLE),
    )
    return query.where(piece, *(() if route is None else (_U.route == route,)))


def _by_place(query: Select[Any]) -> Select[Any]:
    rows = query.subquery().c
    place = tuple(rows[column] for column in _PLACE)
    order = (rows.tokens.desc(), rows.request_id, rows.ordinal)
    ranked = select(*rows, func.row_number().over(partition_by=place, order_by=order).label("rank"))
    of = ranked.subquery().c
    place = tuple(of[column] for column in _PLACE)
    example = (func.max(case((of.rank == literal(1), of[column]))) for column in _EXAMPLE)
    return select(*place, func.sum(of.requests), func.sum(of.sum), *example).group_by(*place)


def _read(connection: Connection, query: Select[Any], found: dict[_Place, _Sum]) -> None:
    for row in connection.execute(query):
        place, (requests, tokens), example = tuple(row[:5]), row[5:7], tuple(row[7:])
        one = found.setdefault(place, _Sum(0, 0, example))
        # PostgreSQL's sums of whole numbers are decimals
        one.requests, one.tokens = one.requests + int(requests), one.tokens + int(tokens)
        one.example = min(one.example, example, key=lambda it: (-it[0], it[1], it[2]))
