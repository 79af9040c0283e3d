"""Minutes: which of them have changed since they were rolled up, and how a window is read from both."""

import dataclasses
import math
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, select, true

from kvscope.store import schema
from kvscope.store.bulk import Statements

MINUTE = 60.0
LAST_AT = 1e11
"""Requests that arrived from then on, or before 0, are in no rollup: no clock says so."""
_MOST_RANGES = 40

_R = schema.requests.c
_C = schema.rollup_changes.c


def mark(connection: Connection, statements: Statements, arrivals: Iterable[float | None]) -> None:
    """Note that requests that arrive at these times have changed; within the transaction that does it."""
    minutes = {int(at // MINUTE) for at in arrivals if at is not None and 0 <= at < LAST_AT}
    if minutes:
        changed = [(minute, secrets.randbits(62)) for minute in sorted(minutes)]
        connection.exec_driver_sql(statements.changes, changed)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How a window is read: ``raw`` conditions on requests, one after the other, and one on rollups.

    ``rolled`` gives the condition on the columns of a table of rollups.
    """

    raw: tuple[ColumnElement[bool], ...]
    rolled: Callable[[Any], ColumnElement[bool]] | None


def coverage(connection: Connection, since_at: float | None, until_at: float | None) -> Coverage:
    """Return how to read the requests of a window; conditions hold for the connection's moment alone.

    Where too many stretches are not rolled up, all of it is read from the requests.
    """
    first = 0 if since_at is None else max(0, math.ceil(min(since_at, LAST_AT) / MINUTE))
    last = math.floor((LAST_AT if until_at is None else min(until_at, LAST_AT)) / MINUTE)
    whole = Coverage(raw=(_between(since_at, until_at),), rolled=None)
    if last <= first:
        return whole
    query = select(_C.minute).where(_C.minute >= first, _C.minute < last).order_by(_C.minute)
    stretches = _stretches(connection.execute(query).scalars())
    if len(stretches) > _MOST_RANGES:
        return whole
    begin, end = first * MINUTE, last * MINUTE
    ends = [
        _between(since_at, begin) if since_at is None or since_at < begin else None,
        _between(end, until_at) if until_at is None or until_at > end else None,
        _R.arrived_at.is_(None) if since_at is None and until_at is None else None,
    ]
    middle = [_between(low * MINUTE, high * MINUTE) for low, high in stretches]
    marked = select(_C.minute)
    return Coverage(
        raw=(*(one for one in ends if one is not None), *middle),
        rolled=lambda c: (c.minute >= first) & (c.minute < last) & c.minute.not_in(marked),
    )


def _between(since_at: float | None, until_at: float | None) -> ColumnElement[bool]:
    if since_at is None and until_at is None:
        return true()
    if until_at is None:
        return _R.arrived_at >= since_at
    if since_at is None:
        return _R.arrived_at < until_at
    return (_R.arrived_at >= since_at) & (_R.arrived_at < until_at)


def _stretches(minutes: Iterable[int]) -> list[tuple[int, int]]:
    """Return the ranges, end excluded, that the minutes make up, which are in order."""
    found: list[tuple[int, int]] = []
    for minute in minutes:
        if found and found[-1][1] == minute:
            found[-1] = (found[-1][0], minute + 1)
        else:
            found.append((minute, minute + 1))
    return found
