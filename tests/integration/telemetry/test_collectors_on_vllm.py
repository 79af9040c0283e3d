"""All telemetry collectors on the real vLLM: what the engine says by four ways is one and the same."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from collectors.kv_events.factory import FACTORY as KV_EVENTS
from collectors.otlp.factory import FACTORY as OTLP
from collectors.prometheus.factory import FACTORY as PROMETHEUS
from collectors.prometheus.page import parse_page
from kvscope.demo.engines import Engine
from kvscope.demo.model import MODEL_NAME
from kvscope.model.cache_config import cache_config
from kvscope.model.request import RequestRecord, Status
from kvscope.model.telemetry import BlockStored
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.store.database import Store, open_store
from tests.support.telemetry import EventLog, context, eventually

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'live.db'}", upgrade=True)
    yield opened
    opened.close()


@contextlib.asynccontextmanager
async def _collectors(engine: Engine, store: Store) -> AsyncIterator[EventLog]:
    """Run the three collectors as the agent does, and wait until all of them say that they work."""
    registry, log = CollectorRegistry(), EventLog()
    writer = Writer(store.batches, WriterSettings.model_validate({}), registry)
    writer.start()
    given = context(writer, upstreams=[engine.url], cache_events=log, registry=registry)
    port = int(engine.options.otlp_endpoint.rpartition(":")[2])
    endpoint = {"endpoint": engine.kv_events, "replay_endpoint": engine.kv_replay}
    running: list[Any] = [
        OTLP.create(OTLP.settings(grpc_port=port, http_port=0), given),
        PROMETHEUS.create(PROMETHEUS.settings(interval_seconds=0.5), given),
        KV_EVENTS.create(KV_EVENTS.settings(endpoints=[endpoint]), given),
    ]
    for collector in running:
        await collector.start()
    await eventually(lambda: all(collector.health()[0] for collector in running), within_seconds=60)
    yield log
    for collector in reversed(running):
        await collector.stop()
    assert writer.stop() == 0


class Client:
    """Sends requests to the engine itself, each with an id of its own."""

    def __init__(self, engine: Engine, session: aiohttp.ClientSession) -> None:
        self._url = engine.url
        self._session = session
        self.tokens = 0

    async def counters(self) -> dict[str, float]:
        async with self._session.get(f"{self._url}/metrics") as response:
            return {sample.name: sample.value for sample in parse_page(await response.text(), "", 0.0)}

    async def send(self, path: str, **body: Any) -> tuple[str, dict[str, Any]]:
        """Send one request and return its id and answer."""
        request_id = f"tel-{uuid.uuid4()}"
        body = {"model": MODEL_NAME, "temperature": 0, **body}
        headers = {"X-Request-Id": request_id}
        async with self._session.post(f"{self._url}{path}", json=body, headers=headers) as response:
            text = await response.text()
            assert response.status == 200, text
        return request_id, {} if body.get("stream") else json.loads(text)

    async def chat(self, system: str, user: str, **more: Any) -> tuple[str, dict[str, Any]]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return await self.send("/v1/chat/completions", messages=messages, **{"max_tokens": 4, **more})


@pytest.fixture
async def client(vllm_server: Engine) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        yield Client(vllm_server, session)


def _records(store: Store, names: list[str]) -> dict[str, RequestRecord]:
    return {record.request_id: record for record in store.reader.requests() if record.request_id in names}


async def _complete(store: Store, names: list[str]) -> dict[str, RequestRecord]:
    """Wait until span and plugin have both told of every request."""
    await eventually(
        lambda: all(
            {"span", "plugin"} <= set(_records(store, names)[name].sources.values())
            if name in _records(store, names)
            else False
            for name in names
        ),
        within_seconds=120,
    )
    return _records(store, names)


async def test_every_way_tells_the_same_of_each_request(
    vllm_server: Engine, client: Client, store: Store
) -> None:
    long_text = f"{uuid.uuid4()} " + "The quick brown fox jumps over the lazy dog. " * 60
    async with _collectors(vllm_server, store) as log:
        before = await client.counters()
        answers = [
            await client.chat(long_text, "one"),
            await client.chat(long_text, "two"),
            await client.chat(long_text, "three", stream=True),  # no usage was asked for
            await client.send("/v1/completions", prompt=long_text, max_tokens=1),
            await client.send("/v1/completions", prompt=long_text, max_tokens=6),
        ]
        answers += await asyncio.gather(*(client.chat(long_text, f"at once {n}") for n in range(4)))
        after = await client.counters()
        names = [name for name, _ in answers]
        records = await _complete(store, names)
        # the scraper has seen what the page says now
        await eventually(
            lambda: [sample.value for sample in store.reader.latest_samples(QUERIES)] == [after[QUERIES]]
        )

    for name, answer in answers:
        record = records[name]
        assert record.sources["cached_tokens"] == "plugin"
        assert record.sources["ttft_seconds"] == "span"
        assert record.status is Status.OK
        assert (record.finish_reason, record.replica, record.model) == ("length", "0", MODEL_NAME)
        assert record.trace_id is not None
        if answer:
            usage = answer["usage"]
            assert record.prompt_tokens == usage["prompt_tokens"]
            assert record.output_tokens == usage["completion_tokens"]
            assert record.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]
        assert record.ttft_seconds is not None
        assert record.e2e_seconds is not None
        assert 0 < record.ttft_seconds <= record.e2e_seconds
        assert (record.tpot_seconds is None) == (record.output_tokens == 1)
    cached = [records[name].cached_tokens or 0 for name in names]
    assert cached[0] == 0
    assert min(cached[1:3]) > 256
    assert sum(cached) == after[HITS] - before[HITS]
    assert sum(records[name].prompt_tokens or 0 for name in names) == after[QUERIES] - before[QUERIES]

    config = cache_config(store.reader.latest_samples("vllm:cache_config_info"))
    assert config is not None
    assert (config.block_size, config.num_blocks) == (
        vllm_server.options.block_size,
        vllm_server.options.blocks,
    )
    stored = [event for batch in log.batches for event in batch.events if isinstance(event, BlockStored)]
    assert stored
    assert {event.block_size for event in stored} == {config.block_size}
    assert [batch.sequence for batch in log.batches] == list(range(len(log.batches)))  # none lost, none twice
    assert {batch.engine for batch in log.batches} == {vllm_server.url}


async def test_the_engine_tells_where_it_publishes(vllm_server: Engine, client: Client) -> None:
    log = EventLog()
    subscriber = KV_EVENTS.create(
        KV_EVENTS.settings(), context(upstreams=[vllm_server.url], cache_events=log)
    )
    await subscriber.start()
    await eventually(lambda: "1 engines" in subscriber.health()[1])
    await client.chat(f"{uuid.uuid4()} " * 40, "store this")
    await eventually(lambda: subscriber.health()[0] and len(log.batches) > 0)
    await subscriber.stop()
    assert {(batch.engine, batch.replica) for batch in log.batches} == {(vllm_server.url, "0")}
    assert log.batches[0].sequence == 0  # what came before was replayed: the replay socket was told too


async def test_the_plugin_keeps_what_it_has_until_the_agent_comes(
    vllm_server: Engine, client: Client, store: Store
) -> None:
    name, answer = await client.chat("You are away.", "nobody hears this", max_tokens=3)
    await asyncio.sleep(2)  # longer than the plugin waits before it sends
    async with _collectors(vllm_server, store):
        record = (await _complete(store, [name]))[name]
    assert record.cached_tokens == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert record.sources["cached_tokens"] == "plugin"


def test_vllm_loaded_the_plugin_and_heard_little_of_it(vllm_server: Engine) -> None:
    log = vllm_server.process.log.read_text()
    assert f"kvscope: finished requests are reported to {vllm_server.options.otlp_endpoint}" in log
    assert "steps aside" not in log
