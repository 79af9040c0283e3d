"""Finished requests to the agent as OTLP spans, with the OpenTelemetry SDK's own exporters.

Nothing here touches the process's global tracer provider, sampler or limits: they are vLLM's.
"""

import inspect
import logging
import secrets
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry import context
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind
from typing_extensions import override

from collectors.vllm_plugin.finished import SPAN_NAME, FinishedRequest

_TIMEOUT_SECONDS = 5.0
_RECONNECT_MS = 5_000
_NANOSECONDS = 1e9
_HTTP_PATH = "/v1/traces"
_HTTP_PORT = 4318
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "opentelemetry.exporter.otlp.common.http",
)


class _SecretIds(IdGenerator):
    """Ids that do not repeat after a restart: vLLM seeds ``random``, which the SDK's own generator uses."""

    @override
    def generate_span_id(self) -> int:
        return secrets.randbits(64) or 1

    @override
    def generate_trace_id(self) -> int:
        return secrets.randbits(128) or 1


class _Kept(SpanProcessor):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    @override
    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _NotFrom(logging.Filter):
    """Passes records of all threads but one: the same exporters may serve vLLM, whose log stays whole."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread


class OtlpSender:
    """Sends over OTLP from the thread that makes it; that thread's exporter messages are not logged."""

    def __init__(self, endpoint: str) -> None:
        quiet = _NotFrom()
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(quiet)
        self._exporter = exporter(endpoint)
        self._kept = _Kept()
        # limits given here are not read from the environment, where they are meant for vLLM's spans
        limits = SpanLimits(max_span_attributes=SpanLimits.UNSET, max_span_attribute_length=SpanLimits.UNSET)
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource({"service.name": "kvscope-vllm-plugin"}),
            shutdown_on_exit=False,
            id_generator=_SecretIds(),
            span_limits=limits,
        )
        provider.add_span_processor(self._kept)
        self._tracer = provider.get_tracer("kvscope")
        self._made: tuple[Sequence[FinishedRequest], list[ReadableSpan]] = ((), [])

    def send(self, requests: Sequence[FinishedRequest]) -> bool:
        """Send one span for each request; the same sequence again sends the same spans again."""
        made_of, spans = self._made
        if made_of is not requests:
            spans = self._spans(requests)
            self._made = (requests, spans)
        token = context.attach(context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))  # noqa: FBT003 - their signature
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        finally:
            context.detach(token)

    def close(self) -> None:
        """Let go of connections."""
        self._exporter.shutdown()

    def _spans(self, finished: Sequence[FinishedRequest]) -> list[ReadableSpan]:
        self._kept.spans = []
        for request in finished:
            span = self._tracer.start_span(
                SPAN_NAME,
                context=context.Context(),  # a trace of its own, whatever is current in this thread
                kind=SpanKind.INTERNAL,
                attributes=dict(request.attributes),
                start_time=int(request.start_at * _NANOSECONDS),
            )
            span.end(int(request.end_at * _NANOSECONDS))
        return self._kept.spans


def exporter(endpoint: str) -> SpanExporter:
    """Return the exporter for ``endpoint``: OTLP/HTTP where the URL has a path or port 4318, else gRPC.

    A gRPC endpoint has no path, so the URL that vLLM's own ``--otlp-traces-endpoint`` takes works here too.
    """
    parts = urlsplit(endpoint)
    if parts.path.strip("/") or parts.port == _HTTP_PORT:
        url = endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _HTTP_PATH
        session = requests.Session()
        session.trust_env = False  # the agent is beside the engine: no proxy lies between
        return HttpExporter(endpoint=url, timeout=_TIMEOUT_SECONDS, session=session)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

    options: dict[str, Any] = {"insecure": parts.scheme != "https", "timeout": _TIMEOUT_SECONDS}
    if "channel_options" in inspect.signature(GrpcExporter).parameters:  # of newer versions
        # else gRPC waits for up to two minutes before it tries an agent again that was away for long
        options["channel_options"] = (("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),)
    return GrpcExporter(endpoint=endpoint, **options)
