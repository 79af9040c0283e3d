"""WebSockets: once a client asks for one, its bytes and the server's pass as they are."""

import asyncio
from typing import Any

from typing_extensions import override

from collectors.gateway.errors import UnreachableUpstreamError
from collectors.gateway.headers import onward
from collectors.gateway.incoming import Exchange
from collectors.gateway.passing import send_error
from collectors.gateway.replica import Replica
from collectors.gateway.serving import ClientConnection
from collectors.gateway.wire import request_head


class _End(asyncio.Protocol):
    """One end of a tunnel: what it hears goes to the other; closing closes both."""

    def __init__(self) -> None:
        self.other: Any = None  # the other end's transport
        self.closed = asyncio.get_running_loop().create_future()

    @override
    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    @override
    def pause_writing(self) -> None:
        self.other.pause_reading()

    @override
    def resume_writing(self) -> None:
        self.other.resume_reading()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.close()
        if not self.closed.done():
            self.closed.set_result(None)


async def splice(exchange: Exchange, connection: ClientConnection, replica: Replica) -> None:
    """Join the client's connection with one to the server until either closes; nothing in between is read.

    The server's answer to the request for the WebSocket, a refusal too, is part of what passes.
    """
    upgrade = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    headers = [*onward(exchange.headers, host=replica.host), *upgrade]
    head = request_head(exchange.method, replica.target(exchange.target), headers)
    server_end, client_end = _End(), _End()
    try:
        server = await replica.connect(server_end)
    except UnreachableUpstreamError as error:
        send_error(exchange, error)
        return
    try:
        server_end.other = connection.hand_over(client_end)
        client_end.other = server
        server.write(head + exchange.rest())
        await server_end.closed
    finally:
        server.abort()
