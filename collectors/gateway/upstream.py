"""The connection pool towards the inference servers."""

import logging
import zlib
from collections.abc import AsyncIterable, Sequence
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

_IDLE_SECONDS = 4.0  # below the 5 s after which uvicorn, and so vLLM, closes an idle connection
_HEADER_BYTES = 64 * 2**10
_READ_BUFFER_BYTES = 2**16
_ATTEMPTS = 3
# What aiohttp would add of its own: the client's headers say what the client wants.
_NOTHING_ADDED = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_LOG = logging.getLogger(__name__)


class Upstreams:
    """HTTP client for one or more servers; opened and closed inside a running event loop."""

    def __init__(self, urls: Sequence[str], *, connect_seconds: float, read_seconds: float) -> None:
        self.urls = tuple(urls)
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=None, sock_connect=connect_seconds, sock_read=read_seconds
        )
        self._session: aiohttp.ClientSession | None = None
        self._silent: set[str] = set()

    async def open(self) -> None:
        """Make the pool: no limit on connections, no cookies kept, bytes as they are."""
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=False,
            skip_auto_headers=_NOTHING_ADDED,
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            trace_configs=[tracing],
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def choose(self, key: str) -> str:
        """Return the server for ``key``, always the same one: a session's prefixes stay on one cache."""
        if len(self.urls) == 1:
            return self.urls[0]
        return self.urls[zlib.crc32(key.encode("utf-8", "surrogatepass")) % len(self.urls)]

    async def send(
        self,
        method: str,
        url: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | AsyncIterable[bytes] | None,
    ) -> aiohttp.ClientResponse:
        """Send a request and return the answer once its headers are here; the caller closes it.

        A kept connection that the server closed meanwhile is not the request's fault: another is tried.
        """
        if self._session is None:
            raise aiohttp.ClientConnectionError("the gateway is stopped")
        target = URL(url, encoded=True)
        server = str(target.origin())
        for attempt in range(_ATTEMPTS):
            context = SimpleNamespace(reused=False)
            try:
                answer = await self._session.request(
                    method,
                    target,
                    headers=headers,
                    data=body,
                    allow_redirects=False,
                    trace_request_ctx=context,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                repeatable = body is None or isinstance(body, bytes)
                if attempt == _ATTEMPTS - 1 or not context.reused or not repeatable:
                    self._note_silence(server, error)
                    raise
            else:
                self._note_answer(server)
                return answer
        raise AssertionError("unreachable")

    def silent(self) -> tuple[str, ...]:
        """Return the servers whose last request could not be sent."""
        return tuple(sorted(self._silent))

    def _note_silence(self, server: str, error: Exception) -> None:
        """Log that a server went away: once, not for each request that it fails."""
        if server not in self._silent:
            self._silent.add(server)
            _LOG.warning("%s does not answer (%s); its requests get 502 until it does", server, error)

    def _note_answer(self, server: str) -> None:
        if server in self._silent:
            self._silent.discard(server)
            _LOG.warning("%s answers again", server)


async def _note_reuse(_session: Any, context: SimpleNamespace, _params: Any) -> None:
    context.trace_request_ctx.reused = True
