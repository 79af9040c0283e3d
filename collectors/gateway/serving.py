"""Listens for clients: their connections, kept open and closed in time, and the shutdown."""

import asyncio
import contextlib
import http
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from typing_extensions import override

from collectors.gateway.errors import BadRequestError, error_body
from collectors.gateway.incoming import Exchange, RequestReader
from collectors.gateway.wire import answer_head

_LOG = logging.getLogger(__name__)
_SWEEP_SECONDS = 0.5
_LINGER_SECONDS = 2.0
_QUEUED_REQUESTS = 16
_END_SECONDS = 2.0

Handler = Callable[[Exchange, "ClientConnection"], Awaitable[None]]


class ClientConnection(asyncio.Protocol):
    """One connection of a client: its requests are answered one after the other."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._reader = RequestReader(self._begun)
        self._queued: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._tunnel: Exchange | None = None
        self._refused = False
        self._fault: BadRequestError | None = None  # of the request that is being answered
        self._head_at: float | None = None  # when a head began that is not whole
        self._paused = False
        self._transport: Any = None
        self._protocol: asyncio.Protocol | None = None
        self.heard_at = 0.0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.heard_at = self._server.loop.time()
        self._server.connections.add(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        if self._task is not None:
            self._task.cancel()

    @override
    def data_received(self, data: bytes) -> None:
        self.heard_at = self._server.loop.time()
        if self._protocol is not None:
            self._protocol.data_received(data)
            return
        if self._refused:
            return
        if self._tunnel is not None:
            self._tunnel.take(data)
            return
        try:
            rest = self._reader.feed(data)
        except BadRequestError as error:
            self._refuse(error)
            return
        if not self._reader.in_head:
            self._head_at = None
        elif self._head_at is None:
            self._head_at = self.heard_at
        if rest and self._tunnel is not None:
            self._tunnel.take(rest)
        self._next()
        if self._current is not None:
            self._current.hold_back()
        if len(self._queued) > _QUEUED_REQUESTS:
            self._pause()

    @override
    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()
        elif self._current is not None and self._current.source is not None:
            self._current.source.pause_reading()

    @override
    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()
        elif self._current is not None and self._current.source is not None:
            self._current.source.resume_reading()

    def hand_over(self, protocol: asyncio.Protocol) -> Any:
        """Let ``protocol`` have what comes from now on; returns the transport."""
        self._protocol = protocol
        return self._transport

    def close_if_idle(self, before: float) -> None:
        """Close where nothing is being answered and nothing was heard since ``before``."""
        if self._protocol is None and self._current is None and self.heard_at <= before:
            self._transport.close()

    def close_if_slow(self, before: float) -> None:
        """End a head that began before ``before``, and a body of which nothing came since.

        A request that passes on its body while the server is slow to take it is not late.
        """
        if self._head_at is not None and self._head_at <= before and self._current is None:
            self._transport.close()
        elif self._current is not None and self._current.starved and self.heard_at <= before:
            self._refuse(BadRequestError("the rest of the request did not come in time", 408))

    def cancel(self) -> asyncio.Task[None] | None:
        """End at once what is being answered."""
        if self._task is None:
            self._transport.abort()
        else:
            self._task.cancel()
        return self._task

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._current is not None

    def _begun(self, exchange: Exchange) -> None:
        exchange.attach(self._transport)
        if exchange.tunnel:
            self._tunnel = exchange
        self._queued.append(exchange)

    def _next(self) -> None:
        if self._current is None and self._queued:
            self._current = self._queued.popleft()
            self._task = self._server.loop.create_task(self._answer(self._current))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._server.handler(exchange, self)
        except Exception as error:  # noqa: BLE001 - the supervisor: one request's fault ends its connection alone
            _LOG.error("gateway: a request failed with %s", type(error).__name__)
        finally:
            self._current = self._task = None
            self._after(exchange)

    def _after(self, exchange: Exchange) -> None:
        if self._protocol is not None:
            return
        if self._fault is not None and not exchange.started:
            self._tell(self._fault)
        elif not exchange.finished:
            self._transport.abort()
        elif not exchange.complete:
            self._linger()
        elif not exchange.keep_alive or self._server.stopping:
            self._transport.close()
        else:
            self.heard_at = self._server.loop.time()
            if self._paused and len(self._queued) <= _QUEUED_REQUESTS:
                self._paused = False
                self._transport.resume_reading()
            self._next()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _refuse(self, error: BadRequestError) -> None:
        self._refused = True
        if self._current is None:
            self._tell(error)
        elif self._current.complete:
            self._current.keep_alive = False  # the fault is a later request's
        elif self._task is not None:
            self._fault = error  # the rest of its body will never be read
            self._task.cancel()

    def _tell(self, error: BadRequestError) -> None:
        body = error_body(str(error), "BadRequestError", error.status)
        rows = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        self._transport.write(
            answer_head(error.status, http.HTTPStatus(error.status).phrase.encode(), rows) + body
        )
        self._linger()

    def _linger(self) -> None:
        """Close once the answer was read: closing with bytes unread would throw it away (RFC 9112, 9.6)."""
        self._refused = True
        with contextlib.suppress(OSError, RuntimeError):
            self._transport.write_eof()
        self._server.loop.call_later(_LINGER_SECONDS, self._transport.abort)


class HttpServer:
    """Serves HTTP/1.1 on one socket; every request goes to ``handler``."""

    def __init__(
        self,
        handler: Handler,
        listener: socket.socket,
        *,
        drain_seconds: float,
        keep_alive_seconds: float,
    ) -> None:
        self.handler = handler
        self.connections: set[ClientConnection] = set()
        self.stopping = False
        self.loop = asyncio.get_event_loop()
        self._socket = listener
        self._drain_seconds = drain_seconds
        self._keep_alive_seconds = keep_alive_seconds
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """Accept connections until ``stop``."""
        self.loop = asyncio.get_running_loop()
        self._server = await self.loop.create_server(lambda: ClientConnection(self), sock=self._socket)
        self._sweeper = self.loop.create_task(self._sweep())

    async def stop(self) -> None:
        """Refuse new connections, let running answers finish within the drain time, close."""
        if self._server is None or self._sweeper is None:
            self._socket.close()
            return
        self.stopping = True
        self._server.close()
        self._sweeper.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                await self._idle()
        tasks = [task for connection in tuple(self.connections) if (task := connection.cancel())]
        if tasks:
            await asyncio.wait(tasks, timeout=_END_SECONDS)
        self._server = None

    async def _idle(self) -> None:
        while True:
            for connection in tuple(self.connections):
                connection.close_if_idle(self.loop.time())
            if not any(connection.busy for connection in self.connections):
                return
            await asyncio.sleep(0.02)

    async def _sweep(self) -> None:
        """Close connections on which nothing comes: kept ones, and requests that never end."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            before = self.loop.time() - self._keep_alive_seconds
            for connection in tuple(self.connections):
                connection.close_if_idle(before)
                connection.close_if_slow(before)
