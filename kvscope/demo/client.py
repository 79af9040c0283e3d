"""Sends a workload through the gateway: several clients at a time, many open conversations."""

import asyncio
import collections
import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp

from kvscope.demo.workload import Call, Session, Workload
from kvscope.errors import UnreachableError

_ANSWER_SECONDS = 120.0


@dataclasses.dataclass(slots=True, kw_only=True)
class Tally:
    """How many requests were sent and came back, by route."""

    done: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    sessions: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    @property
    def requests(self) -> int:
        """All requests that were answered."""
        return self.done.total()


@dataclasses.dataclass(slots=True)
class _Open:
    session: Session
    replies: list[str] = dataclasses.field(default_factory=list)


class TrafficClient:
    """Sends sessions to one gateway; turns of a session come one after the other, sessions side by side."""

    def __init__(
        self,
        url: str,
        workload: Workload,
        *,
        seed: int,
        clients: int = 4,
        open_sessions: int = 8,
        pause_seconds: float = 0.12,
    ) -> None:
        self._url = url
        self._workload = workload
        self._clients = clients
        self._pause_seconds = pause_seconds  # on average, between an answer and the client's next request
        self._open_sessions = open_sessions
        self._rng = random.Random(seed)  # noqa: S311 - made-up traffic, no secret
        self._open: list[_Open] = []
        self._sent = 0
        self.tally = Tally()

    async def run(
        self,
        *,
        rounds: int | None = None,
        until: Callable[[], bool] = lambda: False,
        progress: Callable[[Tally], None] = lambda _: None,
    ) -> Tally:
        """Send ``rounds`` rounds, or without end, until ``until()``; conversations stay open then.

        Raises ``UnreachableError`` at the first request that fails: the demo's traffic has no excuse to.
        """
        source = self._workload.sessions(rounds)
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.TaskGroup() as group:
                for _ in range(self._clients):
                    group.create_task(self._client(http, source, until, progress))
        except* UnreachableError as failures:
            failure = failures.exceptions[0]
        else:
            return self.tally
        raise failure

    async def _client(
        self,
        http: aiohttp.ClientSession,
        source: Iterator[Session],
        until: Callable[[], bool],
        progress: Callable[[Tally], None],
    ) -> None:
        while not until() and (current := self._next(source)) is not None:
            turn = len(current.replies)
            self._sent += 1
            call = self._workload.call(current.session, turn, current.replies, sent=self._sent)
            current.replies.append(await self._send(http, call))
            self.tally.done[current.session.route] += 1
            if len(current.replies) < len(current.session.turns):
                self._open.append(current)
            else:
                self.tally.sessions[current.session.route] += 1
            progress(self.tally)
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_seconds) if self._pause_seconds else 0)

    def _next(self, source: Iterator[Session]) -> _Open | None:
        """Take one of the open conversations at random; new ones open while there are few."""
        while len(self._open) < self._open_sessions and (session := next(source, None)) is not None:
            self._open.append(_Open(session))
        return self._open.pop(self._rng.randrange(len(self._open))) if self._open else None

    async def _send(self, http: aiohttp.ClientSession, call: Call) -> str:
        url = f"{self._url}/v1/chat/completions"
        try:
            async with http.post(url, json=call.body, headers=call.headers) as response:
                if response.status != 200:  # noqa: PLR2004 - HTTP's OK
                    detail = (await response.text())[:300]
                    raise UnreachableError(f"the gateway answered {response.status}: {detail}")
                if call.body.get("stream"):
                    return await _streamed_text(response)
                return str((await response.json())["choices"][0]["message"]["content"] or "")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(
                f"a request through the gateway at {self._url} failed: {error!r}"
            ) from error


async def _streamed_text(response: aiohttp.ClientResponse) -> str:
    pieces: list[str] = []
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        event: dict[str, Any] = json.loads(line[6:])
        if "error" in event:
            raise UnreachableError(f"the engine broke off an answer: {event['error']}")
        pieces += [choice["delta"].get("content") or "" for choice in event.get("choices", ())]
    return "".join(pieces)
