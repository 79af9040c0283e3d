"""Sums and sketches by minute, so that pages need not read every request.

Whoever changes requests marks their minutes in the same transaction. A minute that is not marked has rollups
that say what its requests say; readers take the others from the requests. So nothing depends on when, how
often or whether minutes are rolled up but the time that reading takes.
"""

import dataclasses
import hashlib
import math
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, RowMapping, delete, insert, select

from kvscope.store import schema, sketches
from kvscope.store.bulk import Statements
from kvscope.store.engines import Engines

MINUTE = 60.0
LAST_AT = 1e11
"""Requests that arrived from then on, or before 0, are in no rollup: no clock says so."""
_GRACE_SECONDS = 30.0  # a minute that has just ended still gets most of its parts
_MOST_RANGES = 40

_R = schema.requests.c
_C = schema.rollup_changes.c
_U = schema.rollups.c
_DIMENSIONS = ("route", "tenant", "model", "experiment", "arm")
_READ = (
    *_DIMENSIONS,
    "prompt_tokens",
    "cached_tokens",
    "causes",
    "ttft_seconds",
    "ttft_client_seconds",
    "tpot_seconds",
)


def mark(connection: Connection, statements: Statements, arrivals: Iterable[float | None]) -> None:
    """Note that requests that arrive at these times have changed; within the transaction that does it."""
    minutes = {int(at // MINUTE) for at in arrivals if at is not None and 0 <= at < LAST_AT}
    if minutes:
        changed = [(minute, secrets.randbits(62)) for minute in sorted(minutes)]
        connection.exec_driver_sql(statements.changes, changed)


class Rollups:
    """Rolls up minutes that have ended; may be stopped, repeated, or run by several agents at once."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def refresh(self, now: float, *, stop: Callable[[], bool] = lambda: False) -> int:
        """Roll up the marked minutes that have ended; return how many.

        Raises ``UnreachableError`` when the database is away; what was done before stays done.
        """
        last = math.floor((now - _GRACE_SECONDS) / MINUTE)
        done, after = 0, -1
        while not stop():
            began = time.monotonic()
            with self._engines.reading() as connection:
                # mark and requests of one moment: what is written later has another mark
                query = select(_C.minute, _C.mark).where(_C.minute > after, _C.minute < last)
                found = connection.execute(query.order_by(_C.minute).limit(1)).one_or_none()
                if found is None:
                    break
                rolled = _rolled_up(connection, found.minute)
            done += self._replace(found.minute, found.mark, rolled)
            after = found.minute
            # after an upgrade there are thousands: the gateway runs in the same process
            time.sleep(time.monotonic() - began)
        return done

    def _replace(self, minute: int, marked: int, rolled: list[dict[str, Any]]) -> bool:
        """Write a minute's rollups, unless it has changed since they were made."""
        with self._engines.writing() as connection:
            taken = delete(schema.rollup_changes).where(_C.minute == minute, _C.mark == marked)
            if connection.execute(taken).rowcount != 1:
                return False
            connection.execute(delete(schema.rollups).where(_U.minute == minute))
            if rolled:
                connection.execute(insert(schema.rollups), rolled)
            return True


def _rolled_up(connection: Connection, minute: int) -> list[dict[str, Any]]:
    begin, end = minute * MINUTE, (minute + 1) * MINUTE
    query = select(*(_R[name] for name in _READ)).where(_R.arrived_at >= begin, _R.arrived_at < end)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in connection.execute(query).mappings():
        dimensions = tuple(row[name] for name in _DIMENSIONS)
        group = groups.get(dimensions)
        if group is None:
            group = groups[dimensions] = _empty(minute, dimensions)
        _add(group, row)
    return list(groups.values())


def _empty(minute: int, dimensions: tuple[Any, ...]) -> dict[str, Any]:
    digest = hashlib.blake2b(msgspec.json.encode(dimensions), digest_size=8).digest()
    return {
        "minute": minute,
        "key": int.from_bytes(digest, "big", signed=True),
        **dict(zip(_DIMENSIONS, dimensions, strict=True)),
        **dict.fromkeys(("requests", "known_requests", "prompt_tokens", "cached_tokens"), 0),
        **dict.fromkeys(("ttft_requests", "tpot_requests"), 0),
        **dict.fromkeys(("ttft_seconds", "tpot_seconds"), 0.0),
        "causes": {},
        "ttft_sketch": {},
        "ttft_client_sketch": {},
    }


def _add(group: dict[str, Any], row: RowMapping) -> None:
    group["requests"] += 1
    if row["prompt_tokens"] is not None and row["cached_tokens"] is not None:
        group["known_requests"] += 1
        group["prompt_tokens"] += row["prompt_tokens"]
        group["cached_tokens"] += row["cached_tokens"]
        sketches.merge(group["causes"], row["causes"] or {})
    for name in ("ttft", "tpot"):
        seconds = row[f"{name}_seconds"]
        if seconds is not None:
            group[f"{name}_requests"] += 1
            group[f"{name}_seconds"] += seconds
    for name in ("ttft", "ttft_client"):
        if row[f"{name}_seconds"] is not None:
            sketches.add(group[f"{name}_sketch"], row[f"{name}_seconds"])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How a window is read: ``raw`` conditions on requests, one after the other, and one on rollups."""

    raw: tuple[ColumnElement[bool], ...]
    rolled: ColumnElement[bool] | None


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
        rolled=(_U.minute >= first) & (_U.minute < last) & _U.minute.not_in(marked),
    )


def _between(since_at: float | None, until_at: float | None) -> ColumnElement[bool]:
    if since_at is None and until_at is None:
        return _R.request_id.is_not(None)  # all
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
