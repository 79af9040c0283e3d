"""One inference server: its kept connections, its load, and whether it answers."""

import asyncio
import collections
import logging
import ssl
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from collectors.gateway.errors import UnreachableUpstreamError, UpstreamError
from collectors.gateway.outgoing import Receiver, ServerConnection

_IDLE_SECONDS = 4.0  # below the 5 s after which uvicorn, and so vLLM, closes an idle connection
_ATTEMPTS = 3
_SMOOTHING = 0.2
_LOG = logging.getLogger(__name__)


class Replica:
    """HTTP client for one server; used inside one running event loop.

    ``ttft_seconds`` is a moving average of the latest answers' first parts, None before the first one.
    """

    def __init__(self, url: str, *, connect_seconds: float, read_seconds: float) -> None:
        parts = urlsplit(url)
        self.url = url
        self.host = parts.netloc.encode()
        self.down = False
        self.in_flight = 0
        self.ttft_seconds: float | None = None
        self._base = parts.path.encode()
        self._address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._idle: collections.deque[ServerConnection] = collections.deque()
        self._busy: set[ServerConnection] = set()

    def target(self, target: bytes) -> bytes:
        """Return the target at this server of a request with ``target``."""
        return self._base + target if target.startswith(b"/") else target  # `*` is of the server as a whole

    async def connect(self, protocol: asyncio.Protocol) -> Any:
        """Return the transport of a new connection that ``protocol`` hears."""
        host, port = self._address
        try:
            async with asyncio.timeout(self._connect_seconds):
                loop = asyncio.get_running_loop()
                return (await loop.create_connection(lambda: protocol, host, port, ssl=self._tls))[0]
        except (OSError, TimeoutError) as error:
            self.failed(error)
            raise UnreachableUpstreamError(self.url) from error

    async def exchange(
        self,
        head: bytes,
        body: bytes | AsyncIterator[bytes],
        receiver: Receiver,
        *,
        head_only: bool = False,
        counted: bool = True,
    ) -> None:
        """Send a request; returns once ``receiver`` has heard the whole answer.

        Raises ``UpstreamError``. A kept connection that the server closed meanwhile is not the request's
        fault: another is tried. Cancelled, it closes the connection at once. What is not ``counted``
        says nothing of the server's load and health.
        """
        self.in_flight += counted
        try:
            for attempt in range(_ATTEMPTS):
                connection, reused = await self._connection()
                try:
                    await self._run(connection, head, body, receiver, head_only=head_only)
                except UpstreamError as error:
                    stale = reused and not connection.begun and isinstance(body, bytes)
                    if type(error) is not UpstreamError or not stale or attempt == _ATTEMPTS - 1:
                        if counted:
                            self.failed(error)
                        raise
                else:
                    if counted:
                        self.answered()
                        self._note_time(connection.first_part_seconds)
                    return
        finally:
            self.in_flight -= counted

    def failed(self, error: BaseException | str) -> None:
        """Note that the server did not answer: logged once, not for each request that it fails."""
        if not self.down:
            self.down = True
            _LOG.warning(
                "%s does not answer (%s); it gets requests only where no other server does", self.url, error
            )

    def answered(self) -> None:
        """Note that the server answers."""
        if self.down:
            self.down = False
            _LOG.warning("%s answers again", self.url)

    def abandon(self) -> None:
        """Close all connections; running exchanges end with an error."""
        for connection in (*self._idle, *self._busy):
            connection.break_off()
        self._idle.clear()

    def _note_time(self, seconds: float | None) -> None:
        known = self.ttft_seconds
        if seconds is not None:
            self.ttft_seconds = seconds if known is None else known + _SMOOTHING * (seconds - known)

    async def _run(
        self,
        connection: ServerConnection,
        head: bytes,
        body: bytes | AsyncIterator[bytes],
        receiver: Receiver,
        *,
        head_only: bool,
    ) -> None:
        ended = connection.begin(receiver, head_only=head_only)
        self._busy.add(connection)
        upload: asyncio.Task[None] | None = None
        try:
            if isinstance(body, bytes):
                connection.write(head + body)
            else:
                connection.write(head)
                upload = asyncio.create_task(_send(connection, body))
            await ended
        except BaseException:
            connection.abort()
            raise
        finally:
            self._busy.discard(connection)
            if upload is not None and not upload.done():
                upload.cancel()
                connection.abort()
        if connection.usable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()

    async def _connection(self) -> tuple[ServerConnection, bool]:
        """Return a connection, and whether it was used before."""
        oldest = asyncio.get_running_loop().time() - _IDLE_SECONDS
        while self._idle:
            kept = self._idle.pop()
            if kept.usable and kept.idle_since >= oldest:
                return kept, True
            kept.abort()
        fresh = ServerConnection(self.url, self._read_seconds)
        await self.connect(fresh)
        return fresh, False


async def _send(connection: ServerConnection, body: AsyncIterator[bytes]) -> None:
    async for part in body:
        connection.write(part)
        await connection.drained()
