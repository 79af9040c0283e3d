"""Reads times, usage and the end of an answer from its bytes while they pass."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from collectors.gateway.sse import EventSplitter, Piece, event_data
from collectors.gateway.usage import UsageStripper

_RUNNING = b'"finish_reason":null'  # inside a JSON string the quotes would be escaped
_USAGE = b'"usage":{'
_DONE = b"[DONE]"  # not JSON: passed over without an attempt to read it


@dataclasses.dataclass(slots=True, kw_only=True)
class Observation:
    """What an answer told; None where it did not. Times are in seconds of the monotonic clock."""

    first_content_at: float | None = None
    gaps_seconds: list[float] | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    fingerprint: str | None = None
    fingerprint_told: bool = False  # a last chunk, which holds it where the server has one, was seen
    failed: bool = False  # the answer itself tells of an error
    unread: int = 0  # events on which the observer failed; they passed all the same

    def take_usage(self, usage: Any) -> None:
        """Note the tokens that an OpenAI ``usage`` object tells."""
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = _count(usage.get("prompt_tokens"))
        self.output_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        # vLLM up to 0.23 says null for "none cached" and for "not told": both stay unknown
        self.cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None

    def take_fingerprint(self, chunk: Mapping[str, Any]) -> None:
        """Note the server's fingerprint, or that a usage object came without one."""
        fingerprint = chunk.get("system_fingerprint")
        if isinstance(fingerprint, str):
            self.fingerprint, self.fingerprint_told = fingerprint, True
        elif chunk.get("usage") and not chunk.get("choices"):
            self.fingerprint_told = True


class Observer(Protocol):
    """Sees an answer's bytes in order and says which of them the client gets."""

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

    def __init__(self, *, single: bool, stripper: UsageStripper | None) -> None:
        self._splitter = EventSplitter()
        self._stripper = stripper
        self._seen = Observation(gaps_seconds=[] if single else None)
        self._last_at = 0.0
        self._last_usage: bytes | None = None

    def feed(self, data: bytes, at: float) -> bytes:
        """Note the events that ``data`` completes."""
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
                seen.take_usage(chunk.get("usage"))
        return seen

    def _note_and_strip(self, piece: Piece, at: float, stripper: UsageStripper) -> bytes:
        chunk = self._safely_note(piece, at)
        terminal = chunk is not None and any(choice.get("finish_reason") for choice in _choices(chunk))
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
        told = _USAGE in raw
        if told:
            self._last_usage = raw
        if _RUNNING in raw and not told and self._seen.first_content_at is not None:
            self._content(at)
            return None
        data = event_data(raw)
        if not data or data == _DONE:
            return None
        chunk = _decode(data)
        if chunk is not None:
            self._note_chunk(chunk, at)
        return chunk

    def _note_chunk(self, chunk: Mapping[str, Any], at: float) -> None:
        if chunk.get("error"):
            self._seen.failed = True
        self._seen.take_fingerprint(chunk)
        choices = _choices(chunk)
        if any(map(_has_content, choices)):
            self._content(at)
        for choice in choices:
            if isinstance(reason := choice.get("finish_reason"), str):
                self._seen.finish_reason = reason

    def _content(self, at: float) -> None:
        """Note content that came ``at``; events of one read came at one time."""
        if self._seen.first_content_at is None:
            self._seen.first_content_at = at
        elif self._seen.gaps_seconds is not None:
            self._seen.gaps_seconds.append(at - self._last_at)
        self._last_at = at


class AnswerObserver:
    """Observes an answer that comes as one JSON document, up to ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
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
            self._seen.take_usage(answer.get("usage"))
            self._seen.failed = bool(answer.get("error"))
            self._seen.take_fingerprint(answer)
            for choice in _choices(answer):
                if isinstance(reason := choice.get("finish_reason"), str):
                    self._seen.finish_reason = reason
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


def _choices(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _has_content(choice: Mapping[str, Any]) -> bool:
    """Tell whether a choice holds output: text, reasoning, tool calls or token ids, not a role alone."""
    delta = choice.get("delta")
    if isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role"):
        return True
    return bool(choice.get("text") or choice.get("token_ids"))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
