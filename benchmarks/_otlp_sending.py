"""Export requests of spans as vLLM sends them, and senders of them."""

import dataclasses
import http.client
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2
from store_insert import spans

from kvscope.model.telemetry import Span

BATCH = 512
"""Spans of one request, as the SDK's exporter sends them."""


def request(batch: Sequence[Span]) -> ExportTraceServiceRequest:
    """Return the export request of ``batch``."""
    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add()
    resource.resource.attributes.extend(_pairs(batch[0].resource))
    scope = resource.scope_spans.add()
    for span in batch:
        scope.spans.append(
            trace_pb2.Span(
                trace_id=bytes.fromhex(span.trace_id),
                span_id=bytes.fromhex(span.span_id),
                name=span.name,
                start_time_unix_nano=int(span.start_at * 1e9),
                end_time_unix_nano=int(span.end_at * 1e9),
                attributes=_pairs(span.attributes),
            )
        )
    return message


def _pairs(values: Any) -> list[KeyValue]:
    kinds = {str: "string_value", int: "int_value", float: "double_value"}
    return [KeyValue(key=key, value=AnyValue(**{kinds[type(value)]: value})) for key, value in values.items()]


def bodies(count: int, seed: int) -> list[bytes]:
    """Return the export requests of ``count`` new spans, of the last minutes: older ones may be pruned."""
    made = spans(count, seed)
    later = time.time() - made[-1].end_at
    made = [
        dataclasses.replace(span, start_at=span.start_at + later, end_at=span.end_at + later) for span in made
    ]
    return [request(made[first : first + BATCH]).SerializeToString() for first in range(0, count, BATCH)]


def send(port: int, requests: Iterable[bytes], senders: int) -> float:
    """Send all requests, each sender one after the other's answer; return the seconds until the last one."""
    waiting = iter(requests)
    failures: list[str] = []

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for body in waiting:
            connection.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            told = answer.read()
            if answer.status != http.HTTPStatus.OK:
                failures.append(f"{answer.status}: {told[:200]!r}")
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(senders)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - began
    if failures:
        raise RuntimeError(f"{len(failures)} requests were not taken: {failures[0]}")
    return taken


def renewed(message: ExportTraceServiceRequest, count: int) -> Iterator[bytes]:
    """Yield ``count`` requests of other spans each: making them anew would take longer than storing them."""
    for _ in range(count):
        for span in message.resource_spans[0].scope_spans[0].spans:
            span.trace_id, span.span_id = os.urandom(16), os.urandom(8)
            span.start_time_unix_nano = time.time_ns()
            span.end_time_unix_nano = span.start_time_unix_nano + 10**9
            for pair in span.attributes:
                if pair.key == "gen_ai.request.id":
                    pair.value.string_value = f"chatcmpl-{os.urandom(16).hex()}"
        yield message.SerializeToString()
