"""The subscriber finds publishers by asking the engine, follows them, and hears ranks at their ports."""

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any, Self

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from collectors.kv_events.settings import KvEventsSettings
from collectors.kv_events.subscriber import KvEventSubscriber
from kvscope.model.telemetry import AllBlocksCleared
from kvscope.pipeline.listen import AsgiListener, bind
from tests.support.publisher import Publisher
from tests.support.telemetry import EventLog, context, eventually


class Server:
    """An engine's HTTP side, as far as it is asked here."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] | None = None
        self.asked = 0
        app = Starlette(routes=[Route("/kv_event_sources", self._sources)])
        self._listener = AsgiListener(app, bind("127.0.0.1", 0, setting="-"))
        self.url = f"http://127.0.0.1:{self._listener.port}"

    async def _sources(self, _: Request) -> Response:
        self.asked += 1
        return Response(status_code=404) if self.answer is None else JSONResponse(self.answer)

    def tells(self, **publishers: Publisher) -> None:
        """Answer from now on with these publishers by rank (``r0``, ``r1``), as vLLM 0.32 does."""
        self.answer = {
            rank.removeprefix("r"): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{publisher.ports[0]}",
                "replay_endpoint": f"tcp://*:{publisher.ports[1]}",
                "topic": "kv",
            }
            for rank, publisher in publishers.items()
        }

    async def __aenter__(self) -> Self:
        await self._listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.stop()


@contextlib.asynccontextmanager
async def _asking(server: Server, **more: Any) -> AsyncIterator[tuple[KvEventSubscriber, EventLog]]:
    log = EventLog()
    settings = KvEventsSettings.model_validate({"discovery_seconds": 0.05, **more})
    subscriber = KvEventSubscriber(settings, context(upstreams=[server.url], cache_events=log))
    await subscriber.start()
    try:
        yield subscriber, log
    finally:
        await subscriber.stop()


async def test_publishers_are_found_and_followed_to_other_ports() -> None:
    first, second, moved = Publisher(), Publisher(), Publisher()
    async with Server() as server, _asking(server) as (subscriber, log):
        await eventually(lambda: server.asked > 1)
        assert subscriber.health() == (True, "no upstream tells of published events")
        await first.publish(1)
        server.tells(r0=first, r1=second)
        await eventually(lambda: "2 ranks" in subscriber.health()[1])
        await eventually(lambda: len(log.batches) == 1)  # by replay
        await second.publish(2)
        await eventually(lambda: len(log.batches) == 2)
        server.tells(r0=first, r1=moved)
        await eventually(lambda: len(log.batches) == 3)
        assert (log.batches[2].engine, log.batches[2].replica) == (server.url, "1")
        assert log.batches[2].events == (AllBlocksCleared(),)
        await eventually(lambda: "2 ranks" in subscriber.health()[1])
        await moved.publish(3)
        await eventually(lambda: len(log.batches) == 4)
        await second.publish(4)  # nobody hears it any more
        await first.publish(5)
        await eventually(lambda: len(log.batches) == 5)
        assert "2 ranks" in subscriber.health()[1]
    for publisher in (first, second, moved):
        await publisher.close()
    assert {batch.engine for batch in log.batches} == {server.url}


async def test_an_engine_that_is_away_or_answers_oddly_is_asked_again() -> None:
    publisher = Publisher()
    server = Server()
    async with _asking(server) as (subscriber, log):
        async with server:
            server.answer = {"0": "odd"}
            await eventually(lambda: server.asked > 1)
            server.tells(r0=publisher)
            await eventually(lambda: "1 engines" in subscriber.health()[1])
            await publisher.publish(7)
            await eventually(lambda: len(log.batches) == 1)
        await publisher.publish(8)  # that its engine does not answer now is no reason to stop hearing it
        await eventually(lambda: len(log.batches) == 2)
    await publisher.close()
    assert [batch.sequence for batch in log.batches] == [0, 1]


async def test_named_endpoints_are_taken_as_all_there_is() -> None:
    publisher = Publisher()
    async with Server() as server, _asking(server, endpoints=[publisher.endpoint]) as (subscriber, _):
        await eventually(lambda: subscriber.health()[0])
    async with Server() as silent, _asking(silent, discovery_seconds=0) as (subscriber, _):
        assert subscriber.health() == (True, "not configured")
    assert (server.asked, silent.asked) == (0, 0)
    await publisher.close()


async def test_a_batch_that_names_no_rank_is_of_the_rank_whose_port_it_came_from() -> None:
    ports = _neighbours()
    first, second = (Publisher(ports=(port, port + 10)) for port in ports)
    log = EventLog()
    endpoint = {
        "endpoint": first.endpoint,
        "replay_endpoint": first.replay_endpoint,
        "ranks": 2,
        "engine": "http://e",
    }
    subscriber = KvEventSubscriber(
        KvEventsSettings.model_validate({"endpoints": [endpoint]}), context(cache_events=log)
    )
    await subscriber.start()
    await eventually(lambda: subscriber.health()[0])
    await second.publish(payload=msgspec.msgpack.encode([1.0, [["AllBlocksCleared"]]]))
    await first.publish(payload=msgspec.msgpack.encode([1.0, [["AllBlocksCleared"]], 0]))
    await eventually(lambda: len(log.batches) == 2)
    assert {(batch.engine, batch.replica) for batch in log.batches} == {("http://e", "0"), ("http://e", "1")}
    assert subscriber.health() == (True, "2 batches of 1 engines (2 ranks)")
    await subscriber.stop()
    await first.close()
    await second.close()


def _neighbours() -> tuple[int, int]:
    """Return two neighbouring ports of which the ports 10 above are free too."""
    for port in range(23_000, 32_000, 37):
        with contextlib.ExitStack() as stack:
            try:
                for number in (port, port + 1, port + 10, port + 11):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
            return port, port + 1
    raise AssertionError("no free ports")


async def test_a_publisher_that_was_found_and_cannot_be_reached_is_told_and_no_fault() -> None:
    publisher = Publisher()
    async with Server() as server, _asking(server) as (subscriber, _):
        server.tells(r0=publisher)
        where = publisher.endpoint
        await publisher.close()
        told = f"not connected to {where}, where an engine says that it publishes"
        await eventually(lambda: subscriber.health() == (True, told))
    assert server.asked > 0
