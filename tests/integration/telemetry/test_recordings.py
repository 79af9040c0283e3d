"""The four recorded runs, fed through the real collectors into a real store, give what the engine counted."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from collectors.gateway.factory import FACTORY as GATEWAY
from collectors.kv_events.factory import FACTORY as KV_EVENTS
from collectors.otlp.factory import FACTORY as OTLP
from collectors.prometheus.factory import FACTORY as PROMETHEUS
from kvscope.cache.index import BlockIndex
from kvscope.demo.engines import free_port
from kvscope.model.request import Status
from kvscope.model.telemetry import BlockRemoved, BlockStored
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.reports.sums import engine_sums
from kvscope.store.database import Store, open_store
from tests.support.publisher import Publisher
from tests.support.recordings import RECORDINGS, RecordedEngine, Recording
from tests.support.telemetry import EventLog, context, eventually

HITS = "vllm:prefix_cache_hits_total"
TIMES = {
    "ttft_seconds": "gen_ai.latency.time_to_first_token",
    "e2e_seconds": "gen_ai.latency.e2e",
    "queue_seconds": "gen_ai.latency.time_in_queue",
    "prefill_seconds": "gen_ai.latency.time_in_model_prefill",
    "decode_seconds": "gen_ai.latency.time_in_model_decode",
}


class _Run:
    """The collectors of one run, on a clock that the test sets."""

    def __init__(self, recording: Recording, store: Store, engine: RecordedEngine) -> None:
        self._recording = recording
        self._engine = engine
        self._registry = CollectorRegistry()
        self.writer = Writer(store.batches, WriterSettings.model_validate({}), self._registry)
        self.log = EventLog()
        self.gateway_port, self.otlp_port = free_port(), free_port()
        starts = [start for start, _, _ in recording.spans().values()]
        self.began, self.ended = min(starts), max(end for _, end, _ in recording.spans().values())
        self.now = self.began - 1.0

    @contextlib.asynccontextmanager
    async def collecting(self, publisher: Publisher) -> AsyncIterator[None]:
        given = context(
            self.writer,
            upstreams=[self._engine.url],
            cache_events=self.log,
            registry=self._registry,
            clock=lambda: self.now,
        )
        endpoint = {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}
        running: list[Any] = [
            OTLP.create(OTLP.settings(grpc_port=0, http_port=self.otlp_port), given),
            PROMETHEUS.create(PROMETHEUS.settings(interval_seconds=0.3), given),
            KV_EVENTS.create(KV_EVENTS.settings(endpoints=[endpoint]), given),
            GATEWAY.create(GATEWAY.settings(port=self.gateway_port), given),
        ]
        for collector in running:
            await collector.start()
        await eventually(lambda: all(collector.health()[0] for collector in running))
        yield
        for collector in reversed(running):
            await collector.stop()

    async def send_requests(self, http: aiohttp.ClientSession) -> None:
        url = f"http://127.0.0.1:{self.gateway_port}/v1/chat/completions"
        for name in self._recording.usage():
            body = {"model": "tiny", "messages": [{"role": "user", "content": name}]}
            async with http.post(url, json=body, headers={"X-Request-Id": name}) as answer:
                assert answer.status == 200
                await answer.read()

    async def send_spans(self, http: aiohttp.ClientSession) -> None:
        url = f"http://127.0.0.1:{self.otlp_port}/v1/traces"
        headers = {"Content-Type": "application/x-protobuf"}
        for payload in self._recording.export_requests():
            async with http.post(url, data=payload, headers=headers) as answer:
                assert (answer.status, await answer.read()) == (200, b"")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'kvscope.db'}", upgrade=True)
    yield opened
    opened.close()


def _expected_cached(recording: Recording) -> dict[str, int | None]:
    """Return what can be known of each request: where null stands for zero, from the first hit on."""
    told, found = False, {}
    for name, (_, _, cached) in recording.usage().items():
        told |= cached is not None
        found[name] = 0 if cached is None and told else cached
    return found


@pytest.mark.parametrize(
    ("recording", "spans_first"),
    list(zip(RECORDINGS, (False, True, False, True), strict=True)),
    ids=[recording.name for recording in RECORDINGS],
)
async def test_every_request_and_every_sum_is_the_recorded_one(
    recording: Recording, *, spans_first: bool, store: Store
) -> None:
    engine, publisher = RecordedEngine(recording), Publisher()
    await engine.start()
    run = _Run(recording, store, engine)
    run.writer.start()
    events = list(recording.events())
    publisher.begin_at(events[0][0] if events else 0)
    for _, payload in events[: len(events) // 2]:
        await publisher.publish(hidden=True, payload=payload)  # before we came: had by replay alone
    async with aiohttp.ClientSession() as http, run.collecting(publisher):
        await eventually(lambda: bool(store.reader.latest_samples(HITS)))
        run.now = run.began
        for send in (run.send_spans, run.send_requests)[:: 1 if spans_first else -1]:
            await send(http)
        for _, payload in events[len(events) // 2 :]:
            await publisher.publish(payload=payload)
        await eventually(lambda: len(run.log.batches) == len(events))
        run.now, engine.page = run.ended + 1.0, recording.metrics("after")
        await eventually(lambda: store.reader.latest_samples(HITS)[0].at > run.ended)
    assert run.writer.stop() == 0
    await publisher.close()
    await engine.stop()

    records = {record.request_id: record for record in store.reader.requests()}
    usage, spans, cached = recording.usage(), recording.spans(), _expected_cached(recording)
    assert records.keys() == usage.keys() == spans.keys()
    for name, (prompt, output, _) in usage.items():
        record = records[name]
        told = spans[name][2]
        assert (record.prompt_tokens, record.output_tokens) == (prompt, output)
        assert record.cached_tokens == cached[name]
        assert record.status is Status.OK
        assert {field: getattr(record, field) for field in TIMES} == {
            field: told[key] for field, key in TIMES.items()
        }
        tpot = told["gen_ai.latency.time_in_model_decode"] / (output - 1) if output > 1 else None
        assert record.tpot_seconds == tpot
        assert (record.sources["ttft_seconds"], record.sequences) == ("span", 1)

    (line,) = engine_sums(store)
    assert (line.agree, line.counter_tokens, line.record_tokens) == (
        True,
        recording.cached_tokens,
        recording.cached_tokens,
    )
    assert line.unknown_requests == sum(count is None for count in cached.values())
    (counters,) = store.reader.counters()
    assert counters.queries == recording.prompt_tokens == sum(prompt for prompt, _, _ in usage.values())
    # the clients of the recordings and of the gateway here were in traces of their own
    assert {row.field for row in store.reader.conflicts()} <= {"trace_id"}
    _check_events(run.log, events)


def _check_events(log: EventLog, events: list[tuple[int, bytes]]) -> None:
    """Compare the index with a plain count of the engine's own hashes."""
    assert [batch.sequence for batch in log.batches] == [sequence for sequence, _ in events]
    index, cached = BlockIndex(), set[int | bytes]()
    for batch in log.batches:
        assert index.apply(batch)
        for event in batch.events:
            if isinstance(event, BlockStored):
                cached.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                cached.difference_update(event.block_hashes)
    assert (len(index), index.unknown_blocks, index.partial) == (len(cached), 0, False)
