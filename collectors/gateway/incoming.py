"""The client's side of one exchange: its body, and whether it is still there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self

from collectors.gateway.errors import BodyTooLargeError, ClientGoneError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the whole body; raises ``BodyTooLargeError`` or ``ClientGoneError``."""
    parts: list[bytes] = []
    left = limit
    async for part in body_parts(receive):
        left -= len(part)
        if left < 0:
            raise BodyTooLargeError
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def body_parts(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body as it comes; raises ``ClientGoneError`` where it breaks off."""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError
        more = message.get("more_body", False)
        if part := message.get("body", b""):
            yield part


class Upload:
    """A body that is passed on while it comes; ``taken`` is set once all of it was read."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.taken = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in body_parts(self._receive):
            yield part
        self.taken.set()


class WhileConnected:
    """Cancels the work inside it when the client goes away, and raises ``ClientGoneError`` instead.

    Listens once the body was read: until then the client's absence shows while reading.
    """

    def __init__(self, receive: Receive, upload: Upload | None = None) -> None:
        self._receive = receive
        self._upload = upload
        self._gone = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("needs a running task")
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        if self._gone and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ClientGoneError from error

    async def _watch(self) -> None:
        if self._upload is not None:
            await self._upload.taken.wait()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
        self._gone = True
        self._task.cancel()
