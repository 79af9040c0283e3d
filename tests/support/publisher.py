"""A publisher of KV events that speaks as vLLM's does, in its old and in its new way of replaying."""

import asyncio
import contextlib
import time

import msgspec
import zmq
import zmq.asyncio

_END = b"\xff" * 8


class Publisher:
    """Binds a PUB and a ROUTER socket on free ports, and keeps what it published for replays."""

    def __init__(
        self,
        *,
        new_replies: bool = True,
        ports: tuple[int, int] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._host = host
        self._sockets = zmq.asyncio.Context()
        self._pub = self._sockets.socket(zmq.XPUB)  # a PUB socket that tells who subscribed
        self._router = self._sockets.socket(zmq.ROUTER)
        for socket, port in zip((self._pub, self._router), ports or ("*", "*"), strict=True):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IPV6, "[" in host)
            socket.bind(f"tcp://{host}:{port}")
        self._new_replies = new_replies
        self._next = 0
        self.buffer: list[tuple[int, bytes]] = []
        self.replays = 0
        self.subscribers = 0
        self._tasks = [asyncio.create_task(self._serve()), asyncio.create_task(self._count_subscribers())]

    @property
    def ports(self) -> tuple[int, int]:
        """The ports of both sockets, for a publisher that takes this one's place."""
        return self._port(self._pub), self._port(self._router)

    @property
    def endpoint(self) -> str:
        return f"tcp://{self._host}:{self.ports[0]}"

    @property
    def replay_endpoint(self) -> str:
        return f"tcp://{self._host}:{self.ports[1]}"

    @staticmethod
    def _port(socket: zmq.asyncio.Socket) -> int:
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def begin_at(self, sequence: int) -> None:
        """Give the next batch this number."""
        self._next = sequence

    async def publish(self, *hashes: int, hidden: bool = False, payload: bytes | None = None) -> None:
        """Publish one batch that stores ``hashes``; a hidden one is only in the replay buffer."""
        event = {
            "type": "BlockStored",
            "block_hashes": list(hashes),
            "parent_block_hash": None,
            "token_ids": list(hashes),
            "block_size": 1,
        }
        encoded = msgspec.msgpack.encode([time.time(), [event], 0]) if payload is None else payload
        sequence, self._next = self._next, self._next + 1
        self.buffer.append((sequence, encoded))
        if not hidden:
            await self._pub.send_multipart([b"kv", sequence.to_bytes(8, "big"), encoded])

    async def send_raw(self, *frames: bytes) -> None:
        """Publish frames as they are."""
        await self._pub.send_multipart(list(frames))

    async def _serve(self) -> None:
        topic = [b"kv"] if self._new_replies else []
        while True:
            peer, empty, number = await self._router.recv_multipart()
            assert empty == b""
            self.replays += 1
            for sequence, payload in self.buffer:
                if sequence >= int.from_bytes(number, "big"):
                    reply = [peer, b"", *topic, sequence.to_bytes(8, "big"), payload]
                    await self._router.send_multipart(reply)
            end = [peer, b"", *([b""] if self._new_replies else []), _END, b""]
            await self._router.send_multipart(end)

    async def _count_subscribers(self) -> None:
        while True:
            change = await self._pub.recv()
            self.subscribers += 1 if change[:1] == b"\x01" else -1

    def fall_silent(self) -> None:
        """Answer no replay from now on."""
        self._tasks[0].cancel()

    async def close(self) -> None:
        """Go away as a process does that ends: both sockets close."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._sockets.destroy(linger=0)
