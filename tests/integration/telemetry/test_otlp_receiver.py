"""The receiver as senders meet it: OpenTelemetry's own exporters, raw bytes, and a real store behind it."""

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from prometheus_client import CollectorRegistry

from collectors.otlp.factory import FACTORY
from collectors.otlp.receiver import OtlpReceiver
from collectors.otlp.settings import OtlpSettings
from kvscope.errors import ConfigError, PermanentIngestError, RetryableIngestError
from kvscope.pipeline.contracts import Receipt, Sink
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.store.database import Store, open_store
from tests.support.telemetry import AnsweringSink, context, eventually, otlp_payloads, usage

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def _settings(**changes: Any) -> OtlpSettings:
    return OtlpSettings(**{"grpc_port": -1, "http_port": -1, "drain_seconds": 1.0, **changes})


async def _running(sink: Sink, **changes: Any) -> OtlpReceiver:
    receiver = OtlpReceiver(_settings(**changes), context(sink))
    await receiver.start()
    return receiver


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'spans.db'}", upgrade=True)
    yield opened
    opened.close()


@pytest.fixture
async def receiver(store: Store) -> AsyncIterator[OtlpReceiver]:
    writer = Writer(store.batches, WriterSettings.model_validate({}), CollectorRegistry())
    writer.start()
    receiver = await _running(writer)
    yield receiver
    await receiver.stop()
    assert writer.stop() == 0


async def _grpc(receiver: OtlpReceiver, body: bytes, **options: Any) -> bytes:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{receiver.grpc_port}") as channel:
        call = channel.unary_unary(EXPORT, bytes, bytes)
        return bytes(await call(body, timeout=20, **options))


async def _post(
    receiver: OtlpReceiver,
    body: bytes,
    headers: dict[str, str] | None = None,
    *,
    path: str = "/v1/traces",
    method: str = "POST",
) -> tuple[int, bytes, Any]:
    url = f"http://127.0.0.1:{receiver.http_port}{path}"
    headers = {"content-type": "application/x-protobuf", **(headers or {})}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.read(), answer.headers


def _error(body: bytes) -> Any:
    return status_pb2.Status.FromString(body)


async def test_recordings_over_grpc_are_in_the_store_when_the_answer_comes(
    receiver: OtlpReceiver, store: Store
) -> None:
    for body in otlp_payloads("0.32.0"):
        await _grpc(receiver, body)
        await _grpc(receiver, body)  # a sender that missed the answer sends again
    records = {record.request_id: record for record in store.reader.requests()}
    told = usage("0.32.0")
    assert {name: (r.prompt_tokens, r.output_tokens) for name, r in records.items()} == {
        name: counts[:2] for name, counts in told.items()
    }
    spans = [
        span
        for body in otlp_payloads("0.32.0")
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert store.reader.span_count() == len(spans)


async def test_recordings_over_http_are_in_the_store_when_the_answer_comes(
    receiver: OtlpReceiver, store: Store
) -> None:
    for body in otlp_payloads("0.23.0"):
        status, _, _ = await _post(receiver, gzip.compress(body), {"content-encoding": "gzip"})
        assert status == 200
    records = store.reader.requests()
    assert len(records) == 120
    assert sum(record.prompt_tokens or 0 for record in records) == 74_732


@pytest.mark.parametrize("form", ["grpc", "grpc-gzip", "http", "http-gzip", "http-deflate"])
async def test_opentelemetrys_own_exporters_are_understood(
    receiver: OtlpReceiver, store: Store, form: str
) -> None:
    url = f"http://127.0.0.1:{receiver.http_port}/v1/traces"
    exporter: SpanExporter
    match form:
        case "grpc" | "grpc-gzip":
            squeeze = grpc.Compression.Gzip if form == "grpc-gzip" else grpc.Compression.NoCompression
            exporter = GrpcExporter(
                f"http://127.0.0.1:{receiver.grpc_port}", insecure=True, compression=squeeze
            )
        case _:
            squeeze_http = {"http-gzip": Compression.Gzip, "http-deflate": Compression.Deflate}.get(form)
            exporter = HttpExporter(url, compression=squeeze_http or Compression.NoCompression)

    def send() -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        attributes: dict[str, str | int] = {
            "gen_ai.request.id": f"chatcmpl-{form}",
            "gen_ai.usage.prompt_tokens": 3,
        }
        provider.get_tracer("test").start_span("llm_request", attributes=attributes).end()
        provider.shutdown()

    await asyncio.to_thread(send)
    (record,) = store.reader.requests()
    assert (record.request_id, record.prompt_tokens) == (form, 3)


async def test_json_is_answered_in_json(receiver: OtlpReceiver, store: Store) -> None:
    spans = [
        {"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "a", "startTimeUnixNano": "1", "kind": 1},
        {"traceId": "", "spanId": "", "name": "b"},
    ]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    status, body, headers = await _post(
        receiver, json.dumps(document).encode(), {"content-type": "application/json; charset=utf-8"}
    )
    assert (status, headers["content-type"]) == (200, "application/json")
    partial = json.loads(body)["partialSuccess"]
    assert partial["rejectedSpans"] == "1"
    assert "1 without a valid trace id" in partial["errorMessage"]
    assert store.reader.span_count() == 1
    status, body, _ = await _post(receiver, b"{", {"content-type": "application/json"})
    assert (status, json.loads(body)["code"]) == (400, 3)


async def test_undecodable_bytes_are_the_senders_error_and_the_next_request_is_served(
    receiver: OtlpReceiver,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _grpc(receiver, b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    status, body, _ = await _post(receiver, b"\xff\xff\xff")
    assert (status, _error(body).code) == (400, grpc.StatusCode.INVALID_ARGUMENT.value[0])
    assert "not a protobuf" in _error(body).message
    assert await _grpc(receiver, b"") == b""
    assert (await _post(receiver, b""))[:2] == (200, b"")


@pytest.mark.parametrize(
    ("headers", "path", "method", "status"),
    [
        ({"content-type": "text/plain"}, "/v1/traces", "POST", 415),
        ({"content-encoding": "zstd"}, "/v1/traces", "POST", 415),
        ({"content-encoding": "gzip"}, "/v1/traces", "POST", 400),
        ({}, "/v1/metrics", "POST", 404),
        ({}, "/v1/traces", "PUT", 405),
    ],
)
async def test_wrong_requests_get_https_own_answers(
    receiver: OtlpReceiver, headers: dict[str, str], path: str, method: str, status: int
) -> None:
    got, body, _ = await _post(receiver, b"abc", headers, path=path, method=method)
    assert got == status
    assert _error(body).message


async def test_large_bodies_and_gzip_bombs_are_refused() -> None:
    sink = AnsweringSink()
    receiver = await _running(sink, max_body_bytes=20_000, max_decompressed_bytes=100_000)
    bomb = gzip.compress(bytes(50_000_000), 9)
    assert len(bomb) > 20_000
    small_bomb = gzip.compress(bytes(5_000_000), 9)
    assert len(small_bomb) < 20_000
    answers = [
        await _post(receiver, bytes(20_001)),
        await _post(receiver, bomb, {"content-encoding": "gzip"}),
        await _post(receiver, small_bomb, {"content-encoding": "gzip"}),
        await _post(receiver, zlib.compress(bytes(5_000_000)), {"content-encoding": "deflate"}),
    ]
    assert [status for status, _, _ in answers] == [413, 413, 413, 413]
    assert (await _post(receiver, small_bomb[:-20], {"content-encoding": "gzip"}))[0] in (400, 413)
    assert (await _post(receiver, gzip.compress(b"")[:-2], {"content-encoding": "gzip"}))[0] == 400
    for squeeze in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _grpc(receiver, bytes(5_000_000), compression=squeeze)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await receiver.stop()
    assert sink.accepted == []


async def test_a_message_too_large_for_grpc_is_told_and_counted() -> None:
    sink = AnsweringSink()
    around = context(sink)
    receiver = OtlpReceiver(_settings(max_body_bytes=20_000, max_decompressed_bytes=100_000), around)
    await receiver.start()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _grpc(receiver, bytes(20_001))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "the body is larger than 20000 bytes; send smaller batches"
    counted = around.registry.get_sample_value("kvscope_otlp_requests_total", {"answer": "refused for good"})
    assert counted == 1
    await receiver.stop()
    assert sink.accepted == []


@pytest.mark.parametrize("late", [False, True])
async def test_a_full_queue_asks_the_sender_to_come_again(late: bool) -> None:
    sink = AnsweringSink(lambda _: RetryableIngestError("full", retry_after_seconds=2.5), late=late)
    receiver = await _running(sink)
    body = otlp_payloads("0.32.0")[-1]
    status, answer, headers = await _post(receiver, body)
    assert (status, headers["retry-after"], _error(answer).message) == (503, "3", "full")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _grpc(receiver, body)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    metadata: Any = caught.value.trailing_metadata()
    (detail,) = _error(dict(metadata)["grpc-status-details-bin"]).details
    info = error_details_pb2.RetryInfo()
    detail.Unpack(info)
    assert info.retry_delay.ToTimedelta().total_seconds() == 2.5
    await receiver.stop()


async def test_what_the_store_refuses_is_a_partial_success() -> None:
    receiver = await _running(AnsweringSink(lambda _: 3))
    answer = ExportTraceServiceResponse.FromString(await _grpc(receiver, otlp_payloads("0.32.0")[-1]))
    assert answer.partial_success.rejected_spans == 3
    assert answer.partial_success.error_message == "3 refused by the store"
    await receiver.stop()


async def test_errors_nobody_foresaw_may_be_sent_again() -> None:
    receiver = await _running(AnsweringSink(lambda _: OSError("disk"), late=True))
    assert (await _post(receiver, otlp_payloads("0.32.0")[-1]))[0] == 503
    await receiver.stop()
    receiver = await _running(AnsweringSink(lambda _: PermanentIngestError("never"), late=True))
    assert (await _post(receiver, otlp_payloads("0.32.0")[-1]))[0] == 400
    await receiver.stop()


class _SilentSink:
    """Takes batches and does not say what became of them until told to."""

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []

    def offer(self, batch: object) -> Receipt:
        del batch
        receipt: Receipt = Receipt()
        self.receipts.append(receipt)
        return receipt


async def test_a_store_that_does_not_answer_in_time_is_a_reason_to_send_again() -> None:
    sink = _SilentSink()
    receiver = await _running(sink, answer_seconds=0.05)
    assert (await _post(receiver, otlp_payloads("0.32.0")[-1]))[0] == 503
    (receipt,) = sink.receipts
    receipt.set_result(0)  # the writer resolves it later and must be able to
    assert not receipt.cancelled()
    await receiver.stop()


async def test_a_sender_that_goes_away_does_not_cancel_the_receipt() -> None:
    sink = _SilentSink()
    receiver = await _running(sink)
    with pytest.raises(grpc.aio.AioRpcError):
        await _short_call(receiver, otlp_payloads("0.32.0")[-1])
    await eventually(lambda: len(sink.receipts) == 1)
    (receipt,) = sink.receipts
    assert receipt.cancelled() is False
    receipt.set_result(0)
    await receiver.stop()


async def _short_call(receiver: OtlpReceiver, body: bytes) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{receiver.grpc_port}") as channel:
        await channel.unary_unary(EXPORT, bytes, bytes)(body, timeout=0.3)


async def test_answers_that_are_due_are_given_before_the_receiver_stops() -> None:
    sink = _SilentSink()
    receiver = await _running(sink, drain_seconds=5.0)
    sending = [
        asyncio.create_task(_grpc(receiver, otlp_payloads("0.32.0")[-1])),
        asyncio.create_task(_post(receiver, otlp_payloads("0.32.0")[-1])),
    ]
    await eventually(lambda: len(sink.receipts) == 2)
    stopping = asyncio.create_task(receiver.stop())
    await asyncio.sleep(0.05)
    for receipt in sink.receipts:
        receipt.set_result(0)
    await stopping
    answers = await asyncio.gather(*sending)
    assert (answers[0], answers[1][0]) == (b"", 200)


@pytest.mark.parametrize("which", ["grpc_port", "http_port"])
async def test_a_port_in_use_is_one_clear_line_and_nothing_stays_open(which: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        receiver = OtlpReceiver(_settings(**{which: port}), context())
        with pytest.raises(ConfigError, match=f"{port}.*choose another with --otlp-{which[:4]}-port"):
            await receiver.start()
        assert (receiver.grpc_port, receiver.http_port) == (None, None)


async def test_two_receivers_do_not_share_a_port() -> None:
    first = await _running(AnsweringSink())
    second = OtlpReceiver(_settings(grpc_port=first.grpc_port, http_port=0), context())
    with pytest.raises(ConfigError):
        await second.start()
    await first.stop()


async def test_either_listener_can_be_turned_off() -> None:
    receiver = await _running(AnsweringSink(), grpc_port=0)
    assert receiver.grpc_port is None
    ok, line = receiver.health()
    assert ok
    assert f"HTTP on 127.0.0.1:{receiver.http_port}" in line
    await receiver.stop()
    await receiver.stop()
    assert receiver.health()[0] is False
    off = FACTORY.create(FACTORY.settings(grpc_port=0, http_port=0), context())
    await off.start()
    assert off.health() == (True, "turned off")
    await off.stop()
