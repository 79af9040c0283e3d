"""Asks an engine for batches that were missed, through its ROUTER socket."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import zmq
import zmq.asyncio

from collectors.kv_events.decode import decode_reply
from kvscope.errors import PermanentIngestError


async def replay(
    sockets: zmq.asyncio.Context, endpoint: str, first: int, last: int | None, *, timeout_seconds: float
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield sequence and payload of the engine's batches from ``first`` to ``last`` (or its newest).

    Ends early when the engine says that it has no more, or says nothing within ``timeout_seconds``. One
    socket a request: what an abandoned replay still sends goes nowhere.
    """
    socket = sockets.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)  # the engine's ROUTER drops what a full receiver would not take
        socket.setsockopt(zmq.IPV6, "[" in endpoint)
        socket.connect(endpoint)
        # the empty frame is what a REQ socket would put there; REQ itself takes a single answer only
        await socket.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            # not `wait_for`: before Python 3.12 it loses a cancellation that comes together with its answer
            async with asyncio.timeout(timeout_seconds):
                frames = await socket.recv_multipart()
            with contextlib.suppress(PermanentIngestError):
                reply = decode_reply(frames)
                if reply is None or (last is not None and reply[0] > last):
                    return
                if reply[0] >= first:
                    yield reply
                    if reply[0] == last:
                        return
    except TimeoutError:
        return
    finally:
        socket.close()
