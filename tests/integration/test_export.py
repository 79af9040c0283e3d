"""Finished requests reach another OTLP receiver by the real exporters; one that is away costs nothing."""

import asyncio
import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry
from typing_extensions import override

from collectors.otlp.factory import FACTORY
from kvscope.agent.export import Exporter
from kvscope.config.settings import ExportSettings
from kvscope.demo.engines import Engine, free_port
from kvscope.demo.sidecar import start_sidecar
from kvscope.model.request import RequestPart, Source, Status
from kvscope.model.telemetry import Span
from kvscope.pipeline.contracts import Batch
from tests.support.telemetry import AnsweringSink, context, eventually

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextlib.asynccontextmanager
async def _backend() -> AsyncIterator[tuple[AnsweringSink, str, str]]:
    """Our own receiver as the fleet's backend, with its endpoints for gRPC and HTTP."""
    sink, grpc_port, http_port = AnsweringSink(), free_port(), free_port()
    receiver = FACTORY.create(FACTORY.settings(grpc_port=grpc_port, http_port=http_port), context(sink))
    await receiver.start()
    try:
        yield sink, f"http://127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}/v1/traces"
    finally:
        await receiver.stop()


def _spans(sink: AnsweringSink) -> list[Span]:
    return [span for batch in sink.accepted for span in batch.spans]


def _exporter(registry: CollectorRegistry, *, through: SpanExporter | None = None, **more: Any) -> Exporter:
    settings = ExportSettings.model_validate({"wait_seconds": 0.0, "timeout_seconds": 0.5, **more})
    exporter = Exporter(settings, clock=time.time, registry=registry, exporter=through)
    exporter.start()
    return exporter


def _finished(request_id: str) -> Batch:
    told = {"prompt_tokens": 100, "cached_tokens": 64, "status": Status.OK, "route": "support"}
    linked = {"trace_id": TRACE, "span_id": SPAN, "arrived_at": 1e9, "e2e_seconds": 2.0}
    return Batch(
        parts=[
            RequestPart(request_id=request_id, source=Source.GATEWAY, values=told),
            RequestPart(request_id=request_id, source=Source.SPAN, values=linked),
            RequestPart(request_id=request_id, source=Source.ANALYSIS, values={"causes": {"evicted": 36}}),
        ]
    )


def _count(registry: CollectorRegistry, fate: str) -> float:
    return registry.get_sample_value("kvscope_export_spans_total", {"fate": fate}) or 0.0


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_a_request_arrives_enriched_and_linked(protocol: str) -> None:
    registry = CollectorRegistry()
    async with _backend() as (sink, grpc, http):
        exporter = _exporter(registry, endpoint=grpc if protocol == "grpc" else http)
        exporter.on_committed(_finished("r-1"))
        await eventually(lambda: len(_spans(sink)) == 1)
        await eventually(lambda: _count(registry, "sent") == 1)
        exporter.stop()
        exporter.stop()
    (span,) = _spans(sink)
    assert (span.trace_id, span.parent_span_id, span.service) == (TRACE, SPAN, "kvscope")
    assert (span.start_at, span.end_at) == (1e9, 1e9 + 2)
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 64
    assert span.attributes["kvscope.miss.evicted"] == 36
    assert span.attributes["kvscope.route"] == "support"
    # a kvscope as the backend takes it for no request of its own, so nothing goes round in circles
    assert [part for batch in sink.accepted for part in batch.parts] == []


@pytest.mark.parametrize("path", ["", "/v1/traces"], ids=["grpc", "http"])
async def test_a_backend_that_is_away_is_told_of_once(path: str, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    exporter = _exporter(registry, endpoint=f"http://127.0.0.1:{free_port()}{path}", timeout_seconds=0.2)
    exporter.on_committed(_finished("r-1"))
    await eventually(lambda: (registry.get_sample_value("kvscope_export_failures_total") or 0) >= 2)
    exporter.stop()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert line.endswith("does not take spans; they wait, bounded")
    assert _count(registry, "failed") == 1


async def test_what_has_ended_is_sent_when_the_agent_stops() -> None:
    async with _backend() as (sink, grpc, _):
        exporter = _exporter(CollectorRegistry(), endpoint=grpc, wait_seconds=600.0)
        exporter.on_committed(_finished("r-1"))
        await asyncio.to_thread(exporter.stop)
        assert len(_spans(sink)) == 1


class Faulty(SpanExporter):
    """A backend that fails in ways that a test chooses; ``open`` lets calls return."""

    def __init__(self, *answers: SpanExportResult | Exception) -> None:
        self._answers = list(answers)
        self.calls: list[int] = []
        self.open = threading.Event()

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.calls.append(len(spans))
        self.open.wait(10)
        answer = self._answers.pop(0) if self._answers else SpanExportResult.SUCCESS
        if isinstance(answer, Exception):
            raise answer
        return answer

    @override
    def shutdown(self) -> None:
        self.open.set()


@pytest.mark.parametrize("failure", [SpanExportResult.FAILURE, RuntimeError("a bug")])
async def test_a_call_that_fails_is_tried_again(failure: SpanExportResult | Exception) -> None:
    registry, backend = CollectorRegistry(), Faulty(failure)
    backend.open.set()
    exporter = _exporter(registry, endpoint="http://away:4317", through=backend)
    exporter.on_committed(_finished("r-1"))
    await eventually(lambda: registry.get_sample_value("kvscope_export_failures_total") == 1)
    ok, line = exporter.health()
    assert ok
    assert line.endswith("the last call failed")
    await eventually(lambda: _count(registry, "sent") == 1)
    assert exporter.health() == (True, "1 spans sent to http://away:4317")
    exporter.stop()


async def test_a_backend_that_hangs_delays_nobody_and_drops_are_counted() -> None:
    registry, backend = CollectorRegistry(), Faulty()
    exporter = _exporter(registry, endpoint="http://slow:4317", through=backend, queue_spans=5)
    exporter.on_committed(_finished("first"))
    await eventually(lambda: backend.calls == [1])
    began = time.perf_counter()
    for number in range(1_000):
        exporter.on_committed(_finished(str(number)))
    assert time.perf_counter() - began < 1.0
    await eventually(lambda: _count(registry, "dropped") == 995)
    backend.open.set()
    await eventually(lambda: _count(registry, "sent") == 6)
    exporter.stop()
    assert _count(registry, "dropped") == 995


async def test_without_an_endpoint_nothing_is_kept() -> None:
    registry = CollectorRegistry()
    exporter = _exporter(registry)
    exporter.on_committed(_finished("r-1"))
    exporter.stop()
    assert exporter.health() == (True, "not configured")
    assert len(exporter._worker) == 0


async def test_the_agent_exports_what_its_traffic_did(builtin_engine: Engine, tmp_path: Path) -> None:
    """A client's trace, continued by the gateway and vLLM's span, ends in kvscope's."""
    async with _backend() as (sink, grpc, _):
        export = {"endpoint": grpc, "wait_seconds": 1.0}
        sidecar = await asyncio.to_thread(
            lambda: start_sidecar(
                builtin_engine, tmp_path, change=lambda config: config.update(export=export)
            )
        )
        try:
            for _ in range(2):
                await asyncio.to_thread(lambda: _ask(sidecar.gateway, builtin_engine.model))
            await eventually(lambda: len(_spans(sink)) == 2, within_seconds=30)
            told = {"ok": True, "detail": f"2 spans sent to {grpc}"}  # counted when the backend has answered
            health = {"parts": {"export": None}}
            async with asyncio.timeout(30):
                while health["parts"]["export"] != told:
                    health = json.loads(await asyncio.to_thread(_get, f"{sidecar.admin}/healthz"))
        finally:
            await asyncio.to_thread(sidecar.stop)
    first, second = sorted(_spans(sink), key=lambda span: span.start_at)
    assert first.trace_id == second.trace_id == TRACE
    assert first.parent_span_id is not None
    assert first.parent_span_id != second.parent_span_id
    assert first.attributes["gen_ai.request.model"] == builtin_engine.model
    assert first.attributes["gen_ai.usage.cache_read.input_tokens"] == 0
    assert second.attributes["gen_ai.usage.cache_read.input_tokens"] > 0
    for span in (first, second):
        missed = sum(value for name, value in span.attributes.items() if name.startswith("kvscope.miss."))
        cached = span.attributes["gen_ai.usage.cache_read.input_tokens"]
        assert missed + cached == span.attributes["gen_ai.usage.input_tokens"]
        assert span.attributes["gen_ai.server.time_to_first_token"] > 0
        assert span.attributes["kvscope.route"] == "exported"


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
        return body


def _ask(gateway: str, model: str) -> None:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "The same long question. " * 60}],
        "max_tokens": 3,
    }
    request = urllib.request.Request(
        f"{gateway}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "Content-Type": "application/json",
            "X-Kvscope-Route": "exported",
            "traceparent": f"00-{TRACE}-{SPAN}-01",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


async def test_text_that_is_no_unicode_does_not_cost_the_others_their_span() -> None:
    async with _backend() as (sink, grpc, _):
        exporter = _exporter(CollectorRegistry(), endpoint=grpc)
        odd = RequestPart(request_id="\ud800", source=Source.GATEWAY, values={"model": "\udfff"})
        batch = _finished("\ud800")
        exporter.on_committed(Batch(parts=[*batch.parts, odd, *_finished("r-2").parts]))
        await eventually(lambda: len(_spans(sink)) == 2)
        exporter.stop()
    assert {span.attributes["kvscope.request_id"] for span in _spans(sink)} == {"?", "r-2"}
