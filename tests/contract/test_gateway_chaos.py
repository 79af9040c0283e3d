"""Everything goes wrong at once, and no request fails that did not have to."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from kvscope.errors import RetryableIngestError
from kvscope.pipeline.contracts import Batch
from tests.support.gateway import (
    FakeServer,
    Heard,
    Running,
    Wire,
    chunked,
    document,
    hear,
    request,
    running_gateway,
)
from tests.support.telemetry import AnsweringSink, eventually

REQUESTS = 240
AT_ONCE = 12
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%d"},"finish_reason":null}]}\n\n'
TAIL = b"data: [DONE]\n\n"
LAYOUT = """\
layout: support
variables:
  who: {max_chars: 20}
segments:
  - name: rules
    role: system
    scope: global
    text: You help {{ who }}.
"""


@dataclasses.dataclass(slots=True)
class Replica:
    """A server that streams three events for each request, and can be killed and started again."""

    server: FakeServer = dataclasses.field(default_factory=FakeServer)
    begun: set[int] = dataclasses.field(default_factory=set)  # numbers of requests whose answer has begun
    wires: set[Wire] = dataclasses.field(default_factory=set)
    victims: set[int] = dataclasses.field(default_factory=set)
    port: int = 0
    again: Any = None

    async def start(self) -> None:
        self.server.script = self.script
        await self.server.start()
        self.port = int(self.server.url.rpartition(":")[2])

    async def script(self, heard: Heard, wire: Wire) -> None:
        if " /health " in heard.line:
            await wire.send(document(b""))
            return
        number = heard.json["seed"]
        self.wires.add(wire)
        events = [EVENT % number] * 3
        raw = chunked(*events, TAIL)
        cut = raw.index(b"data: ") + len(events[0]) + 2
        self.begun.add(number)
        await wire.send(raw[:cut])
        await asyncio.sleep(0.01)
        await wire.send(raw[cut:])
        self.begun.discard(number)
        self.wires.discard(wire)

    async def kill(self) -> None:
        """Die as a process does: all connections break, none is accepted."""
        self.victims = set(self.begun)
        for wire in tuple(self.wires):
            wire.cut()
        await self.server.stop()

    async def revive(self) -> None:
        self.again = await asyncio.start_server(self.server._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self.again is not None:
            self.again.close()
        await self.server.stop()


@contextlib.asynccontextmanager
async def replicas(count: int) -> AsyncIterator[list[Replica]]:
    started = [Replica() for _ in range(count)]
    for replica in started:
        await replica.start()
    try:
        yield started
    finally:
        for replica in started:
            await replica.stop()


def body_of(number: int) -> dict[str, Any]:
    body: dict[str, Any] = {"stream": True, "seed": number, "messages": [{"role": "user", "content": "q"}]}
    if number % 3 == 0:
        body["kvscope"] = {"layout": "support", "variables": {"who": f"client {number}"}}
    return body


class Run:
    """All requests, and what goes wrong at which of them."""

    def __init__(self, gateway: Running, one: Replica, layouts: Path) -> None:
        self._gateway = gateway
        self._one = one
        self._layouts = layouts
        self._next = iter(range(REQUESTS))
        self.answers: dict[int, Heard] = {}
        self.store_is_away = False
        self.gone = 0

    async def all(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(AT_ONCE)))

    async def _client(self) -> None:
        for number in self._next:
            await self._disturb(number)
            if number % 20 == 7:
                await self._hang_up(number)
            else:
                self.answers[number] = await self._ask(number, slowly=number % 20 == 13)

    async def _disturb(self, number: int) -> None:
        match number:
            case 30:
                self.store_is_away = True
            case 60:
                await self._one.kill()
            case 80:
                self._layouts.write_text("layout: [broken")
            case 140:
                await self._one.revive()
            case 150:
                self._layouts.write_text(LAYOUT)
            case 180:
                self.store_is_away = False
            case _:
                pass

    async def _ask(self, number: int, *, slowly: bool) -> Heard:
        reader, writer = await self._gateway.connect()
        writer.write(request(body_of(number), headers=[("x-session-id", f"s-{number % 40}")]))
        if slowly:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(0.1)
            reader._transport.resume_reading()  # type: ignore[attr-defined]
        heard = await hear(reader)
        writer.close()
        assert heard is not None, f"request {number} got no answer"
        return heard

    async def _hang_up(self, number: int) -> None:
        reader, writer = await self._gateway.connect()
        writer.write(request(body_of(number), headers=[("x-session-id", f"s-{number % 40}")]))
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        self.gone += 1


async def test_no_request_fails_that_did_not_have_to(tmp_path: Path) -> None:
    file = tmp_path / "support.yaml"
    file.write_text(LAYOUT)
    run: Run | None = None

    def answer(_: Batch) -> int | Exception:
        return RetryableIngestError("the store is away") if run is not None and run.store_is_away else 0

    settings = {
        "layouts": str(tmp_path),
        "layouts_poll_seconds": 0.02,
        "health_interval_seconds": 0.05,
        "drain_seconds": 2,
    }
    async with (
        replicas(2) as (one, other),
        running_gateway(
            one.server.url, other.server.url, settings=settings, sink=AnsweringSink(answer)
        ) as gateway,
    ):
        run = Run(gateway, one, file)
        await run.all()
        await eventually(lambda: gateway.metric("kvscope_gateway_in_flight") == 0)
        lost = gateway.metric("kvscope_gateway_lost_records_total")
        records = gateway.records
        revived = {record["engine"] for record in records[-60:]}
    failed = {number for number, heard in run.answers.items() if not _is_whole(number, heard)}
    assert failed <= one.victims, "only what its server had begun to answer as it died"
    for number in failed:  # and its client can see it
        assert b"UpstreamError" in run.answers[number].body
    assert len(run.answers) + run.gone == REQUESTS
    assert len(records) + lost == REQUESTS  # every record is kept or counted as lost
    assert lost > 0
    assert revived == {one.server.url, other.server.url}


def _is_whole(number: int, heard: Heard) -> bool:
    expected = EVENT % number * 3 + TAIL
    return heard.status == 200 and heard.complete and heard.body == expected
