"""The subscriber on real ZMQ sockets: order, gaps, replays, restarts and odd messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest
import zmq
from prometheus_client import CollectorRegistry
from typing_extensions import override

from collectors.kv_events.factory import FACTORY
from collectors.kv_events.settings import KvEventsSettings
from collectors.kv_events.subscriber import KvEventSubscriber, named_places
from kvscope.errors import ConfigError
from kvscope.model.telemetry import AllBlocksCleared, BlockStored, CacheEventBatch
from tests.support.publisher import Publisher
from tests.support.telemetry import EventLog, context, event_frames, eventually

ENGINE = "http://engine:8000"


@pytest.fixture(params=[True, False], ids=["replies from 0.26", "replies to 0.25"])
async def publisher(request: pytest.FixtureRequest) -> AsyncIterator[Publisher]:
    publisher = Publisher(new_replies=request.param)
    yield publisher
    await publisher.close()


@contextlib.asynccontextmanager
async def _hearing(
    publisher: Publisher, *, replay: bool = True, log: EventLog | None = None, registry: Any = None
) -> AsyncIterator[tuple[KvEventSubscriber, EventLog]]:
    log = log or EventLog()
    endpoint = {
        "endpoint": publisher.endpoint,
        "replay_endpoint": publisher.replay_endpoint if replay else None,
    }
    settings = KvEventsSettings.model_validate({"endpoints": [endpoint], "replay_timeout_seconds": 2.0})
    given = context(upstreams=[ENGINE], cache_events=log, registry=registry or CollectorRegistry())
    subscriber = KvEventSubscriber(settings, given)
    await subscriber.start()
    try:
        await eventually(lambda: subscriber.health()[0])
        # from here on nothing that is published is missed, and nothing comes by the first replay
        await eventually(lambda: publisher.subscribers > 0 and (publisher.replays > 0 or not replay))
        yield subscriber, log
    finally:
        await subscriber.stop()


def _heard(log: EventLog) -> list[int]:
    return [batch.sequence for batch in log.batches]


def _hashes(log: EventLog) -> list[int | bytes]:
    events = [event for batch in log.batches for event in batch.events]
    return [one for event in events if isinstance(event, BlockStored) for one in event.block_hashes]


def _has_heard(log: EventLog, count: int) -> bool:
    return len(log.batches) >= count


async def _until_heard(log: EventLog, *sequences: int) -> None:
    await eventually(partial(_has_heard, log, len(sequences)))
    assert _heard(log) == list(sequences)


async def test_batches_come_in_order_with_engine_and_replica(publisher: Publisher) -> None:
    async with _hearing(publisher, replay=False) as (subscriber, log):
        for number in range(3):
            await publisher.publish(number)
        await _until_heard(log, 0, 1, 2)
    assert {(batch.engine, batch.replica) for batch in log.batches} == {(ENGINE, "0")}
    assert _hashes(log) == [0, 1, 2]
    assert subscriber.health() == (True, "3 batches of 1 engines")


async def test_a_gap_is_closed_by_replay_before_the_batch_that_showed_it(publisher: Publisher) -> None:
    registry = CollectorRegistry()
    async with _hearing(publisher, registry=registry) as (_, log):
        await publisher.publish(0)
        await _until_heard(log, 0)
        await publisher.publish(1, hidden=True)
        await publisher.publish(2, hidden=True)
        await publisher.publish(3)
        await _until_heard(log, 0, 1, 2, 3)
        await publisher.publish(4)
        await _until_heard(log, 0, 1, 2, 3, 4)
    assert _hashes(log) == [0, 1, 2, 3, 4]
    assert _count(registry, "kvscope_kv_event_breaks_total", kind="gap") == 1
    assert _count(registry, "kvscope_kv_event_batches_total", fate="replayed") == 2
    assert _count(registry, "kvscope_kv_event_batches_total", fate="lost") == 0


def _count(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, {"engine": ENGINE, **labels}) or 0.0


async def test_what_was_published_before_we_came_is_replayed(publisher: Publisher) -> None:
    for number in range(3):
        await publisher.publish(number)
    async with _hearing(publisher) as (subscriber, log):
        await _until_heard(log, 0, 1, 2)
        await publisher.publish(3)
        await _until_heard(log, 0, 1, 2, 3)
        assert "joined late" not in subscriber.health()[1]


async def test_an_ipv6_address_is_heard_and_replayed_from() -> None:
    try:
        publisher = Publisher(host="[::1]")
    except zmq.ZMQError:
        pytest.skip("no IPv6 here")
    await publisher.publish(1)
    async with _hearing(publisher) as (_, log):
        await _until_heard(log, 0)
        await publisher.publish(2)
        await _until_heard(log, 0, 1)
    await publisher.close()
    assert _hashes(log) == [1, 2]


async def test_joining_late_without_a_replay_is_said_and_is_no_loss(publisher: Publisher) -> None:
    registry = CollectorRegistry()
    for number in range(5):
        await publisher.publish(number)
    async with _hearing(publisher, replay=False, registry=registry) as (subscriber, log):
        await publisher.publish(5)
        await _until_heard(log, 5)
        ok, line = subscriber.health()
        assert ok
        assert "joined late" in line
        assert _count(registry, "kvscope_kv_event_batches_total", fate="lost") == 0


async def test_a_buffer_that_begins_late_is_joining_late(publisher: Publisher) -> None:
    for number in range(4):
        await publisher.publish(number)
    del publisher.buffer[:2]
    async with _hearing(publisher) as (subscriber, log):
        await _until_heard(log, 2, 3)
        assert "joined late" in subscriber.health()[1]


async def test_what_no_replay_has_is_counted_as_lost(publisher: Publisher) -> None:
    registry = CollectorRegistry()
    async with _hearing(publisher, registry=registry) as (subscriber, log):
        await publisher.publish(0)
        await _until_heard(log, 0)
        for number in (1, 2, 3):
            await publisher.publish(number, hidden=True)
        del publisher.buffer[1:3]
        await publisher.publish(4)
        await _until_heard(log, 0, 3, 4)
        assert "2 batches lost" in subscriber.health()[1]
    assert _count(registry, "kvscope_kv_event_batches_total", fate="lost") == 2


async def test_a_gap_without_a_replay_socket_is_counted_as_lost(publisher: Publisher) -> None:
    registry = CollectorRegistry()
    async with _hearing(publisher, replay=False, registry=registry) as (_, log):
        await publisher.publish(0)
        await publisher.publish(1, hidden=True)
        await publisher.publish(2)
        await _until_heard(log, 0, 2)
    assert _count(registry, "kvscope_kv_event_batches_total", fate="lost") == 1


async def test_an_engine_that_restarts_has_an_empty_cache(publisher: Publisher) -> None:
    async with _hearing(publisher) as (subscriber, log):
        for number in range(3):
            await publisher.publish(number)
        await _until_heard(log, 0, 1, 2)
        ports = publisher.ports
        await publisher.close()
        await eventually(lambda: not subscriber.health()[0])
        second = Publisher(ports=ports)
        await eventually(lambda: subscriber.health()[0] and second.subscribers > 0)
        await second.publish(100)
        await _until_heard(log, 0, 1, 2, -1, 0)
        await second.publish(101)
        await _until_heard(log, 0, 1, 2, -1, 0, 1)
        await second.close()
    assert log.batches[3].events == (AllBlocksCleared(),)
    assert (log.batches[3].engine, log.batches[3].replica) == (ENGINE, "0")
    assert _hashes(log) == [0, 1, 2, 100, 101]


async def test_a_restart_is_known_also_when_the_new_numbers_have_passed_the_old(
    publisher: Publisher,
) -> None:
    async with _hearing(publisher) as (subscriber, log):
        await publisher.publish(0)
        await publisher.publish(1)
        await _until_heard(log, 0, 1)
        ports = publisher.ports
        await publisher.close()
        await eventually(lambda: not subscriber.health()[0])
        second = Publisher(ports=ports)
        await eventually(lambda: subscriber.health()[0] and second.subscribers > 0)
        for number in range(4):
            await second.publish(100 + number, hidden=True)
        await second.publish(104)
        await _until_heard(log, 0, 1, -1, 0, 1, 2, 3, 4)
        await second.close()
    assert _hashes(log) == [0, 1, 100, 101, 102, 103, 104]


async def test_odd_messages_are_left_out_and_the_next_is_heard(publisher: Publisher) -> None:
    registry = CollectorRegistry()
    async with _hearing(publisher, registry=registry) as (_, log):
        await publisher.send_raw(b"kv")
        await publisher.send_raw(b"kv", b"short", b"")
        await publisher.send_raw(b"kv", (0).to_bytes(8, "big"), b"\xc1")
        await publisher.publish(payload=msgspec.msgpack.encode([1.0, [["BlockMoved", 1], ["BlockRemoved"]]]))
        await publisher.publish(7)
        await _until_heard(log, 0, 1)
    assert _count(registry, "kvscope_kv_event_batches_total", fate="malformed") == 3
    assert _count(registry, "kvscope_kv_events_total", fate="unknown type") == 1
    assert _count(registry, "kvscope_kv_events_total", fate="malformed") == 1


async def test_a_listener_that_fails_does_not_stop_the_stream(publisher: Publisher) -> None:
    class Failing(EventLog):
        @override
        def on_events(self, batch: CacheEventBatch) -> None:
            super().on_events(batch)
            raise RuntimeError("a bug")

    log = Failing()
    async with _hearing(publisher, log=log) as (_, heard):
        await publisher.publish(0)
        await publisher.publish(1)
        await _until_heard(heard, 0, 1)
    assert [batch.sequence for batch in log.batches] == [0, 1]


async def test_a_replay_socket_that_says_nothing_is_given_up() -> None:
    publisher, silent = Publisher(), Publisher()
    silent.fall_silent()
    log = EventLog()
    settings = KvEventsSettings.model_validate(
        {
            "endpoints": [{"endpoint": publisher.endpoint, "replay_endpoint": silent.replay_endpoint}],
            "replay_timeout_seconds": 0.05,
        }
    )
    subscriber = KvEventSubscriber(settings, context(cache_events=log))
    await subscriber.start()
    await eventually(lambda: subscriber.health()[0] and publisher.subscribers > 0)
    await publisher.publish(0, hidden=True)
    await publisher.publish(1)
    await _until_heard(log, 1)
    assert log.batches[0].engine == publisher.endpoint
    await subscriber.stop()
    await publisher.close()
    await silent.close()


@pytest.mark.parametrize("version", ["0.32.0", "0.23.0"])
async def test_a_recorded_stream_with_every_other_batch_dropped_is_heard_whole(version: str) -> None:
    publisher = Publisher(new_replies=version == "0.32.0")
    async with _hearing(publisher) as (_, log):
        frames = list(event_frames(version))
        for place, (_, _, payload) in enumerate(frames):
            await publisher.publish(payload=payload, hidden=place % 2 == 0 and place + 1 < len(frames))
        await eventually(lambda: len(log.batches) == len(frames))
    assert _heard(log) == list(range(len(frames)))
    await publisher.close()


async def test_without_an_endpoint_it_idles() -> None:
    idle = FACTORY.create(FACTORY.settings(), context())
    await idle.start()
    assert idle.health() == (True, "not configured")
    await idle.stop()
    await idle.stop()


async def test_an_engine_that_is_not_there_is_said_and_awaited() -> None:
    gone = Publisher()
    ports = gone.ports
    await gone.close()
    log = EventLog()
    settings = KvEventsSettings.model_validate({"endpoints": f"tcp://127.0.0.1:{ports[0]}"})
    subscriber = KvEventSubscriber(settings, context(cache_events=log))
    await subscriber.start()
    assert subscriber.health() == (False, f"not connected to tcp://127.0.0.1:{ports[0]}")
    publisher = Publisher(ports=ports)
    await eventually(lambda: subscriber.health()[0] and publisher.subscribers > 0)
    await publisher.publish(1)
    await _until_heard(log, 0)
    await subscriber.stop()
    await publisher.close()


async def test_an_address_that_zmq_does_not_take_is_one_clear_line() -> None:
    settings = KvEventsSettings.model_validate({"endpoints": [f"ipc:///{'x' * 200}"]})
    subscriber = KvEventSubscriber(settings, context())
    with pytest.raises(ConfigError, match=r"cannot subscribe to ipc:///xxx.*choose another"):
        await subscriber.start()


@pytest.mark.parametrize(
    "address", ["tcp://*:5557", "127.0.0.1:5557", "http://a:1", "tcp://host", "tcp://a:0", "tcp://a:99999"]
)
def test_addresses_that_cannot_be_connected_to_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not an address to connect to"):
        KvEventsSettings.model_validate({"endpoints": [address]})


def test_engines_are_named_by_setting_by_place_or_by_address() -> None:
    def names(upstreams: list[str], *endpoints: Any) -> list[str]:
        settings = KvEventsSettings.model_validate({"endpoints": endpoints})
        given = context(upstreams=upstreams)
        return [place.engine for place in named_places(settings, given)]

    two = ("tcp://a:1", {"endpoint": "tcp://b:1", "engine": "http://named/"})
    assert names(["http://x", "http://y"], *two) == ["http://x", "http://named"]
    assert names(["http://x"], "tcp://a:1", "tcp://b:1") == ["http://x", "http://x"]
    assert names([], "tcp://a:1") == ["tcp://a:1"]


@pytest.mark.parametrize("heard", [1, 7, 40])
async def test_it_stops_in_the_middle_of_a_replay(heard: int) -> None:
    publisher = Publisher()
    for number in range(2_000):
        await publisher.publish(number, hidden=True)
    endpoint = {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}
    settings = KvEventsSettings.model_validate({"endpoints": [endpoint]})
    for _ in range(10):
        log = EventLog()
        subscriber = KvEventSubscriber(settings, context(upstreams=[ENGINE], cache_events=log))
        await subscriber.start()
        await eventually(partial(_has_heard, log, heard))
        async with asyncio.timeout(10):
            await subscriber.stop()
        assert _heard(log) == list(range(len(log.batches)))  # what came until then is in order, none left out
    await publisher.close()
