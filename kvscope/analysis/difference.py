"""Where two prompts' texts first differ, and what kind of value stands there."""

import dataclasses
import json
from collections.abc import Sequence

from kvscope.prompts.segments import Segment
from kvscope.prompts.values import ValueKind, kind_at


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A range of characters in one segment of a request; no text is held.

    ``role`` and ``message_index`` are the segment's. ``value_kind`` is a ``ValueKind``'s value, or None where
    the segment is new as a whole, as an appended message is.
    """

    role: str
    message_index: int | None
    char_start: int
    char_end: int
    value_kind: str | None


def first_difference(request: Sequence[Segment], known: Sequence[Segment]) -> Place | None:
    """Return the place in ``request`` where it leaves ``known``, or None where ``known`` holds all of it."""
    for at, segment in enumerate(request):
        other = known[at] if at < len(known) else None
        if other is None or other.role != segment.role:
            return _place(segment, 0, len(segment.text), None)
        if other.text != segment.text:
            return _within_tools(segment, other) if segment.role == "tools" else _within_text(segment, other)
    return None


def common_prefix(one: str, other: str) -> int:
    """Return the number of characters that both texts begin with."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low if one[low] != other[low] else high


def _place(segment: Segment, start: int, end: int, kind: ValueKind | None) -> Place:
    return Place(
        role=segment.role,
        message_index=segment.message_index,
        char_start=start,
        char_end=max(start, end),
        value_kind=None if kind is None else kind.value,
    )


def _differing(one: str, other: str) -> tuple[int, int]:
    """Return the range of ``one`` between what both texts begin with and what both end with."""
    start = common_prefix(one, other)
    shorter = min(len(one), len(other)) - start
    end = common_prefix(one[::-1][:shorter], other[::-1][:shorter])
    return start, len(one) - end


def _within_tools(segment: Segment, other: Segment) -> Place:
    start, end = _differing(segment.text, other.text)
    ours, theirs = _canonical_lines(segment.text), _canonical_lines(other.text)
    if ours == theirs:
        return _place(segment, start, end, ValueKind.JSON_KEY_ORDER)
    if sorted(ours) == sorted(theirs):
        return _place(segment, start, end, ValueKind.TOOL_ORDER)
    return _value_or_text(segment, other, start)


def _canonical_lines(text: str) -> list[str]:
    """Return the lines with JSON keys in order; a line that is not JSON stays as it is."""
    lines: list[str] = []
    for line in text.split("\n"):
        try:
            lines.append(json.dumps(json.loads(line), sort_keys=True))
        except ValueError:
            lines.append(line)
    return lines


def _within_text(segment: Segment, other: Segment) -> Place:
    text = segment.text
    if text.split() == other.text.split():
        start, end = _differing(text, other.text)
        return _place(segment, start, end, ValueKind.WHITESPACE)
    lines = text.split("\n")
    if len(lines) > 1 and sorted(lines) == sorted(other.text.split("\n")):
        start, end = _differing(text, other.text)
        return _place(segment, start, end, ValueKind.LINE_ORDER)
    return _value_or_text(segment, other, common_prefix(text, other.text))


def _value_or_text(segment: Segment, other: Segment, start: int) -> Place:
    """Name the value at ``start``; where none is known, the rest of the line is text."""
    text = segment.text
    span = kind_at(text, start)
    if span is not None:
        return _place(segment, span.start, span.end, span.kind)
    line_end = text.find("\n", start)
    end = len(text) if line_end < 0 else line_end
    theirs = kind_at(other.text, start)
    return _place(segment, start, end, ValueKind.TEXT if theirs is None else theirs.kind)
