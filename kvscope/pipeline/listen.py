"""Serves ASGI applications on sockets that were bound beforehand, so that errors are one line."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from typing_extensions import override

from kvscope.errors import ConfigError


def bind(host: str, port: int, *, setting: str) -> socket.socket:
    """Return a listening socket; raises ``ConfigError`` naming ``setting`` when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named in full: asyncio turns Nagle's algorithm off (40 ms a chunk) only where the protocol says TCP
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another with {setting}"
        ) from error
    listener.listen(2048)
    listener.setblocking(False)  # noqa: FBT003 - the socket API's own signature
    return listener


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the agent alone decides when to stop."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class AsgiListener:
    """One ASGI application on one socket."""

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        drain_seconds: float = 10.0,
        keep_alive_seconds: float = 5.0,
    ) -> None:
        self._socket = listener
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(keep_alive_seconds),
                timeout_graceful_shutdown=max(1, int(drain_seconds)),
            )
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """Serve until ``stop``; returns once connections are accepted."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started and not self._task.done():  # noqa: ASYNC110 - uvicorn tells by a flag
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Refuse new connections, let running answers finish within the drain time, close."""
        if self._task is None:
            self._socket.close()
            return
        self._server.should_exit = True
        await self._task
        self._task = None
