"""The clients' side: requests as they are read from a connection, and the answers that are written to it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import httptools

from collectors.gateway.errors import BadRequestError, BodyTooLargeError
from collectors.gateway.headers import Headers
from collectors.gateway.wire import (
    HEAD_BYTES,
    LAST_CHUNK,
    Framing,
    answer_head,
    framing_of,
    request_head,
)

_WAITING_BYTES = 2**18  # of a body that is passed on while it comes
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODILESS = (204, 304)
_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


class Source(Protocol):
    """What an answer comes from; it waits while the client reads slowly."""

    def pause_reading(self) -> None:
        """Take nothing more for now."""
        ...

    def resume_reading(self) -> None:
        """Go on."""
        ...


class Exchange:
    """One request of a client, and the way of the answer back to it.

    The answer's ``write`` never waits: ``source`` is told to pause while the client reads slowly.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_expects",
        "_held_back",
        "_http11",
        "_out",
        "_size",
        "_transport",
        "_waiter",
        "complete",
        "finished",
        "headers",
        "keep_alive",
        "method",
        "source",
        "started",
        "target",
        "tunnel",
    )

    def __init__(
        self, method: bytes, target: bytes, headers: Headers, *, http11: bool, keep_alive: bool, tunnel: bool
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.keep_alive = keep_alive
        self.tunnel = tunnel  # the client wants to speak WebSocket
        self.complete = False  # the whole request was read
        self.started = False
        self.finished = False
        self.source: Source | None = None
        self._http11 = http11
        self._chunked = False
        self._body: list[bytes] = []
        self._out: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._held_back = False
        self._transport: Any = None
        self._expects = http11 and any(
            name.lower() == b"expect" and value.strip().lower() == b"100-continue" for name, value in headers
        )

    @property
    def path(self) -> str:
        """The path as sent, without its query."""
        return self.target.partition(b"?")[0].decode("latin-1")

    @property
    def starved(self) -> bool:
        """Whether the client owes a part of the body that is waited for."""
        return self._waiter is not None

    def attach(self, transport: Any) -> None:
        """Say where the answer goes."""
        self._transport = transport

    def take(self, data: bytes) -> None:
        """Note a part of the body."""
        self._body.append(data)
        self._size += len(data)
        self._wake()

    def take_end(self) -> None:
        """Note the end of the body."""
        self.complete = True
        self._wake()

    def rest(self) -> bytes:
        """Return what has come behind the head of a request for a tunnel."""
        return b"".join(self._body)

    async def body(self, limit: int) -> bytes:
        """Return the whole body, once; raises ``BodyTooLargeError`` as soon as it is too large."""
        if any(_length(value) > limit for name, value in self.headers if name.lower() == b"content-length"):
            raise BodyTooLargeError
        while not self.complete:
            if self._size > limit:
                raise BodyTooLargeError
            await self._more()
        if self._size > limit:
            raise BodyTooLargeError
        parts, self._body = self._body, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; the client is held back while nobody asks for more."""
        while True:
            while self._body:
                part = self._body.pop(0)
                self._size -= len(part)
                yield part
            if self.complete:
                return
            await self._more()

    def hold_back(self) -> None:
        """Read no more of a body that comes quicker than it is passed on."""
        if self._size > _WAITING_BYTES and not self.complete and self._waiter is None:
            self._held_back = True
            self._transport.pause_reading()

    def start(self, status: int, reason: bytes, headers: Headers, framing: Framing) -> None:
        """Begin the answer. Where it ends with its connection, the client's is closed too or chunked."""
        self.started = True
        if self.method == b"HEAD" or status in _BODILESS:
            framing = Framing.NONE
        if framing in {Framing.CHUNKED, Framing.CLOSE}:
            self._chunked = self._http11
            self.keep_alive = self.keep_alive and self._http11
        rows = [*headers, (b"transfer-encoding", b"chunked")] if self._chunked else headers
        if not self.keep_alive:
            rows = [*rows, (b"connection", b"close")]
        elif not self._http11:
            rows = [*rows, (b"connection", b"keep-alive")]
        self._out.append(answer_head(status, reason, rows))

    def write(self, data: bytes) -> None:
        """Put a part of the answer's body behind what is to be sent; ``flush`` sends it."""
        if data:
            self._out.append(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def flush(self) -> None:
        """Send what was put: one packet for all that was read at once, as packets cost most."""
        if self._out:
            if not self._transport.is_closing():  # a client that has just left; its loss is told in a moment
                self._transport.write(b"".join(self._out))
            self._out.clear()

    def finish(self) -> None:
        """End the answer."""
        self.finished = True
        if self._chunked:
            self._out.append(LAST_CHUNK)
        self.flush()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _more(self) -> None:
        if self._expects:
            self._expects = False
            self._transport.write(_CONTINUE)
        if self._held_back:
            self._held_back = False
            self._transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class RequestReader:
    """Makes exchanges of a client's bytes; hands each on as soon as its head is read."""

    def __init__(self, begun: Callable[[Exchange], None]) -> None:
        self._begun = begun
        self._parser: Any = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: Headers = []
        self._head_bytes = 0
        self._body_bytes = 0  # of the latest read
        self.in_head = False
        self._exchange: Exchange | None = None
        self._other_protocol = False
        self._fault: BadRequestError | None = None

    def feed(self, data: bytes) -> bytes:
        """Take what has come; returns what follows the head of a request for a WebSocket.

        Raises ``BadRequestError`` for what is not HTTP or has too long a head.
        """
        self._body_bytes = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if not self._other_protocol:
                return rest
            self._without_upgrade(rest)
        except httptools.HttpParserError as error:
            raise BadRequestError(f"this is not an HTTP/1.1 request: {_cause(error)}") from error
        if self._fault is not None:
            raise self._fault
        if self.in_head or self._exchange is not None:
            self._head_bytes += len(data) - self._body_bytes
            if self._head_bytes > HEAD_BYTES:
                what = "head is" if self.in_head else "trailers are"
                raise BadRequestError(f"the request's {what} longer than {HEAD_BYTES} bytes", 431)
        return b""

    def on_message_begin(self) -> None:
        """A request begins."""
        self._target, self._headers, self._head_bytes, self.in_head = b"", [], 0, True

    def on_url(self, part: bytes) -> None:
        """A part of the target, which may come in several."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; those behind the body (trailers) end here."""
        if self.in_head:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self.in_head = False
        parser = self._parser
        if any(
            name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked"
            for name, value in self._headers
        ):
            self._fault = BadRequestError("of transfer codings only chunked is known here", 501)
            return
        upgrade = parser.should_upgrade()
        if upgrade and not self._wants_websocket():
            self._other_protocol = True
            return
        self._exchange = Exchange(
            parser.get_method(),
            _origin_form(self._target),
            self._headers,
            http11=parser.get_http_version() == "1.1",
            keep_alive=parser.should_keep_alive(),
            tunnel=upgrade,
        )
        self._begun(self._exchange)

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._head_bytes = 0
        self._body_bytes += len(data)
        if self._exchange is not None:
            self._exchange.take(data)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._exchange is not None:
            self._exchange.take_end()
            self._exchange = None

    def _wants_websocket(self) -> bool:
        return any(
            name.lower() == b"upgrade" and value.strip().lower() == b"websocket"
            for name, value in self._headers
        )

    def _without_upgrade(self, rest: bytes) -> None:
        """Read a request that offers another protocol (h2c) as if it did not: RFC 9110, section 7.8."""
        self._other_protocol = False
        kept = [row for row in self._headers if row[0].lower() not in {b"upgrade", b"connection"}]
        head = request_head(self._parser.get_method(), self._target, kept)
        self._parser = httptools.HttpRequestParser(self)
        self.feed(head + rest)


def _origin_form(target: bytes) -> bytes:
    """Return a target without scheme and host, where a client sends them as to a proxy (RFC 9112, 3.2.2)."""
    found = _ABSOLUTE.match(target)
    return target if found is None else b"/" + target[found.end() :].removeprefix(b"/")


def has_body(exchange: Exchange) -> bool:
    """Tell whether the request announces a body."""
    framing = framing_of(exchange.headers, otherwise=Framing.NONE)
    if framing is not Framing.LENGTH:
        return framing is Framing.CHUNKED
    return any(_length(value) for name, value in exchange.headers if name.lower() == b"content-length")


def _length(value: bytes) -> int:
    return int(value) if value.strip().isdigit() else 0


def _cause(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
