"""Joins the parts of a request into its record, whatever their order.

Each field has an order of trust among sources. A value from a more trusted source replaces one from a
less trusted source; among equals the greater one wins, so that every order of arrival, delay and
repetition ends in the same record.

Tokens add up over the pieces of a request. Of the sources that tell a count of all pieces the most trusted
one is taken; where there is none the sum is unknown.

Where sources tell different words or numbers of one thing, the record names the most trusted one of those
that were not believed. Times are no conflict: each source measures at its own place.
"""

from collections.abc import Mapping
from math import isfinite
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
    # of a log only that they are not known
    "causes": (Source.ANALYSIS, Source.GATEWAY, Source.SPAN, Source.PLUGIN, Source.LOG),
    "cached_tokens": (Source.PLUGIN, Source.SPAN, Source.GATEWAY, Source.LOG, Source.ANALYSIS),
}


_RANKS: dict[str, dict[str, int]] = {
    field: {source.value: rank for rank, source in enumerate(_TRUST.get(field, _DEFAULT_TRUST))}
    for field in REQUEST_FIELDS
}

_NAMES = {source: source.value for source in Source}
_NOTHING: Counts = (None,) * len(TOKEN_FIELDS)
_TOO_MANY: Mapping[str, Counts] = {TOO_MANY: _NOTHING}
_ONE_AND_THE_WHOLE = 2
_LARGEST_COUNT = 2**31 - 1

_TOKENS = frozenset(TOKEN_FIELDS)
_PLAIN_KINDS = frozenset({int, type(None)})
# every span has an id of its own, and a request of several sequences has several spans
_NEVER_IN_CONFLICT = frozenset({"span_id", "causes"})


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


def merge(record: RequestRecord | None, part: RequestPart) -> RequestRecord:
    """Return ``record`` with what ``part`` adds; None, NaN and infinite values in a part say nothing.

    The same object comes back when the part adds nothing.
    """
    join = Join(part.request_id) if record is None else Join.of(record)
    changed = join.add(part)
    return record if record is not None and not changed else join.record()


class Join:
    """What is known of one request while its parts come in; quicker than a record for each part.

    ``values`` holds the fields that were told and no others.
    """

    __slots__ = ("conflicts", "pieces", "request_id", "sources", "values")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.conflicts: dict[str, str] = {}
        self.pieces: Pieces = {}

    @classmethod
    def of(cls, record: RequestRecord) -> "Join":
        """Return what ``record`` holds, to be added to."""
        join = cls(record.request_id)
        join.values = {field: getattr(record, field) for field in record.sources}
        join.sources = dict(record.sources)
        join.conflicts = dict(record.conflicts)
        join.pieces = record.pieces
        return join

    def record(self) -> RequestRecord:
        """Return the record that the parts so far make."""
        return RequestRecord(
            request_id=self.request_id,
            sources=self.sources,
            conflicts=self.conflicts,
            pieces=self.pieces,
            **self.values,
        )

    def add(self, part: RequestPart) -> bool:
        """Add ``part``; return whether that changed anything."""
        if part.request_id != self.request_id:
            raise ValueError(f"part of {part.request_id!r} merged into {self.request_id!r}")
        source = _NAMES[part.source]
        if not self.sources and not self.pieces:  # nearly always: nothing was told before
            self.values = {
                field: value
                for field, value in part.values.items()
                if value is not None
                and field not in _TOKENS
                and not (isinstance(value, float) and not isfinite(value))
            }
            self.sources = dict.fromkeys(self.values, source)
            return self._add_piece(part, source) or bool(self.values)
        changed = False
        values, sources = self.values, self.sources
        for field, value in part.values.items():
            if value is None or field in _TOKENS or (isinstance(value, float) and not isfinite(value)):
                continue
            if field in sources:
                changed |= self._compete(field, source, value)
            else:
                values[field] = value
                sources[field] = source
                changed = True
        return self._add_piece(part, source) or changed

    def _compete(self, field: str, source: str, value: Any) -> bool:
        """Let ``value`` and the known one of ``field`` compete; return whether that changed anything.

        Of all values that differ from the known one the conflict names the most trusted source. That is
        never lost: who is replaced was the most trusted of all that was told so far.
        """
        known, before = self.values[field], self.sources[field]
        ranks = _RANKS[field]
        wins = ranks[source] < ranks[before] or (source == before and _order(value) > _order(known))
        if wins:
            self.values[field], self.sources[field] = value, source
        if isinstance(value, float) or field in _NEVER_IN_CONFLICT or value == known:
            return wins
        doubter, told = (before if wins else source), self.conflicts.get(field)
        if wins or told is None or ranks[doubter] < ranks[told]:
            self.conflicts[field] = doubter
            return True
        return False

    def _add_piece(self, part: RequestPart, source: str) -> bool:
        counts = _counts(part)
        if counts == _NOTHING and not part.piece:
            return False
        if not self.pieces:  # nearly always: what is told first is the sum
            self.pieces = {source: {part.piece: counts}}
            for field, count in zip(TOKEN_FIELDS, counts, strict=True):
                if count is not None and count <= _LARGEST_COUNT:
                    self.values[field], self.sources[field] = count, source
            return True
        pieces = _grown(self.pieces, source, part.piece, counts)
        if pieces is None:
            return False
        self.pieces = pieces
        sequences = count_sequences(pieces)
        for place, field in enumerate(TOKEN_FIELDS):
            total, teller, doubter = _total(pieces, field, place, sequences)
            _put(self.values, field, total)
            _put(self.sources, field, teller)
            _put(self.conflicts, field, doubter)
        return True


def _put(into: dict[str, Any], field: str, value: Any) -> None:
    if value is not None:
        into[field] = value
    elif field in into:
        del into[field]


def _counts(part: RequestPart) -> Counts:
    counts: Counts = tuple(map(part.values.get, TOKEN_FIELDS))
    if not _PLAIN_KINDS.issuperset(map(type, counts)):
        return tuple(None if _is_no_number(count) else count for count in counts)
    return counts


def _grown(known: Pieces, source: str, piece: str, counts: Counts) -> Pieces | None:
    """Return the pieces with what is told of one, or None where nothing changes."""
    own = known.get(source, {})
    before = own.get(piece)
    after = counts if before is None else tuple(map(_greater, before, counts))
    if after == before or TOO_MANY in own:
        return None
    grown: Mapping[str, Counts] = {**own, piece: after}
    return {**known, source: grown if len(grown) <= MOST_PIECES else _TOO_MANY}


def _is_no_number(count: float | None) -> bool:
    return count is None or not isfinite(count)


def _greater(one: int | None, other: int | None) -> int | None:
    return max((count for count in (one, other) if count is not None), default=None)


def _total(
    pieces: Pieces, field: str, place: int, sequences: int
) -> tuple[int | None, str | None, str | None]:
    """Return the sum over the pieces of the source that is taken for ``field``, that source, and the most
    trusted one of those whose sum is another.
    """
    ranks = _RANKS[field]
    sums = sorted(
        (ranks[source], source, sum(told))
        for source, own in pieces.items()
        if len(told := _told(own, place)) >= sequences
    )
    if not sums or sums[0][2] > _LARGEST_COUNT:
        return None, None, None
    _, teller, total = sums[0]
    return total, teller, next((source for _, source, other in sums if other != total), None)


def _told(own: Mapping[str, Counts], place: int) -> list[int]:
    """Return what one source tells at ``place``; what it says of the whole counts where no sequence does."""
    if len(own) == 1:  # nearly always
        (counts,) = own.values()
        return [] if (count := counts[place]) is None else [count]
    told = [count for piece, counts in own.items() if piece and (count := counts[place]) is not None]
    if not told and "" in own and len(own) <= _ONE_AND_THE_WHOLE and (whole := own[""][place]) is not None:
        return [whole]
    return told
