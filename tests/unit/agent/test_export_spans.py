"""Records to spans: names of the conventions, links, ids, times; and when a request counts as whole."""

import dataclasses
from collections import Counter
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.trace import StatusCode

from kvscope.agent.export import Joiner
from kvscope.agent.export_spans import otlp_exporter, span_of
from kvscope.model.request import RequestPart, RequestRecord, Source, Status

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
RECORD = RequestRecord(
    request_id="r-1",
    trace_id=TRACE,
    span_id=SPAN,
    session="somebody",
    tenant="a customer",
    route="support",
    model="tiny",
    engine="http://e:8000",
    replica="0",
    arrived_at=1_700_000_000.25,
    status=Status.OK,
    finish_reason="stop",
    prompt_tokens=100,
    output_tokens=7,
    cached_tokens=64,
    ttft_seconds=0.5,
    ttft_client_seconds=0.6,
    tpot_seconds=0.02,
    queue_seconds=0.1,
    e2e_seconds=1.5,
    causes={"cold": 30, "granularity": 6},
)


def test_the_span_has_the_names_of_the_conventions() -> None:
    span = span_of(RECORD, now=0.0)
    assert dict(span.attributes or {}) == {
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 64,
        "gen_ai.server.request.duration": 1.5,
        "gen_ai.server.time_to_first_token": 0.5,
        "gen_ai.server.time_per_output_token": 0.02,
        "gen_ai.client.operation.time_to_first_chunk": 0.6,
        "gen_ai.response.finish_reasons": ("stop",),
        "kvscope.request_id": "r-1",
        "kvscope.route": "support",
        "kvscope.engine": "http://e:8000",
        "kvscope.replica": "0",
        "kvscope.queue_seconds": 0.1,
        "kvscope.miss.cold": 30,
        "kvscope.miss.granularity": 6,
    }
    assert (span.start_time, span.end_time) == (1_700_000_000_250_000_000, 1_700_000_001_750_000_000)
    assert span.status.status_code is StatusCode.UNSET


def test_it_hangs_below_vllms_span_in_the_clients_trace() -> None:
    span = span_of(RECORD, now=0.0)
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == f"{span.parent.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN
    assert span.context.span_id not in (0, span.parent.span_id)
    again = span_of(RECORD, now=5.0)
    assert again.context == span.context
    assert again.to_json() == span.to_json()


@pytest.mark.parametrize(
    ("trace_id", "span_id", "in_trace", "has_parent"),
    [
        (TRACE, None, True, False),
        (TRACE, "odd", True, False),
        (TRACE, "0" * 16, True, False),
        (None, SPAN, False, False),
        ("0" * 32, SPAN, False, False),
        ("ODD", SPAN, False, False),
    ],
)
def test_links_that_are_not_known_are_left_out(
    trace_id: str | None, span_id: str | None, in_trace: bool, has_parent: bool
) -> None:
    span = span_of(dataclasses.replace(RECORD, trace_id=trace_id, span_id=span_id), now=0.0)
    assert span.context is not None
    assert span.context.is_valid
    assert (f"{span.context.trace_id:032x}" == TRACE) is in_trace
    assert (span.parent is not None) is has_parent


def test_what_is_unknown_is_left_out_and_errors_are_named() -> None:
    span = span_of(RequestRecord(request_id="\ud800", status=Status.ERROR), now=7.0)
    assert dict(span.attributes or {}) == {"kvscope.request_id": "?", "error.type": "error"}
    assert (span.start_time, span.end_time) == (7_000_000_000, 7_000_000_000)
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [
        ("http://127.0.0.1:4317", GrpcExporter),
        ("https://otel.example:443/", GrpcExporter),
        ("http://127.0.0.1:4318", HttpExporter),
        ("https://otel.example/v1/traces", HttpExporter),
    ],
)
def test_the_protocol_follows_from_the_endpoint(endpoint: str, kind: type[Any]) -> None:
    exporter = otlp_exporter(endpoint, timeout_seconds=1.0)
    assert isinstance(exporter, kind)
    exporter.shutdown()


def _part(source: Source = Source.GATEWAY, request_id: str = "r", **values: Any) -> RequestPart:
    return RequestPart(request_id=request_id, source=source, values=values)


def _joiner(**more: Any) -> tuple[Joiner, Counter[str]]:
    fates: Counter[str] = Counter()
    joiner = Joiner(
        fate=lambda fate, spans: fates.update({fate: spans}), **{"wait_seconds": 10.0, "max_open": 3, **more}
    )
    return joiner, fates


def test_a_request_is_handed_on_once_after_it_was_quiet() -> None:
    joiner, fates = _joiner()
    joiner.take([_part(prompt_tokens=9, cached_tokens=4, status=Status.OK)], 0.0)
    joiner.take([_part(Source.SPAN, trace_id=TRACE)], 6.0)
    assert list(joiner.whole(15.9)) == []
    (record,) = joiner.whole(16.0)
    assert (record.cached_tokens, record.trace_id) == (4, TRACE)
    joiner.take([_part(Source.PLUGIN, cached_tokens=4)], 17.0)
    assert list(joiner.whole(99.0)) == []
    assert not fates


def test_what_has_not_ended_waits_and_what_tells_no_cached_tokens_is_counted() -> None:
    joiner, fates = _joiner()
    joiner.take([_part(request_id="running", prompt_tokens=9, cached_tokens=4)], 0.0)
    joiner.take([_part(request_id="untold", prompt_tokens=9, status=Status.ABORTED)], 0.0)
    assert list(joiner.whole(99.0)) == []
    assert fates == {"cached tokens unknown": 1}
    joiner.take([_part(Source.SPAN, request_id="running", e2e_seconds=1.0)], 99.0)
    assert [record.request_id for record in joiner.whole(99.0, all_of_them=True)] == ["running"]


def test_the_quietest_are_given_up_where_too_many_are_open() -> None:
    joiner, fates = _joiner()
    for at in range(5):
        joiner.take(
            [_part(request_id=str(at), prompt_tokens=1, cached_tokens=0, status=Status.OK)], float(at)
        )
    assert [record.request_id for record in joiner.whole(99.0)] == ["2", "3", "4"]
    assert fates == {"given up": 2}
