"""Export requests of real engines and of others, decoded."""

import json
import math
from collections.abc import Mapping

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from collectors.otlp.attributes import attributes_of
from collectors.otlp.decode import Decoded, Limits, decode_json, decode_protobuf
from kvscope.errors import PermanentIngestError
from kvscope.model.request import RequestPart, Source, Status
from tests.support.telemetry import otlp_payloads, usage

LIMITS = Limits(attributes=128, spans=1000)
TRACE_ID = bytes(range(1, 17))
SPAN_ID = bytes(range(1, 9))


def _span(attributes: Mapping[str, object] | None = None, *, name: str = "llm_request") -> ProtoSpan:
    span = ProtoSpan(
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
        name=name,
        start_time_unix_nano=1_795_966_295_372_161_536,
        end_time_unix_nano=1_795_966_295_669_918_621,
    )
    _add(span, attributes or {})
    return span


def _add(span: ProtoSpan, attributes: Mapping[str, object]) -> None:
    for key, value in attributes.items():
        attribute = span.attributes.add(key=key)
        match value:
            case bool():
                attribute.value.bool_value = value
            case int():
                attribute.value.int_value = value
            case float():
                attribute.value.double_value = value
            case list():
                for item in value:
                    attribute.value.array_value.values.add(string_value=item)
            case _:
                attribute.value.string_value = str(value)


def _request(*spans: ProtoSpan) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.extend(spans)
    return request


def _decode(*spans: ProtoSpan) -> Decoded:
    return decode_protobuf(_request(*spans).SerializeToString(), LIMITS)


def _part(span: ProtoSpan) -> RequestPart:
    (part,) = _decode(span).parts
    return part


@pytest.mark.parametrize(
    ("version", "requests", "prompt_tokens"), [("0.32.0", 160, 101_894), ("0.23.0", 120, 74_732)]
)
def test_recorded_payloads_give_every_request_with_the_usage_it_was_answered_with(
    version: str, requests: int, prompt_tokens: int
) -> None:
    decoded = [decode_protobuf(body, LIMITS) for body in otlp_payloads(version)]
    parts = {part.request_id: part.values for one in decoded for part in one.parts}
    assert len(parts) == requests
    assert sum(values["prompt_tokens"] for values in parts.values()) == prompt_tokens
    told = {request_id: counts[:2] for request_id, counts in usage(version).items()}
    assert {
        request_id: (values["prompt_tokens"], values["output_tokens"]) for request_id, values in parts.items()
    } == told
    spans = [span for one in decoded for span in one.spans]
    assert sum(span.name == "llm_request" for span in spans) == requests
    assert {"Load model", "Allocate KV cache"} <= {span.name for span in spans}
    assert sum(one.rejected for one in decoded) == 0


@pytest.mark.parametrize("version", ["0.32.0", "0.23.0"])
def test_the_json_form_of_a_recorded_payload_decodes_to_the_same(version: str) -> None:
    for body in otlp_payloads(version):
        document = json_format.MessageToDict(ExportTraceServiceRequest.FromString(body))
        for resource in document["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in span:
                            # OTLP's JSON has ids in hex, protobuf's in base64
                            field = json_format.ParseDict({key: span[key]}, ProtoSpan())
                            span[key] = max(field.trace_id, field.span_id, field.parent_span_id).hex()
        assert decode_json(json.dumps(document).encode(), LIMITS) == decode_protobuf(body, LIMITS)


def test_the_first_recorded_request_has_its_timings_and_ids() -> None:
    part = next(part for body in otlp_payloads("0.32.0") for part in decode_protobuf(body, LIMITS).parts)
    assert part.request_id == "cap-11-0000"
    assert part.source is Source.SPAN
    assert part.values["trace_id"] == "649dc4a3a9bcffa5141c68407b9c86a4"
    assert part.values["arrived_at"] == pytest.approx(1795966295.372161536, abs=1e-6)
    assert part.values["ttft_seconds"] == 0.20808649063110352
    assert part.values["prefill_seconds"] == 0.12248519500008115
    assert part.values["tpot_seconds"] == pytest.approx(0.088095664999855217 / 7)
    assert part.values["cached_tokens"] is None


def test_one_output_token_has_no_time_per_token() -> None:
    name = "gen_ai.latency.time_in_model_decode"
    part = _part(_span({"gen_ai.request.id": "a", "gen_ai.usage.completion_tokens": 1, name: 0.0}))
    assert part.values["decode_seconds"] == 0.0
    assert part.values["tpot_seconds"] is None


def test_the_conventions_names_are_read_too() -> None:
    part = _part(
        _span(
            {
                "gen_ai.request.id": "cmpl-x-0",
                "gen_ai.usage.input_tokens": 100,
                "gen_ai.usage.output_tokens": 5,
                "gen_ai.usage.cache_read.input_tokens": 64,
                "gen_ai.response.finish_reasons": ["stop"],
                "gen_ai.request.model": "tiny",
            },
            name="chat tiny",
        )
    )
    assert part.request_id == "x"
    assert (part.values["prompt_tokens"], part.values["output_tokens"]) == (100, 5)
    assert part.values["cached_tokens"] == 64
    assert (part.values["finish_reason"], part.values["model"]) == ("stop", "tiny")


def test_sglang_tells_its_cached_tokens() -> None:
    attributes = {"gen_ai.request.id": "f00", "gen_ai.usage.prompt_tokens": 9}
    part = _part(_span({**attributes, "gen_ai.usage.cached_tokens": 8}, name="Req f00"))
    assert (part.request_id, part.values["cached_tokens"]) == ("f00", 8)


def test_a_clients_span_joins_by_the_id_of_the_answer_and_tells_its_tokens_only() -> None:
    part = _part(_span({"gen_ai.response.id": "chatcmpl-q", "gen_ai.usage.input_tokens": 7}, name="chat"))
    assert (part.request_id, part.values["prompt_tokens"]) == ("q", 7)
    assert "arrived_at" not in part.values
    assert "span_id" not in part.values


def test_kvscopes_plugin_is_a_source_of_its_own() -> None:
    part = _part(
        _span(
            {
                "gen_ai.request.id": "chatcmpl-p",
                "gen_ai.usage.input_tokens": 50,
                "gen_ai.usage.output_tokens": 3,
                "gen_ai.usage.cache_read.input_tokens": 0,
                "gen_ai.response.finish_reasons": ["abort"],
                "kvscope.queue_seconds": 0.5,
                "kvscope.tpot_seconds": 0.01,
                "kvscope.preemptions": 2,
                "kvscope.engine_index": 1,
            },
            name="kvscope.request",
        )
    )
    assert (part.request_id, part.source) == ("p", Source.PLUGIN)
    values = part.values
    assert (values["cached_tokens"], values["preemptions"], values["replica"]) == (0, 2, "1")
    assert (values["queue_seconds"], values["tpot_seconds"]) == (0.5, 0.01)
    assert (values["finish_reason"], values["status"]) == ("abort", Status.ABORTED)
    assert "trace_id" not in values


def test_impossible_numbers_leave_the_span_and_empty_the_fields() -> None:
    decoded = _decode(
        _span(
            {
                "gen_ai.request.id": "a",
                "gen_ai.latency.time_to_first_token": math.nan,
                "gen_ai.latency.e2e": math.inf,
                "gen_ai.latency.time_in_queue": -1.0,
                "gen_ai.usage.prompt_tokens": -5,
                "gen_ai.usage.completion_tokens": 2.5,
                "gen_ai.latency.time_in_model_decode": True,
            }
        )
    )
    (span,) = decoded.spans
    assert json.loads(json.dumps(span.attributes, allow_nan=False))["gen_ai.latency.e2e"] == "inf"
    (part,) = decoded.parts
    told = {
        "ttft_seconds",
        "e2e_seconds",
        "queue_seconds",
        "prompt_tokens",
        "output_tokens",
        "decode_seconds",
    }
    assert [field for field in told if part.values[field] is not None] == []


def test_more_cached_tokens_than_prompt_tokens_tell_nothing() -> None:
    attributes = {"gen_ai.request.id": "a", "gen_ai.usage.prompt_tokens": 10}
    part = _part(_span({**attributes, "gen_ai.usage.cached_tokens": 11}))
    assert part.values["cached_tokens"] is None


def test_spans_without_whole_ids_are_rejected_and_counted() -> None:
    short, zero, good = _span(), _span(), _span()
    short.trace_id = b"\x01"
    zero.span_id = bytes(8)
    decoded = _decode(short, zero, good)
    assert (len(decoded.spans), decoded.rejected) == (1, 2)


def test_an_id_that_is_not_hex_costs_its_span_only() -> None:
    spans = [
        {"traceId": "xyz", "spanId": SPAN_ID.hex(), "name": "a"},
        {
            "traceId": TRACE_ID.hex().upper(),
            "spanId": SPAN_ID.hex(),
            "name": "b",
            "links": [{"traceId": "zz"}],
        },
    ]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    decoded = decode_json(body, LIMITS)
    assert ([span.name for span in decoded.spans], decoded.rejected) == (["b"], 1)
    assert decoded.spans[0].trace_id == TRACE_ID.hex()


def test_a_span_without_request_id_has_no_part() -> None:
    assert _decode(_span()).parts == ()
    assert _decode(_span({"gen_ai.request.id": ""})).parts == ()


def test_ten_thousand_attributes_are_cut_and_counted() -> None:
    decoded = _decode(_span({f"vllm.x{n}": n for n in range(10_000)}))
    assert len(decoded.spans[0].attributes) == LIMITS.attributes
    assert decoded.dropped_attributes == 10_000 - LIMITS.attributes


def test_text_that_may_be_a_prompt_is_not_kept() -> None:
    decoded = _decode(
        _span(
            {
                "gen_ai.request.id": "a",
                "gen_ai.prompt.0.content": "my secret",
                "gen_ai.input.messages": "my secret",
                "input.value": "my secret",
                "process.command_line": "--api-key secret",
                "vllm.note": "secret" * 100,
                "custom.flag": True,
                "custom.number": 3,
            }
        )
    )
    kept = decoded.spans[0].attributes
    assert kept == {"gen_ai.request.id": "a", "custom.flag": True, "custom.number": 3}
    assert decoded.dropped_attributes == 5


def test_nul_characters_do_not_reach_a_store() -> None:
    span = _span({"gen_ai.request.id": "a\x00b", "gen_ai.usage.input_tokens": 1}, name="na\x00me")
    decoded = _decode(span)
    assert decoded.spans[0].name == "na\ufffdme"
    assert decoded.parts[0].request_id == "a\ufffdb"


def test_too_many_spans_in_one_request_are_refused_with_the_limit() -> None:
    with pytest.raises(PermanentIngestError, match="3 spans in one export request; at most 2"):
        decode_protobuf(
            _request(_span(), _span(), _span()).SerializeToString(), Limits(attributes=1, spans=2)
        )


@pytest.mark.parametrize(
    "body", [b"\xff\xff", b"not protobuf at all", _request(_span()).SerializeToString()[:-3]]
)
def test_what_is_not_protobuf_is_a_permanent_error(body: bytes) -> None:
    with pytest.raises(PermanentIngestError, match="not a protobuf"):
        decode_protobuf(body, LIMITS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"[]",
        b"1",
        b"\xff",
        b'{"resourceSpans": 3}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "x"}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "\\ud800"}]}]}]}',
        b'{"a":' * 5000,
        b"[" * 100_000,
    ],
)
def test_what_is_not_otlps_json_is_a_permanent_error(body: bytes) -> None:
    with pytest.raises(PermanentIngestError, match="not a JSON"):
        decode_json(body, LIMITS)


def test_a_long_request_id_is_kept_whole() -> None:
    pair = KeyValue(key="gen_ai.request.id", value=AnyValue(string_value="chatcmpl-" + "i" * 4_000))
    kept, dropped = attributes_of([pair], 10)
    assert (kept, dropped) == ({"gen_ai.request.id": "chatcmpl-" + "i" * 4_000}, 0)
    pair.value.string_value += "i" * 100
    assert attributes_of([pair], 10) == ({}, 1)
