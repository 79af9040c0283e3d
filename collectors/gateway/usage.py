"""Asks the server for usage where the client did not, and takes it out of the answer again."""

from collections.abc import Mapping
from typing import Any

import msgspec

from collectors.gateway.sse import Piece, event_data
from kvscope.prompts.segments import CHAT, COMPLETION

_ASKED = frozenset((CHAT, COMPLETION))  # the others tell usage of themselves
_TERMINAL_TAIL = b"}\n\n"
_DATA = b"data: {"
_FINGERPRINT = b'"system_fingerprint"'


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Tell whether the client itself asked for usage in its stream."""
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def can_ask(api: str, body: Mapping[str, Any]) -> bool:
    """Tell whether usage can be asked for: a stream of such an API, and options that are understood."""
    options = body.get("stream_options")
    return (
        api in _ASKED
        and body.get("stream") is True
        and (options is None or isinstance(options, dict))
        and not wants_usage(body)
    )


def asking(raw: bytes, body: Mapping[str, Any]) -> bytes:
    """Return ``raw``, the encoded ``body``, such that it asks for usage.

    Where nothing stood under ``stream_options`` the bytes stay the same but for one key at the end.
    """
    if "stream_options" not in body:
        end = raw.rindex(b"}")
        return raw[:end] + b',"stream_options":{"include_usage":true}' + raw[end:]
    options = {**(body["stream_options"] or {}), "include_usage": True}
    options.pop("continuous_usage_stats", None)  # without include_usage it had no effect
    return msgspec.json.encode({**body, "stream_options": options})


class UsageStripper:
    """Makes of a stream with usage the stream that vLLM sends without it.

    vLLM (0.32, recorded) puts ``system_fingerprint`` on the usage chunk where there is one, else on each
    chunk with a finish reason. So such a chunk waits for the usage chunk, which the engine sends right behind
    it, and gets the fingerprint from there. With several choices nothing may wait; then the fingerprint is
    the one that this server is known to have.
    A server that sends usage in every chunk does so for every client: then nothing is taken out.
    """

    __slots__ = ("_held", "_may_wait", "_usage_everywhere", "fingerprint")

    def __init__(self, *, may_wait: bool, fingerprint: str | None) -> None:
        self._may_wait = may_wait
        self._held: list[bytes] = []
        self._usage_everywhere = False
        self.fingerprint = fingerprint

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._held

    def pass_on(self, piece: Piece, *, chunk: Mapping[str, Any] | None, terminal: bool) -> bytes:
        """Return what of ``piece`` and of what waited goes to the client now."""
        if chunk is not None and chunk.get("usage"):
            if chunk.get("choices") != []:
                self._usage_everywhere = True
            elif not self._usage_everywhere:
                return self._without_usage(chunk)
        if terminal and not self._usage_everywhere:
            if self._may_wait:
                self._held.append(piece.raw)
                return b""
            return _with_fingerprint(piece.raw, self.fingerprint)
        if self._held and piece.whole and not event_data(piece.raw):
            self._held.append(piece.raw)  # a comment keeps its place
            return b""
        return self.release() + piece.raw

    def release(self) -> bytes:
        """Give out what waits, as it came."""
        held = b"".join(self._held)
        self._held.clear()
        return held

    def _without_usage(self, chunk: Mapping[str, Any]) -> bytes:
        fingerprint = chunk.get("system_fingerprint")
        self.fingerprint = fingerprint if isinstance(fingerprint, str) else None
        held = b"".join(_with_fingerprint(raw, self.fingerprint) for raw in self._held)
        self._held.clear()
        return held


def _with_fingerprint(raw: bytes, fingerprint: str | None) -> bytes:
    known = fingerprint is not None and raw.startswith(_DATA) and raw.endswith(_TERMINAL_TAIL)
    if not known or _FINGERPRINT in raw:
        return raw
    return raw[:-3] + b"," + _FINGERPRINT + b":" + msgspec.json.encode(fingerprint) + _TERMINAL_TAIL
