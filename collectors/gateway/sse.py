"""Splits a stream of server-sent events into events without changing a byte."""

import re
from typing import NamedTuple

# Two line ends in a row; a CR at the end of what has come may still be the first half of a CR LF.
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?=[^\n])){2}")
_LONGEST_BLANK_LINE = 4


class Piece(NamedTuple):
    """Bytes of the stream: a whole event with its blank line, or a part of one that was too large to hold."""

    raw: bytes
    whole: bool


class EventSplitter:
    """Takes bytes as they come and gives out pieces; joined again they are the stream.

    Holds ``limit`` bytes of an unfinished event at most.
    """

    __slots__ = ("_limit", "_oversized", "_waiting")

    def __init__(self, limit: int = 2**20) -> None:
        self._limit = limit
        self._waiting = bytearray()
        self._oversized = False

    @property
    def empty(self) -> bool:
        """Whether no part of an event waits for its end."""
        return not self._waiting and not self._oversized

    def feed(self, data: bytes) -> list[Piece]:
        """Return what ``data`` completes."""
        if not self._waiting and not self._oversized and _is_one_event(data):
            return [Piece(data, whole=True)]
        waiting = self._waiting
        searched = max(0, len(waiting) - _LONGEST_BLANK_LINE)
        waiting += data
        pieces: list[Piece] = []
        start = 0
        while end := _BLANK_LINE.search(waiting, max(start, searched)):
            pieces.append(Piece(bytes(waiting[start : end.end()]), whole=not self._oversized))
            self._oversized = False
            start = end.end()
        del waiting[:start]
        if len(waiting) > self._limit:
            cut = len(waiting) - _LONGEST_BLANK_LINE
            pieces.append(Piece(bytes(waiting[:cut]), whole=False))
            del waiting[:cut]
            self._oversized = True
        return pieces

    def rest(self) -> bytes:
        """Give out what waits for the end of its event."""
        rest = bytes(self._waiting)
        self._waiting.clear()
        return rest


def _is_one_event(data: bytes) -> bool:
    """Tell the usual case, one event in one chunk, without a regular expression."""
    return data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2 and b"\r" not in data


def event_data(raw: bytes) -> bytes:
    """Return the event's data lines joined by line feeds; empty for comments and other fields."""
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return raw[6:-2]
    lines = [line[5:].removeprefix(b" ") for line in raw.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)
