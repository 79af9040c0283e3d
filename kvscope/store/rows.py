"""Rows of the bulk tables: from the model's objects to what the database takes, and back."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Boolean, Double, Integer

from kvscope.model.merge import Join
from kvscope.model.request import TOKEN_FIELDS, Miss, Pieces, RequestPart, RequestRecord, Status
from kvscope.model.telemetry import MetricSample, Span
from kvscope.store import clean, schema

Row = tuple[Any, ...]


def _status(value: object) -> Status:
    if type(value) is Status:
        return value
    try:
        return Status(str(value))
    except ValueError as error:
        raise clean.UnfitError(f"not a status: {value!r}") from error


def _cleaner(name: str, kind: object) -> Callable[[object], Any]:
    if name == "status":
        return _status
    if name == "causes":
        return clean.counts
    if isinstance(kind, schema.StoredText):
        return partial(clean.text, limit=kind.limit)
    if isinstance(kind, Integer):
        return clean.count
    if isinstance(kind, Double):
        return clean.real
    if isinstance(kind, Boolean):
        return clean.boolean
    raise AssertionError(f"no way to clean {name}")


_CLEANERS = {
    column.name: _cleaner(column.name, column.type)
    for column in schema.requests.columns
    if column.name not in {"request_id", "sources", "conflicts"}
}
FIELDS = tuple(_CLEANERS)
_PLAIN: dict[str, tuple[type, Callable[[Any], bool]]] = {
    column.name: plain
    for column in schema.requests.columns
    for stored, plain in (
        (schema.StoredText, (str, clean.is_plain_text)),
        (Double, (float, math.isfinite)),
        (Integer, (int, clean.is_plain_count)),
    )
    if isinstance(column.type, stored) and column.name != "status"
} | {"status": (Status, bool)}
_NEVER_PLAIN = (type(None), bool)
REQUEST_COLUMNS = tuple(column.name for column in schema.requests.columns)
_STATUS, _CAUSES, _SOURCES, _CONFLICTS = (
    REQUEST_COLUMNS.index(name) for name in ("status", "causes", "sources", "conflicts")
)
_PIECES = "pieces"  # in the column `sources`, which is no field's name


def clean_part(part: RequestPart) -> tuple[RequestPart, bool]:
    """Return ``part`` with storable values, and whether any had to be left out.

    Raises ``UnfitError`` when its request id is not a text.
    """
    if _is_plain(part):  # nearly always
        return part, True
    values: dict[str, Any] = {}
    whole = True
    for name, value in part.values.items():
        if value is None:
            continue
        try:
            values[name] = _CLEANERS[name](value)
        except clean.UnfitError:
            whole = False
    cleaned = RequestPart(
        request_id=clean.key(part.request_id),
        source=part.source,
        values=values,
        piece=clean.key(part.piece),
    )
    return cleaned, whole


def _is_plain(part: RequestPart) -> bool:
    """Whether all of ``part`` is storable as it is."""
    for name, value in part.values.items():
        if value is not None:
            kind, is_plain = _PLAIN.get(name, _NEVER_PLAIN)
            if value.__class__ is not kind or not is_plain(value):
                return False
    ids = part.request_id, part.piece
    return all(one.__class__ is str and clean.is_plain_text(one) for one in ids)


def request_row(join: Join) -> Row:
    """Return the row of what was joined from clean parts."""
    row = list(map(join.values.get, REQUEST_COLUMNS))
    row[0] = join.request_id
    if (status := row[_STATUS]) is not None:
        row[_STATUS] = status.value
    if row[_CAUSES] is not None:
        row[_CAUSES] = clean.json_text(row[_CAUSES])
    told = {**join.sources, _PIECES: join.pieces} if join.pieces else join.sources
    row[_SOURCES] = clean.json_as_given(told)
    if join.conflicts:
        row[_CONFLICTS] = clean.json_text(join.conflicts)
    return tuple(row)


def request_join(row: Sequence[Any]) -> Join:
    """Return what was stored as ``row`` (all columns in order), to be added to."""
    values = dict(zip(REQUEST_COLUMNS, row, strict=True))
    join = Join(values.pop("request_id"))
    told: dict[str, Any] = values.pop("sources")
    join.conflicts = values.pop("conflicts") or {}
    join.values = {name: value for name, value in values.items() if value is not None}
    if (status := values["status"]) is not None:
        join.values["status"] = Status(status)
    join.sources = {field: source for field, source in told.items() if field != _PIECES}
    stored = told.get(_PIECES)
    join.pieces = _first_pieces(join) if stored is None else _pieces(stored)
    return join


def request_record(row: Sequence[Any]) -> RequestRecord:
    """Return the record that was stored as ``row`` (all columns in order)."""
    return request_join(row).record()


def _pieces(stored: Mapping[str, Any]) -> Pieces:
    return {source: {piece: tuple(counts) for piece, counts in own.items()} for source, own in stored.items()}


def _first_pieces(join: Join) -> Pieces:
    """Return the pieces of a row of the first versions, which knew of none."""
    tellers = {teller for field in TOKEN_FIELDS if (teller := join.sources.get(field))}
    return {
        teller: {
            "": tuple(join.values.get(f) if join.sources.get(f) == teller else None for f in TOKEN_FIELDS)
        }
        for teller in tellers
    }


def span_row(span: Span) -> Row:
    """Return the row of ``span``; raises ``UnfitError`` when it cannot be stored."""
    return (
        clean.key(span.trace_id),
        clean.key(span.span_id),
        None if span.parent_span_id is None else clean.text(span.parent_span_id),
        clean.text(span.name),
        None if span.service is None else clean.text(span.service),
        clean.finite(span.start_at),
        clean.finite(span.end_at),
        clean.json_as_given(span.attributes),
        clean.json_as_given(span.resource),
    )


def sample_rows(sample: MetricSample) -> tuple[Row, Row]:
    """Return the rows of the sample's series and of the sample; raises ``UnfitError``."""
    series = (
        clean.text(sample.engine),
        clean.text(sample.replica),
        clean.key(sample.name),
        clean.json_text(sample.labels),
    )
    number = series_id(*series)
    return (number, *series), (number, clean.finite(sample.at), clean.finite(sample.value))


def series_id(engine: str, replica: str, name: str, labels: str) -> int:
    """Return the number of a metric series: 64 bits of a hash, the same in every process."""
    digest = hashlib.blake2b(f"{engine}\x00{replica}\x00{name}\x00{labels}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big", signed=True)


def miss_row(miss: Miss) -> Row:
    """Return the row of ``miss`` but for its ordinal; raises ``UnfitError``."""
    return (
        clean.key(miss.request_id),
        clean.text(miss.cause),
        clean.count(miss.tokens),
        None if miss.role is None else clean.text(miss.role),
        *(
            None if place is None else clean.count(place)
            for place in (miss.message_index, miss.char_start, miss.char_end)
        ),
        None if miss.value_kind is None else clean.text(miss.value_kind),
    )


def miss_place(row: Row) -> Row:
    """Return what makes a miss one of a kind within its request: all but the tokens."""
    return row[:2] + row[3:]


def numbered_miss_row(row: Row, ordinal: int) -> Row:
    """Return the whole row of the ``ordinal``-th miss of its request."""
    return (row[0], ordinal, *row[1:])
