"""Sums and sketches by minute, so that pages need not read every request.

Whoever changes requests marks their minutes in the same transaction. A minute that is not marked has rollups
that say what its requests say; readers take the others from the requests. So nothing depends on when, how
often or whether minutes are rolled up but the time that reading takes.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, Table, delete, insert, select

from kvscope.store import schema, sketches
from kvscope.store.engines import Engines
from kvscope.store.minutes import MINUTE

_GRACE_SECONDS = 30.0  # a minute that has just ended still gets most of its parts

_R = schema.requests.c
_C = schema.rollup_changes.c
_M = schema.misses.c
_TABLES = (schema.rollups, schema.rollup_causes, schema.rollup_misses)
_DIMENSIONS = ("route", "tenant", "model", "experiment", "arm")
_READ = (
    *_DIMENSIONS,
    "prompt_tokens",
    "cached_tokens",
    "causes",
    "ttft_seconds",
    "ttft_client_seconds",
    "tpot_seconds",
    "conflicts",
    "sources",
)
_PLACE = ("route", "cause", "role", "message_index", "value_kind")
_EXAMPLE = ("tokens", "request_id", "ordinal", "char_start", "char_end")

_Rolled = dict[Table, Sequence[dict[str, Any]]]


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

    def _replace(self, minute: int, marked: int, rolled: _Rolled) -> bool:
        """Write a minute's rollups, unless it has changed since they were made."""
        with self._engines.writing() as connection:
            taken = delete(schema.rollup_changes).where(_C.minute == minute, _C.mark == marked)
            if connection.execute(taken).rowcount != 1:
                return False
            for table, found in rolled.items():
                connection.execute(delete(table).where(table.c.minute == minute))
                if found:
                    connection.execute(insert(table), found)
            return True


def _rolled_up(connection: Connection, minute: int) -> _Rolled:
    within = (_R.arrived_at >= minute * MINUTE, _R.arrived_at < (minute + 1) * MINUTE)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    causes: dict[str, dict[str, Any]] = {}
    for row in connection.execute(select(*(_R[name] for name in _READ)).where(*within)).mappings():
        dimensions = tuple(row[name] for name in _DIMENSIONS)
        group = groups.get(dimensions)
        if group is None:
            group = groups[dimensions] = _empty(minute, dimensions)
        _add(group, row)
        _add_causes(causes, minute, row)
    places: dict[tuple[Any, ...], dict[str, Any]] = {}
    seen: set[tuple[Any, ...]] = set()
    ordered = select(_R.route, *schema.misses.columns).join_from(
        schema.misses, schema.requests, _M.request_id == _R.request_id
    )
    in_order = ordered.where(*within).order_by(_M.tokens.desc(), _M.request_id, _M.ordinal)
    for row in connection.execute(in_order).mappings():
        _add_place(places, seen, minute, row)
    return dict(zip(_TABLES, (list(found.values()) for found in (groups, causes, places)), strict=True))


def _empty(minute: int, dimensions: tuple[Any, ...]) -> dict[str, Any]:
    return {
        "minute": minute,
        "key": _key(dimensions),
        **dict(zip(_DIMENSIONS, dimensions, strict=True)),
        **dict.fromkeys(("requests", "known_requests", "prompt_tokens", "cached_tokens"), 0),
        **dict.fromkeys(("ttft_requests", "tpot_requests"), 0),
        **dict.fromkeys(("ttft_seconds", "tpot_seconds"), 0.0),
        "causes": {},
        "ttft_sketch": {},
        "ttft_client_sketch": {},
        "conflicts": {},
    }


def _key(values: tuple[Any, ...]) -> int:
    digest = hashlib.blake2b(msgspec.json.encode(values), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _is_known(row: RowMapping) -> bool:
    return row["prompt_tokens"] is not None and row["cached_tokens"] is not None


def _add(group: dict[str, Any], row: RowMapping) -> None:
    group["requests"] += 1
    if _is_known(row):
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
    sketches.merge(group["conflicts"], conflicts_of(row["sources"], row["conflicts"]))


def conflicts_of(sources: Mapping[str, Any], conflicts: Mapping[str, str] | None) -> dict[str, int]:
    """Return 1 for each "field taken other" of a request; a source that contradicts itself is left out."""
    told = conflicts or {}
    return {f"{name} {sources[name]} {other}": 1 for name, other in told.items() if sources[name] != other}


def _add_causes(causes: dict[str, dict[str, Any]], minute: int, row: RowMapping) -> None:
    known = _is_known(row)
    for cause, tokens in (row["causes"] or {}).items():
        if tokens <= 0:
            continue
        found = causes.setdefault(
            cause,
            {
                "minute": minute,
                "cause": cause,
                **dict.fromkeys(("requests", "tokens", "known_requests", "prompt_tokens"), 0),
                **dict.fromkeys(("cached_tokens", "ttft_requests"), 0),
                "ttft_seconds": 0.0,
            },
        )
        found["requests"] += 1
        if known:
            found["known_requests"] += 1
            found["tokens"] += tokens
            found["prompt_tokens"] += row["prompt_tokens"]
            found["cached_tokens"] += row["cached_tokens"]
        if row["ttft_seconds"] is not None:
            found["ttft_requests"] += 1
            found["ttft_seconds"] += row["ttft_seconds"]


def _add_place(
    places: dict[tuple[Any, ...], dict[str, Any]], seen: set[tuple[Any, ...]], minute: int, row: RowMapping
) -> None:
    """Add a miss to those of its place, of which the first one is the example."""
    place = tuple(row[name] for name in _PLACE)
    found = places.get(place)
    if found is None:
        found = places[place] = {
            "minute": minute,
            "key": _key(place),
            **dict(zip(_PLACE, place, strict=True)),
            "requests": 0,
            "tokens": 0,
            **{f"example_{name}": row[name] for name in _EXAMPLE},
        }
    found["tokens"] += row["tokens"]
    # several misses of one request at one place are of one request
    found["requests"] += (*place, row["request_id"]) not in seen
    seen.add((*place, row["request_id"]))
