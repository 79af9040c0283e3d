"""The servers' side: one connection to an inference server, and the answers that are read from it."""

import asyncio
import dataclasses
import time
from typing import Any, Protocol

import httptools
from typing_extensions import override

from collectors.gateway.errors import (
    NotHttpUpstreamError,
    SilentUpstreamError,
    UpstreamError,
)
from collectors.gateway.headers import Headers
from collectors.gateway.incoming import Source
from collectors.gateway.wire import Framing, framing_of

_FIRST_FINAL = 200
_BODILESS = (204, 304)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer."""

    status: int
    reason: bytes
    headers: Headers
    framing: Framing


class Receiver(Protocol):
    """Hears of an answer as it comes, inside the event loop; must not raise and not wait."""

    def head(self, answer: Answer, source: Source) -> None:
        """The answer begins; ``source`` can be told to wait."""
        ...

    def part(self, data: bytes, at: float) -> None:
        """A part of its body came ``at`` (monotonic); parts are cut where chunks and reads are."""
        ...

    def flush(self) -> None:
        """Nothing more was read for now."""
        ...

    def end(self) -> None:
        """The answer is whole."""
        ...


class _AnswerReader:
    """Gathers what one read tells; the parser calls it."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.on_body = self.parts.append
        self.parser: Any = httptools.HttpResponseParser(self)
        self.answer: Answer | None = None
        self.complete = False
        self.keeps = False  # the server leaves the connection open
        self._reason = b""
        self._headers: Headers = []

    def on_message_begin(self) -> None:
        """An answer begins; others than the first one are not expected."""
        self._reason, self._headers = b"", []

    def on_status(self, part: bytes) -> None:
        """A part of the reason phrase."""
        self._reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; those behind the body (trailers) end here."""
        if self.answer is None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole; interim answers (1xx) are for this hop."""
        status = self.parser.get_status_code()
        if status < _FIRST_FINAL:
            return
        ends = Framing.NONE if status in _BODILESS else framing_of(self._headers, otherwise=Framing.CLOSE)
        self.keeps = ends is not Framing.CLOSE and self.parser.should_keep_alive()
        self.answer = Answer(status, self._reason, self._headers, ends)

    def on_message_complete(self) -> None:
        """The answer is whole, if it is not an interim one."""
        self.complete = self.answer is not None


class ServerConnection(asyncio.Protocol):
    """One connection to a server: carries one exchange after the other."""

    def __init__(self, engine: str, read_seconds: float) -> None:
        self.engine = engine
        self.idle_since = 0.0
        self._read_seconds = read_seconds
        self._transport: Any = None
        self._reader = _AnswerReader()
        self._receiver: Receiver | None = None
        self._head_only = False
        self.begun = False  # the answer's head was handed on
        self._ended: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._began_at = 0.0
        self.first_part_seconds: float | None = None  # of the latest exchange
        self._open = False

    @property
    def usable(self) -> bool:
        """Whether another exchange may begin."""
        return self._open

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._open = True

    @override
    def data_received(self, data: bytes) -> None:
        self._heard_at = at = time.perf_counter()
        if self._receiver is None:
            self.abort()
            return
        reader = self._reader
        try:
            reader.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._open = False
            if not reader.complete:
                self._deliver(at)
                self._fail(NotHttpUpstreamError(self.engine))
                return
        self._deliver(at)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._receiver is None:
            return
        answer = self._reader.answer
        if exc is None and answer is not None and answer.framing is Framing.CLOSE:
            self._end(keeps=False)
        else:
            self._fail(UpstreamError(self.engine))

    @override
    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    @override
    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def begin(self, receiver: Receiver, *, head_only: bool) -> asyncio.Future[None]:
        """Begin an exchange; what is returned is done with the answer, or fails with ``UpstreamError``."""
        loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._head_only = head_only
        self.begun = False
        self._reader.answer = None
        self._reader.complete = False
        self.first_part_seconds = None
        self._began_at = self._heard_at = time.perf_counter()
        self._ended = loop.create_future()
        self._timer = loop.call_later(self._read_seconds, self._look)
        return self._ended

    def write(self, data: bytes) -> None:
        """Send a part of the request."""
        self._transport.write(data)

    async def drained(self) -> None:
        """Wait while the server reads slowly."""
        if self._writable is not None:
            await self._writable

    def pause_reading(self) -> None:
        """Take nothing more from the server for now."""
        if self._open:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if self._open:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once; an exchange that is running ends."""
        self._open = False
        self._receiver = None
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def break_off(self) -> None:
        """Close at once; an exchange that is running fails."""
        if self._receiver is None:
            self.abort()
        else:
            self._fail(UpstreamError(self.engine))

    def _deliver(self, at: float) -> None:
        """Hand on what the last read told."""
        reader, receiver = self._reader, self._receiver
        if receiver is None or reader.answer is None:
            return
        if not self.begun:
            self.begun = True
            receiver.head(reader.answer, self)
        if self._head_only:
            self._end(keeps=reader.keeps)
            self._reader = _AnswerReader()  # the old one waits for a body that the head announces
            return
        if reader.parts:
            if self.first_part_seconds is None:
                self.first_part_seconds = at - self._began_at
            for part in reader.parts:
                receiver.part(part, at)
            reader.parts.clear()
        receiver.flush()
        if reader.complete:
            self._end(keeps=reader.keeps)

    def _end(self, *, keeps: bool) -> None:
        receiver = self._detach()
        if receiver is not None:
            self._open = self._open and keeps
            receiver.end()
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

    def _fail(self, error: UpstreamError) -> None:
        self._detach()
        self.abort()
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _detach(self) -> Receiver | None:
        receiver, self._receiver = self._receiver, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return receiver

    def _look(self) -> None:
        """End an exchange in which nothing came for the read time; look again later otherwise."""
        left = self._heard_at + self._read_seconds - time.perf_counter()
        if left <= 0:
            self._fail(SilentUpstreamError(self.engine))
        else:
            self._timer = asyncio.get_running_loop().call_later(left, self._look)
