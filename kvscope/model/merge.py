"""Joins the parts of a request into its record, whatever their order.

Each field has an order of trust among sources. A value from a more trusted source replaces one from a
less trusted source; among equals the greater one wins, so that every order of arrival, delay and
repetition ends in the same record.

Tokens add up over the pieces of a request. Of the sources that tell a count of all pieces the most trusted
one is taken; where there is none the sum is unknown.
"""

import dataclasses
import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from kvscope.model.request import (
    MOST_PIECES,
    REQUEST_FIELDS,
    TOKEN_FIELDS,
    TOO_MANY,
    Counts,
    MissCause,
    Pieces,
    RequestPart,
    RequestRecord,
    Source,
    count_sequences,
)

_DEFAULT_TRUST = (Source.GATEWAY, Source.SPAN, Source.PLUGIN, Source.LOG, Source.ANALYSIS)
_ENGINE_FIRST = (Source.SPAN, Source.PLUGIN, Source.GATEWAY, Source.LOG, Source.ANALYSIS)
_TRUST: dict[str, tuple[Source, ...]] = {
    "ttft_seconds": _ENGINE_FIRST,
    "queue_seconds": _ENGINE_FIRST,
    "prefill_seconds": _ENGINE_FIRST,
    "decode_seconds": _ENGINE_FIRST,
    "tpot_seconds": _ENGINE_FIRST,
    "e2e_seconds": _ENGINE_FIRST,
    # the engine counts what it really did; a client's usage is the same number, one hop later
    "prompt_tokens": _ENGINE_FIRST,
    "output_tokens": _ENGINE_FIRST,
    "cached_tokens": (Source.PLUGIN, Source.SPAN, Source.GATEWAY, Source.LOG, Source.ANALYSIS),
}


_RANKS: dict[str, dict[str, int]] = {
    field: {source.value: rank for rank, source in enumerate(_TRUST.get(field, _DEFAULT_TRUST))}
    for field in REQUEST_FIELDS
}

_NOTHING: Counts = (None,) * len(TOKEN_FIELDS)
_TOO_MANY: Mapping[str, Counts] = {TOO_MANY: _NOTHING}
_ONE_AND_THE_WHOLE = 2
_LARGEST_COUNT = 2**31 - 1

_PLACES = {field: place for place, field in enumerate(TOKEN_FIELDS)}
_FIELDS = tuple(field.name for field in dataclasses.fields(RequestRecord))
_values = attrgetter(*_FIELDS)


def _order(value: Any) -> tuple[Any, ...]:
    """Return what orders values of any kind in one way.

    Of two sets of miss causes the greater one explains more: more tokens, then fewer as unknown.
    """
    if isinstance(value, Mapping):
        items = sorted((str(name), str(item)) for name, item in value.items())
        return "mapping", sum(value.values()), -float(value.get(MissCause.UNKNOWN, 0)), items
    if isinstance(value, (int, float)):
        return "number", value
    return "text" if isinstance(value, str) else type(value).__name__, str(value)


def _says_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def merge(record: RequestRecord | None, part: RequestPart) -> RequestRecord:
    """Return ``record`` with what ``part`` adds; None, NaN and infinite values in a part say nothing.

    The same object comes back when the part adds nothing.
    """
    if record is None:
        record = RequestRecord(request_id=part.request_id)
        return _with(record, _additions(part, record))
    if record.request_id != part.request_id:
        raise ValueError(f"part of {part.request_id!r} merged into {record.request_id!r}")
    added = _additions(part, record)
    return _with(record, added) if added else record


def _with(record: RequestRecord, added: dict[str, Any]) -> RequestRecord:
    """Do as ``dataclasses.replace``, in half its time."""
    return RequestRecord(**(dict(zip(_FIELDS, _values(record), strict=True)) | added))


def _additions(part: RequestPart, record: RequestRecord) -> dict[str, Any]:
    """Return the fields that ``part`` changes, with the new ``sources``; nothing when it changes none."""
    source, known = Source(part.source).value, record.sources
    changes: dict[str, Any] = {}
    for field, value in part.values.items():
        if field in TOKEN_FIELDS or _says_nothing(value):
            continue
        before = known.get(field)
        if before is not None:
            ranks = _RANKS[field]
            if ranks[source] > ranks[before]:
                continue
            if source == before and _order(value) <= _order(getattr(record, field)):
                continue
        changes[field] = value
    sources = dict.fromkeys(changes, source)
    pieces = _pieces(part, source, record)
    if pieces is not None:
        changes["pieces"] = pieces
        sequences = count_sequences(pieces)
        for field, place in _PLACES.items():
            changes[field], teller = _total(pieces, field, place, sequences)
            sources[field] = teller
    if changes:
        told = {**known, **sources}
        changes["sources"] = told if all(told.values()) else {name: by for name, by in told.items() if by}
    return changes


def _pieces(part: RequestPart, source: str, record: RequestRecord) -> Pieces | None:
    """Return the record's pieces with that of ``part``, or None where nothing changes."""
    counts: Counts = tuple(map(part.values.get, TOKEN_FIELDS))
    if any(isinstance(count, float) for count in counts):
        counts = tuple(None if _says_nothing(count) else count for count in counts)
    if counts == _NOTHING and not part.piece:
        return None
    own = record.pieces.get(source, {})
    before = own.get(part.piece)
    after = counts if before is None else tuple(map(_greater, before, counts))
    if after == before or TOO_MANY in own:
        return None
    grown: Mapping[str, Counts] = {**own, part.piece: after}
    return {**record.pieces, source: grown if len(grown) <= MOST_PIECES else _TOO_MANY}


def _greater(one: int | None, other: int | None) -> int | None:
    return max((count for count in (one, other) if count is not None), default=None)


def _total(pieces: Pieces, field: str, place: int, sequences: int) -> tuple[int | None, str]:
    """Return the sum over the pieces of the source that is taken for ``field``, and that source."""
    ranks = _RANKS[field]
    best: tuple[int, str] | None = None
    for source, own in pieces.items():
        told = _told(own, place)
        if len(told) >= sequences and (best is None or ranks[source] < ranks[best[1]]):
            best = sum(told), source
    return best if best is not None and best[0] <= _LARGEST_COUNT else (None, "")


def _told(own: Mapping[str, Counts], place: int) -> list[int]:
    """Return what one source tells at ``place``; what it says of the whole counts where no sequence does."""
    if len(own) == 1:  # nearly always
        (counts,) = own.values()
        return [] if (count := counts[place]) is None else [count]
    told = [count for piece, counts in own.items() if piece and (count := counts[place]) is not None]
    if not told and "" in own and len(own) <= _ONE_AND_THE_WHOLE and (whole := own[""][place]) is not None:
        return [whole]
    return told
