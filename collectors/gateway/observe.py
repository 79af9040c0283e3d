"""Reads times, usage and the end of an answer from its bytes while they pass."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from collectors.gateway.dialects import DIALECTS, Dialect, choices_of, take_openai_usage
from collectors.gateway.observation import Observation
from collectors.gateway.sse import EventSplitter, Piece, event_data
from collectors.gateway.usage import UsageStripper

_DONE = b"[DONE]"  # not JSON: passed over without an attempt to read it
_EVENT_STREAM = "text/event-stream"


class Observer(Protocol):
    """Sees an answer's bytes in order and says which of them the client gets."""

    @property
    def streaming(self) -> bool:
        """Whether it reads events, among which an error can be told."""
        ...

    @property
    def strips(self) -> bool:
        """Whether the client may get less than came."""
        ...

    def feed(self, data: bytes, at: float) -> bytes:
        """Note ``data``, received ``at``, and return what goes to the client now."""
        ...

    def end(self) -> bytes:
        """Note the end of the answer and return what still goes to the client."""
        ...

    def broken(self) -> bytes:
        """Note that the answer broke off and return what the client still gets of it."""
        ...

    def observed(self) -> Observation:
        """Return what was seen."""
        ...


class StreamObserver:
    """Observes server-sent events; ``stripper`` is given where usage must be taken out again."""

    streaming = True

    def __init__(self, dialect: Dialect, *, single: bool, stripper: UsageStripper | None) -> None:
        self._dialect = dialect
        self._running = dialect.running
        self._usage_mark = dialect.usage_mark
        self._splitter = EventSplitter()
        self._stripper = stripper
        self._seen = Observation(gaps_seconds=[] if single else None)
        self._gaps = self._seen.gaps_seconds
        self._undisturbed = False  # content was seen and nothing waits for more
        self._last_at = 0.0
        self._last_usage: bytes | None = None

    @property
    def strips(self) -> bool:
        """Whether usage is taken out."""
        return self._stripper is not None

    def feed(self, data: bytes, at: float) -> bytes:
        """Note the events that ``data`` completes."""
        # most of what comes: one event with a token and nothing else, while nothing waits
        if (
            self._running in data
            and data.find(b"\n\n") == len(data) - 2
            and self._undisturbed
            and (self._usage_mark is None or self._usage_mark not in data)
            and b"\r" not in data
        ):
            if self._gaps is not None:
                self._gaps.append(at - self._last_at)
            self._last_at = at
            return data
        passed = self._feed(data, at)
        self._undisturbed = (
            self._seen.first_content_at is not None
            and self._splitter.empty
            and (self._stripper is None or self._stripper.empty)
        )
        return passed

    def _feed(self, data: bytes, at: float) -> bytes:
        pieces = self._splitter.feed(data)
        if self._stripper is None:
            for piece in pieces:
                self._safely_note(piece, at)
            return data
        return b"".join([self._note_and_strip(piece, at, self._stripper) for piece in pieces])

    def end(self) -> bytes:
        """Return what waits: a last chunk whose usage never came, an unfinished event."""
        rest = self._splitter.rest()
        return b"" if self._stripper is None else self._stripper.release() + rest

    def broken(self) -> bytes:
        """Return the whole events that wait; the client is spared a part of one."""
        return b"" if self._stripper is None else self._stripper.release()

    def observed(self) -> Observation:
        """Return what was seen, with the last usage that was told."""
        seen = self._seen
        if self._last_usage is not None:
            chunk = _decode(event_data(self._last_usage))
            self._last_usage = None
            if chunk is not None:
                take_openai_usage(seen, chunk.get("usage"))
        return seen

    def _note_and_strip(self, piece: Piece, at: float, stripper: UsageStripper) -> bytes:
        chunk = self._safely_note(piece, at)
        terminal = chunk is not None and any(choice.get("finish_reason") for choice in choices_of(chunk))
        return stripper.pass_on(piece, chunk=chunk, terminal=terminal)

    def _safely_note(self, piece: Piece, at: float) -> dict[str, Any] | None:
        """Note one event; a fault of ours counts it as unread and changes nothing else."""
        try:
            return self._note(piece, at)
        except Exception:  # noqa: BLE001 - observing must not break the stream
            self._seen.unread += 1
            return None

    def _note(self, piece: Piece, at: float) -> dict[str, Any] | None:
        """Note one event and return its chunk, or None for a chunk like most: a token and nothing else."""
        raw = piece.raw
        if not piece.whole:
            self._content(at)
            return None
        told = self._usage_mark is not None and self._usage_mark in raw
        if told:
            self._last_usage = raw
        elif self._running in raw and self._seen.first_content_at is not None:
            self._content(at)
            return None
        data = event_data(raw)
        if not data or data == _DONE:
            return None
        chunk = _decode(data)
        if chunk is not None and self._dialect.note_event(self._seen, chunk):
            self._content(at)
        return chunk

    def _content(self, at: float) -> None:
        """Note content that came ``at``; events of one read came at one time."""
        if self._seen.first_content_at is None:
            self._seen.first_content_at = at
        elif self._gaps is not None:
            self._gaps.append(at - self._last_at)
        self._last_at = at


class AnswerObserver:
    """Observes an answer that comes as one JSON document, up to ``limit`` bytes."""

    streaming = False
    strips = False

    def __init__(self, dialect: Dialect, limit: int) -> None:
        self._dialect = dialect
        self._left = limit
        self._parts: list[bytes] = []
        self._seen = Observation()

    def feed(self, data: bytes, at: float) -> bytes:
        """Keep ``data`` for the end, where the answer is not too large."""
        del at
        self._left -= len(data)
        if self._left >= 0:
            self._parts.append(data)
        else:
            self._parts.clear()
        return data

    def end(self) -> bytes:
        """Read the answer."""
        answer = _decode(b"".join(self._parts)) if self._left >= 0 else None
        self._parts.clear()
        if answer is not None:
            self._dialect.note_answer(self._seen, answer)
        return b""

    def broken(self) -> bytes:
        """Return nothing: the client has got everything."""
        return b""

    def observed(self) -> Observation:
        """Return what was seen."""
        return self._seen


def _decode(data: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def observer_of(
    api: str,
    headers: Mapping[str, str],
    *,
    single: bool,
    stripper: UsageStripper | None,
    limit: int,
) -> StreamObserver | AnswerObserver | None:
    """Return what reads an answer with these headers (lower-case names); nothing reads a compressed one."""
    if headers.get("content-encoding", "identity") != "identity":
        return None
    dialect = DIALECTS[api]
    if headers.get("content-type", "").startswith(_EVENT_STREAM):
        return StreamObserver(dialect, single=single, stripper=stripper)
    return AnswerObserver(dialect, limit)
