"""Recognises the values in a text that tend to vary from prompt to prompt, and labels lines without them."""

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache

from kvscope.prompts.patterns import CANDIDATE, DATE_WITHIN, NUMBER

_WINDOW_CHARS = 4096  # a longer line is looked at around the position only
_LABEL_CHARS = 40
_KEY_CHARS = 2048
_SEPARATOR = re.compile(r"[:=\uff1a]")
_SPACES = re.compile(r"\s+")
_DIGIT_GROUPS = re.compile(r"[0-9]+")
_DIGIT_THEN_LETTER = re.compile(r"[0-9][A-Za-z]")
_HEX = re.compile(r"(?:0[xX])?[0-9A-Fa-f]{8,}")
_WORD_THEN_DIGITS = re.compile(r"[A-Za-z]+[0-9]{3,}")
_URL_TAIL = ".,;:!?*_~"
_EARLIEST_EPOCH = 1_262_304_000  # 2010-01-01
_LATEST_EPOCH = 2_208_988_800  # 2040-01-01
_EPOCH_UNITS = {10: 1, 13: 1_000, 16: 1_000_000, 19: 1_000_000_000}  # digits -> units a second


class ValueKind(StrEnum):
    """What kind of value differs between two prompts; the last eight are named by who compares them."""

    TIMESTAMP = "timestamp"
    DATE = "date"
    TIME = "time"
    UUID = "uuid"
    HEX_ID = "hex_id"
    PREFIXED_ID = "prefixed_id"
    OPAQUE_ID = "opaque_id"
    NUMBER = "number"
    EMAIL = "email"
    IP = "ip"
    URL = "url"
    JSON_KEY_ORDER = "json_key_order"
    TOOL_ORDER = "tool_order"
    LINE_ORDER = "line_order"
    EXAMPLE_ORDER = "example_order"
    DOCUMENT_ORDER = "document_order"
    LIST_ORDER = "list_order"
    WHITESPACE = "whitespace"
    TEXT = "text"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ValueSpan:
    """A value at ``text[start:end]``."""

    kind: ValueKind
    start: int
    end: int


def find_values(text: str) -> list[ValueSpan]:
    """Return the values of ``text`` from left to right, none overlapping; time is linear in the text."""
    return list(_scan(text, 0, len(text)))


def kind_at(text: str, position: int) -> ValueSpan | None:
    """Return the longest value that covers or touches ``position``, or None.

    Values do not cross lines. Of a very long line only the surroundings are looked at.
    """
    if not 0 <= position <= len(text):
        return None
    start, end = _window(text, position)
    touching = [span for span in _scan(text, start, end) if span.start <= position <= span.end]
    return max(touching, key=lambda span: span.end - span.start, default=None)


def line_key(line: str) -> str:
    """Return a label of the line that stays the same when its values change.

    It is the text before the first ``:`` or ``=`` where that is short and holds no value itself, else the
    line with each value replaced by its kind in angle brackets. Runs of whitespace count as one space.
    The first 2,048 characters speak for a longer line.
    """
    stripped = line[:_KEY_CHARS].strip()
    values = find_values(stripped)
    separator = _SEPARATOR.search(stripped)
    if separator and separator.start() <= _LABEL_CHARS:
        label = stripped[: separator.start()].rstrip()
        first_value = values[0].start if values else len(stripped)
        if first_value >= separator.end() and any(letter.isalpha() for letter in label):
            return _SPACES.sub(" ", label) + stripped[separator.start()]
    pieces: list[str] = []
    position = 0
    for span in values:
        pieces += (stripped[position : span.start], f"<{span.kind}>")
        position = span.end
    pieces.append(stripped[position:])
    return _SPACES.sub(" ", "".join(pieces))


def line_key_hash(line: str) -> str:
    """Return 16 hex digits of the SHA-256 of ``line_key(line)``: tells lines apart without their text."""
    return _hash(line[:_KEY_CHARS])


@lru_cache(maxsize=8192)  # most lines of most requests are old ones, and this lies on the way of traffic
def _hash(line: str) -> str:
    return hashlib.sha256(line_key(line).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _window(text: str, position: int) -> tuple[int, int]:
    """Return the line around ``position``, cut at whitespace where it is very long."""
    half = _WINDOW_CHARS // 2
    low, high = max(0, position - half), min(len(text), position + half)
    start = text.rfind("\n", low, position) + 1
    if start == 0:
        start = low
        while 0 < start < position and not text[start - 1].isspace():
            start += 1
        start = start if start < position else low
    end = text.find("\n", position, high)
    return start, high if end < 0 else end


def _scan(text: str, start: int, end: int) -> Iterator[ValueSpan]:
    position = start
    while found := CANDIDATE.search(text, position, end):
        group = found.lastgroup or "run"
        if group == "compound":
            span, position = _compound(found)
        elif group == "run":
            span = _run(text, found, end)
            position = span.end if span else found.end()
        else:
            span = _plain(ValueKind(group), found)
            position = span.end
        if span:
            yield span


def _plain(kind: ValueKind, found: re.Match[str]) -> ValueSpan:
    end = found.end()
    if kind is ValueKind.URL:
        end = found.start() + len(found[0].rstrip(_URL_TAIL))
    return ValueSpan(kind=kind, start=found.start(), end=end)


def _compound(found: re.Match[str]) -> tuple[ValueSpan | None, int]:
    """Return the prefixed id that ``found`` is, if it is one, and where to look on."""
    word, start = found[0], found.start()
    if date := DATE_WITHIN.search(word):
        return None, start + date.start()
    parts = re.split("[_-]", word)
    if any(map(_looks_issued, parts[1:])):
        return ValueSpan(kind=ValueKind.PREFIXED_ID, start=start, end=found.end()), found.end()
    return None, start + len(parts[0])


def _looks_issued(part: str) -> bool:
    """Tell an issued id from a word: many digits, or digits among letters."""
    if part.isdigit():
        return len(part) >= 3  # noqa: PLR2004 - `order-123` yes, `utf-8` and `covid-19` no
    digits = sum(map(str.isdigit, part))
    return len(part) >= 4 and digits > 0 and (digits > 1 or bool(_DIGIT_THEN_LETTER.search(part)))  # noqa: PLR2004


def _run(text: str, found: re.Match[str], end: int) -> ValueSpan | None:
    """Classify a run of letters and digits that holds a digit."""
    run, start = found[0], found.start()
    if run.isdigit():
        number = NUMBER.match(text, start, end) or found
        kind = ValueKind.TIMESTAMP if _is_epoch(run) else ValueKind.NUMBER
        return ValueSpan(kind=kind, start=start, end=number.end())
    kind_of_run = _mixed(run)
    if kind_of_run:
        return ValueSpan(kind=kind_of_run, start=start, end=found.end())
    if digits := _DIGIT_GROUPS.search(run):
        return ValueSpan(kind=ValueKind.NUMBER, start=start + digits.start(), end=start + digits.end())
    return None


def _mixed(run: str) -> ValueKind | None:
    """Return the kind of an id of letters and digits, or None for a word such as ``v2`` or ``5km``."""
    if _HEX.fullmatch(run):
        return ValueKind.HEX_ID
    if _WORD_THEN_DIGITS.fullmatch(run):
        return ValueKind.PREFIXED_ID
    groups = _DIGIT_GROUPS.findall(run)
    if len(run) >= 8 and len(groups) > 1:  # noqa: PLR2004 - shorter ones are names such as `R2D2`
        return ValueKind.OPAQUE_ID
    return None


def _is_epoch(digits: str) -> bool:
    """Tell Unix time of a plausible year, in seconds to nanoseconds, by its digits."""
    unit = _EPOCH_UNITS.get(len(digits))
    return unit is not None and _EARLIEST_EPOCH <= int(digits) // unit < _LATEST_EPOCH
