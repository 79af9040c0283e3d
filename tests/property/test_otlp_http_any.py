"""Any request on the OTLP port gets an answer of HTTP's own, in the form that was sent, and is counted."""

import asyncio
import gzip
import zlib
from typing import Any

from google.rpc import status_pb2  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from prometheus_client import CollectorRegistry

from collectors.otlp.decode import Limits
from collectors.otlp.http_app import HttpApp
from collectors.otlp.ingest import Ingest
from tests.support.telemetry import AnsweringSink, otlp_payloads

_REAL = min(otlp_payloads("0.32.0"), key=len)
_FATES = ("ok", "partial", "refused for good", "refused for now")

bodies = (
    st.binary(max_size=200)
    | st.binary(max_size=100).map(gzip.compress)
    | st.binary(max_size=100).map(zlib.compress)
    | st.integers(1, 400_000).map(lambda size: gzip.compress(bytes(size)))
    | st.integers(0, len(_REAL)).map(lambda cut: _REAL[:cut])
    | st.integers(0, 60).map(lambda cut: gzip.compress(_REAL)[: -cut or None])
    | st.text(max_size=60).map(str.encode)
)
kinds = st.sampled_from(["application/x-protobuf", "application/json", "application/json; charset=utf-8", ""])
headers = st.fixed_dictionaries(
    {},
    optional={
        "content-type": kinds | st.text(max_size=12),
        "content-encoding": st.sampled_from(["gzip", "deflate", "identity", "br", "", "GZIP "])
        | st.text(max_size=6),
        "content-length": st.text("0123456789x²", max_size=12) | st.just("9" * 5_000),
    },
)


async def _answer(app: HttpApp, scope: dict[str, Any], body: bytes, cut: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"type": "http.request", "body": body[:cut], "more_body": True},
        {"type": "http.request", "body": body[cut:]},
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    await app(scope, receive, send)
    return sent


@given(
    body=bodies,
    named=headers,
    path=st.sampled_from(["/v1/traces", "/v1/traces", "/v1/traces", "/", "/v1/metrics"]),
    method=st.sampled_from(["POST", "POST", "POST", "GET", "PUT"]),
    cut=st.integers(0, 200),
)
def test_any_request_is_answered_and_counted(
    body: bytes, named: dict[str, str], path: str, method: str, cut: int
) -> None:
    registry, sink = CollectorRegistry(), AnsweringSink()
    ingest = Ingest(sink, registry, Limits(attributes=8, spans=100), answer_seconds=5.0)
    app = HttpApp(ingest, max_body_bytes=20_000, max_decompressed_bytes=100_000)
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in named.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": raw}
    start, rest = asyncio.run(_answer(app, scope, body, cut))
    assert start["status"] in {200, 400, 404, 405, 413, 415}
    told = dict(start["headers"])
    assert int(told[b"content-length"]) == len(rest["body"])
    if told[b"content-type"] == b"application/x-protobuf":
        message = ExportTraceServiceResponse() if start["status"] == 200 else status_pb2.Status()
        message.ParseFromString(rest["body"])
    counts = {
        fate: registry.get_sample_value("kvscope_otlp_requests_total", {"answer": fate}) for fate in _FATES
    }
    assert sum(count or 0 for count in counts.values()) == 1
    assert (counts["refused for good"] == 1) == (start["status"] != 200)
    assert (start["status"] == 200) or not sink.accepted
