"""What every receiver owes its senders: sent = accepted + refused + rejected, nothing twice, nothing lost."""

import asyncio
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from prometheus_client import CollectorRegistry
from typing_extensions import override

from collectors.otlp.receiver import OtlpReceiver
from collectors.otlp.settings import OtlpSettings
from kvscope.errors import PermanentIngestError, RetryableIngestError
from kvscope.pipeline.contracts import Batch, Sink
from kvscope.pipeline.writer import Writer, WriterSettings
from tests.support.telemetry import AnsweringSink, MemoryStore, context

SENDERS, REQUESTS, SPANS = 4, 12, 5
SENT = SENDERS * REQUESTS * SPANS
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

Answer = Callable[[Batch], int | Exception]


def _digest(batch: Batch) -> int:
    """Return a number that looks random and is the same for the same spans."""
    names = "".join(span.span_id for span in batch.spans)
    return hashlib.sha256(names.encode()).digest()[0]


def _retryable(_: Batch) -> int | Exception:
    return RetryableIngestError("full", retry_after_seconds=0.0)


def _permanent(_: Batch) -> int | Exception:
    return PermanentIngestError("not ours")


def _mixed(tries: Counter[int]) -> Answer:
    """A third succeeds at once, a third is refused twice first, a third is refused for good."""

    def answer(batch: Batch) -> int | Exception:
        kind = _digest(batch) % 3
        key = hash(tuple(span.span_id for span in batch.spans))
        tries[key] += 1
        if kind == 0:
            return PermanentIngestError("not ours")
        if kind == 1 and tries[key] <= 2:
            return RetryableIngestError("full", retry_after_seconds=0.0)
        return 0

    return answer


@dataclasses.dataclass(slots=True, kw_only=True)
class Tally:
    """What the senders were told, in spans."""

    accepted: int = 0
    refused: int = 0  # come again: and the sender gave up
    rejected: int = 0  # never


def _body(sender: int, request: int) -> bytes:
    message = ExportTraceServiceRequest()
    spans = message.resource_spans.add().scope_spans.add().spans
    for number in range(SPANS):
        unique = (sender * REQUESTS + request) * SPANS + number + 1
        span = spans.add(trace_id=unique.to_bytes(16, "big"), span_id=unique.to_bytes(8, "big"))
        span.name = "llm_request"
        span.attributes.add(key="gen_ai.request.id").value.string_value = f"chatcmpl-{unique}"
    return message.SerializeToString()


class GrpcSender:
    """Sends over gRPC and tells what was answered: rejected spans, or an error."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{receiver.grpc_port}")
        self._channel = channel
        self._call = channel.unary_unary(EXPORT, bytes, ExportTraceServiceResponse.FromString)

    async def send(self, body: bytes) -> int | Exception:
        try:
            answer: Any = await self._call(body, timeout=20)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return RetryableIngestError(str(error.details()))
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                return PermanentIngestError(str(error.details()))
            raise
        return int(answer.partial_success.rejected_spans)

    async def close(self) -> None:
        await self._channel.close(None)


class HttpSender:
    """The same over HTTP."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self._url = f"http://127.0.0.1:{receiver.http_port}/v1/traces"
        self._session = aiohttp.ClientSession(headers={"content-type": "application/x-protobuf"})

    async def send(self, body: bytes) -> int | Exception:
        async with self._session.post(self._url, data=body) as response:
            answer = await response.read()
        if response.status == 503:
            assert response.headers["retry-after"]
            return RetryableIngestError("come again")
        if response.status != 200:
            assert response.status == 400
            return PermanentIngestError("never")
        return int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans)

    async def close(self) -> None:
        await self._session.close()


SENDER_KINDS: Sequence[type[GrpcSender | HttpSender]] = (GrpcSender, HttpSender)


async def _send_all(
    kind: type[GrpcSender | HttpSender], receiver: OtlpReceiver, most_tries: int = 5
) -> Tally:
    tally = Tally()

    async def one(sender: int) -> None:
        client = kind(receiver)
        for request in range(REQUESTS):
            answer: int | Exception = RetryableIngestError("not sent yet")
            for _ in range(most_tries):
                answer = await client.send(_body(sender, request))
                if not isinstance(answer, RetryableIngestError):
                    break
            if isinstance(answer, RetryableIngestError):
                tally.refused += SPANS
            elif isinstance(answer, Exception):
                tally.rejected += SPANS
            else:
                tally.rejected += answer
                tally.accepted += SPANS - answer
        await client.close()

    await asyncio.gather(*(one(sender) for sender in range(SENDERS)))
    return tally


async def _run(kind: type[GrpcSender | HttpSender], sink: Sink) -> Tally:
    settings = OtlpSettings.model_validate({"grpc_port": -1, "http_port": -1})
    receiver = OtlpReceiver(settings, context(sink))
    await receiver.start()
    try:
        return await _send_all(kind, receiver)
    finally:
        await receiver.stop()


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("answers", ["success", "retryable", "permanent", "mixed"])
@pytest.mark.parametrize("kind", SENDER_KINDS)
async def test_every_span_is_accounted_for_once(
    kind: type[GrpcSender | HttpSender], answers: str, late: bool
) -> None:
    answer: Answer = {
        "success": lambda _: 0,
        "retryable": _retryable,
        "permanent": _permanent,
        "mixed": _mixed(Counter()),
    }[answers]
    sink = AnsweringSink(answer, late=late)
    tally = await _run(kind, sink)
    taken = [span.span_id for batch in sink.accepted for span in batch.spans]
    assert tally.accepted + tally.refused + tally.rejected == SENT
    assert len(taken) == len(set(taken)) == tally.accepted
    expected = {
        "success": (SENT, 0, 0),
        "retryable": (0, SENT, 0),
        "permanent": (0, 0, SENT),
        "mixed": (tally.accepted, 0, SENT - tally.accepted),
    }[answers]
    assert (tally.accepted, tally.refused, tally.rejected) == expected
    if answers == "mixed":
        assert 0 < tally.accepted < SENT


@pytest.mark.parametrize("kind", SENDER_KINDS)
async def test_what_was_answered_is_in_the_store_though_it_failed_and_the_queue_was_small(
    kind: type[GrpcSender | HttpSender],
) -> None:
    class FailingStore(MemoryStore):
        calls = 0

        @override
        def write(self, batches: Sequence[Batch]) -> int:
            self.calls += 1
            if self.calls % 3 == 1:
                raise OSError("the disk was busy")
            return super().write(batches)

    store = FailingStore()
    settings = WriterSettings.model_validate({"queue_items": 4 * SPANS})
    writer = Writer(store, settings, CollectorRegistry())
    writer.start()
    tally = await _run(kind, writer)
    assert writer.stop() == 0
    assert (tally.accepted + tally.refused, tally.rejected) == (SENT, 0)
    assert len(store.span_ids) == tally.accepted
    written = [part.request_id for batch in store.batches for part in batch.parts]
    assert len(written) == len(set(written)) == tally.accepted
