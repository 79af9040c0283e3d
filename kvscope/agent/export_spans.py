"""Request records as OTLP spans with the names of OpenTelemetry's GenAI conventions (November 2026).

A span tells what the conventions know under their names and the rest under ``kvscope.``; it holds no prompt
text, no session and no tenant. The request's id is ``kvscope.request_id``: a kvscope that receives such a
span takes it for no request of its own.
"""

import hashlib
import logging
import re
from collections.abc import Iterator
from importlib.metadata import version
from urllib.parse import urlsplit

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from typing_extensions import override

from kvscope.model.request import RequestRecord
from kvscope.model.request import Status as RequestStatus

SPAN_NAME = "kvscope.inference"

_Value = str | int | float | tuple[str, ...]

_MICROSECONDS = 1e6
_HTTP_PORT, _HTTP_PATH, _METRICS_PATH = 4318, "/v1/traces", "/v1/metrics"
_TRACE_ID, _SPAN_ID = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{16}")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
RESOURCE = Resource({"service.name": "kvscope"})
SCOPE = InstrumentationScope("kvscope", version("kvscope"))

_ATTRIBUTES = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "e2e_seconds": "gen_ai.server.request.duration",
    "ttft_seconds": "gen_ai.server.time_to_first_token",
    "tpot_seconds": "gen_ai.server.time_per_output_token",
    "ttft_client_seconds": "gen_ai.client.operation.time_to_first_chunk",
    "request_id": "kvscope.request_id",
    "route": "kvscope.route",
    "engine": "kvscope.engine",
    "replica": "kvscope.replica",
    "queue_seconds": "kvscope.queue_seconds",
    "prefill_seconds": "kvscope.prefill_seconds",
    "decode_seconds": "kvscope.decode_seconds",
    "preemptions": "kvscope.preemptions",
    "prompt_layout": "kvscope.prompt_layout",
    "experiment": "kvscope.experiment",
    "arm": "kvscope.arm",
}


SENDER = "kvscope-export-sender"
"""Name of the thread that sends spans."""
METRICS_SENDER = "kvscope-export-metrics"
"""Name of the thread that sends metrics."""


class _NotFromSender(logging.Filter):
    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return record.threadName not in (SENDER, METRICS_SENDER)


_NOT_FROM_SENDER = _NotFromSender()


def span_of(record: RequestRecord, *, now: float) -> ReadableSpan:
    """Return the span of ``record``; the same record has the same ids, so a repeated one can be told.

    It is in the client's trace where that is known, below vLLM's span where that one is; else in a trace of
    its own. What has no time of arrival is put at ``now``.
    """
    own = hashlib.blake2b(record.request_id.encode(errors="surrogatepass"), digest_size=24).digest()
    trace_id, parent_id = _linked(record)
    start = now if record.arrived_at is None else record.arrived_at
    return ReadableSpan(
        SPAN_NAME,
        context=_context(
            trace_id or int.from_bytes(own[:16], "big") or 1, int.from_bytes(own[16:], "big") or 1
        ),
        parent=_context(trace_id, parent_id) if trace_id and parent_id else None,
        resource=RESOURCE,
        attributes=dict(_attributes(record)),
        kind=SpanKind.INTERNAL,
        instrumentation_scope=SCOPE,
        status=Status(StatusCode.ERROR if record.status is RequestStatus.ERROR else StatusCode.UNSET),
        start_time=_nanoseconds(start),
        end_time=_nanoseconds(start + (record.e2e_seconds or 0.0)),
    )


def _nanoseconds(at: float) -> int:
    """Return a time for OTLP, exact to the microsecond: more a float of Unix seconds does not hold."""
    return round(at * _MICROSECONDS) * 1_000


def _linked(record: RequestRecord) -> tuple[int, int]:
    """Return the ids of the client's trace and of vLLM's span in it, 0 where unknown."""
    trace_id, span_id = record.trace_id or "", record.span_id or ""
    if not _TRACE_ID.fullmatch(trace_id):
        return 0, 0
    return int(trace_id, 16), int(span_id, 16) if _SPAN_ID.fullmatch(span_id) else 0


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)


def _attributes(record: RequestRecord) -> Iterator[tuple[str, _Value]]:
    for field, name in _ATTRIBUTES.items():
        if (value := getattr(record, field)) is not None:
            yield name, attribute_text(value) if isinstance(value, str) else value
    if record.finish_reason is not None:
        yield "gen_ai.response.finish_reasons", (attribute_text(record.finish_reason),)
    if record.status not in (None, RequestStatus.OK):
        yield "error.type", str(record.status)
    for cause, tokens in (record.causes or {}).items():
        yield f"kvscope.miss.{cause}", tokens


def attribute_text(value: str) -> str:
    """Return ``value`` as protobuf takes it; a client's JSON may hold halves of characters."""
    return value.encode("utf-8", "replace").decode()


def otlp_exporter(endpoint: str, *, timeout_seconds: float) -> SpanExporter:
    """Return the SDK's exporter for ``endpoint``: OTLP/HTTP where it has a path or port 4318, else gRPC.

    Headers are the SDK's to read, from OTEL_EXPORTER_OTLP_HEADERS. Its log lines about failures, one for each
    try, are left out where they come from kvscope's own threads: it says it once.
    """
    _hush("proto.grpc.exporter", "proto.grpc.trace_exporter", "proto.http.trace_exporter", "common.http")
    parts = urlsplit(endpoint)
    if _is_http(endpoint):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        url = endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _HTTP_PATH
        return HttpExporter(endpoint=url, timeout=timeout_seconds)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

    return GrpcExporter(endpoint=endpoint, insecure=parts.scheme != "https", timeout=timeout_seconds)


def metric_exporter(endpoint: str, *, timeout_seconds: float) -> MetricExporter:
    """Return the SDK's exporter of metrics for the endpoint of spans, chosen as ``otlp_exporter`` chooses.

    Where the endpoint's path ends in ``/v1/traces``, metrics go to ``/v1/metrics`` beside it.
    """
    _hush("proto.grpc.exporter", "proto.grpc.metric_exporter", "proto.http.metric_exporter", "common.http")
    if _is_http(endpoint):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

        base = endpoint.rstrip("/").removesuffix(_HTTP_PATH)
        return HttpExporter(endpoint=base + _METRICS_PATH, timeout=timeout_seconds)
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

    secure = urlsplit(endpoint).scheme == "https"
    return GrpcExporter(endpoint=endpoint, insecure=not secure, timeout=timeout_seconds)


def _is_http(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    return bool(parts.path.strip("/")) or parts.port == _HTTP_PORT


def _hush(*names: str) -> None:
    for name in names:
        logging.getLogger(f"opentelemetry.exporter.otlp.{name}").addFilter(_NOT_FROM_SENDER)
