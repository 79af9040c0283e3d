"""Export requests as bytes to own types; any bytes give spans or ``PermanentIngestError``."""

import base64
import binascii
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from collectors.otlp.attributes import AttributeValue, attributes_of, clean_text
from collectors.otlp.request_part import request_part
from kvscope.errors import PermanentIngestError
from kvscope.model.request import RequestPart
from kvscope.model.telemetry import Span

_TRACE_ID_BYTES = 16
_SPAN_ID_BYTES = 8
_NANOSECONDS = 1e9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one export request may hold at most."""

    attributes: int  # of one span or resource; the rest is dropped and counted
    spans: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One export request; ``rejected`` counts spans without a usable trace or span id."""

    spans: tuple[Span, ...]
    parts: tuple[RequestPart, ...]
    rejected: int
    dropped_attributes: int


def decode_protobuf(body: bytes, limits: Limits) -> Decoded:
    """Decode a binary export request; raises ``PermanentIngestError``."""
    try:
        message = ExportTraceServiceRequest.FromString(body)
    except (DecodeError, RecursionError) as error:
        raise PermanentIngestError("the body is not a protobuf ExportTraceServiceRequest") from error
    return _decode(message, limits)


def decode_json(body: bytes, limits: Limits) -> Decoded:
    """Decode an export request in OTLP's JSON form; raises ``PermanentIngestError``."""
    message = ExportTraceServiceRequest()
    try:
        document = json.loads(body)
        if not isinstance(document, dict):
            raise PermanentIngestError("the body is not a JSON ExportTraceServiceRequest: no object")
        _ids_to_base64(document)
        json_format.ParseDict(document, message, ignore_unknown_fields=True)
    except (json_format.Error, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PermanentIngestError("the body is not a JSON ExportTraceServiceRequest") from error
    return _decode(message, limits)


def _decode(message: ExportTraceServiceRequest, limits: Limits) -> Decoded:
    total = sum(len(scope.spans) for resource in message.resource_spans for scope in resource.scope_spans)
    if total > limits.spans:
        raise PermanentIngestError(
            f"{total} spans in one export request; at most {limits.spans} are taken: send smaller batches"
        )
    spans: list[Span] = []
    dropped = 0
    for resource_spans in message.resource_spans:
        resource, left_out = attributes_of(resource_spans.resource.attributes, limits.attributes)
        dropped += left_out
        for scope_spans in resource_spans.scope_spans:
            for proto in scope_spans.spans:
                trace_id, span_id = proto.trace_id, proto.span_id
                if not _are_whole(trace_id, span_id):
                    continue
                attributes, left_out = attributes_of(proto.attributes, limits.attributes)
                dropped += left_out
                spans.append(_span(proto, (trace_id.hex(), span_id.hex()), attributes, resource))
    parts = (request_part(span) for span in spans)
    return Decoded(
        spans=tuple(spans),
        parts=tuple(part for part in parts if part is not None),
        rejected=total - len(spans),
        dropped_attributes=dropped,
    )


def _are_whole(trace_id: bytes, span_id: bytes) -> bool:
    """A span can be stored once only if both ids are whole and not zero, as OTLP asks."""
    return (
        len(trace_id) == _TRACE_ID_BYTES and len(span_id) == _SPAN_ID_BYTES and any(trace_id) and any(span_id)
    )


def _span(
    proto: trace_pb2.Span,
    ids: tuple[str, str],
    attributes: dict[str, AttributeValue],
    resource: dict[str, AttributeValue],
) -> Span:
    service = resource.get("service.name")
    return Span(
        trace_id=ids[0],
        span_id=ids[1],
        parent_span_id=proto.parent_span_id[:_SPAN_ID_BYTES].hex() or None,
        name=clean_text(proto.name),
        service=service if isinstance(service, str) else None,
        start_at=proto.start_time_unix_nano / _NANOSECONDS,
        end_at=proto.end_time_unix_nano / _NANOSECONDS,
        attributes=attributes,
        resource=resource,
    )


def _ids_to_base64(document: Any) -> None:
    """Rewrite ids in place: OTLP's JSON has them in hex, protobuf's own JSON in base64.

    An id that is not hex becomes empty, so that its span alone is rejected.
    """
    for span in _json_spans(document):
        for holder in (span, *_dicts(span.get("links"))):
            for key in ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"):
                if isinstance(text := holder.get(key), str):
                    holder[key] = _base64_of_hex(text)


def _json_spans(document: Any) -> Iterator[dict[str, Any]]:
    for resource in _dicts(_either(document, "resourceSpans", "resource_spans")):
        for scope in _dicts(_either(resource, "scopeSpans", "scope_spans")):
            yield from _dicts(scope.get("spans"))


def _either(holder: Any, camel: str, snake: str) -> Any:
    return holder.get(camel, holder.get(snake)) if isinstance(holder, dict) else None


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _base64_of_hex(text: str) -> str:
    try:
        return base64.b64encode(binascii.unhexlify(text)).decode()
    except ValueError:
        return ""
