"""Any bytes give spans or a permanent error, and whatever comes out can be written as JSON."""

import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from collectors.otlp.decode import Decoded, Limits, decode_json, decode_protobuf
from kvscope.errors import PermanentIngestError
from tests.support.telemetry import otlp_payloads

# a busy machine is no failure
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

LIMITS = Limits(attributes=16, spans=1000)
_SMALL = min(otlp_payloads("0.32.0"), key=len)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "resourceSpans",
                    "resource",
                    "scopeSpans",
                    "spans",
                    "attributes",
                    "key",
                    "value",
                    "traceId",
                    "spanId",
                    "links",
                    "intValue",
                    "stringValue",
                    "doubleValue",
                    "arrayValue",
                    "values",
                    "name",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


def _decoded(decode: Callable[[bytes, Limits], Decoded], body: bytes) -> Decoded | None:
    try:
        return decode(body, LIMITS)
    except PermanentIngestError:
        return None


def _is_writable(decoded: Decoded | None) -> bool:
    for span in decoded.spans if decoded else ():
        json.dumps([span.attributes, span.resource], allow_nan=False).encode()
        span.name.encode()
    for part in decoded.parts if decoded else ():
        json.dumps(dict(part.values), allow_nan=False)
    return True


@calm
@given(st.binary(max_size=400))
@example(b"")
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    assert _is_writable(_decoded(decode_protobuf, body))
    assert _is_writable(_decoded(decode_json, body))


@calm
@given(st.data())
def test_a_damaged_export_request_is_decoded_or_refused(data: st.DataObject) -> None:
    body = bytearray(_SMALL)
    for _ in range(data.draw(st.integers(1, 8))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert _is_writable(_decoded(decode_protobuf, bytes(body[: data.draw(st.integers(0, len(body)))])))


@calm
@given(json_values)
def test_any_json_is_decoded_or_refused(document: object) -> None:
    assert _is_writable(_decoded(decode_json, json.dumps({"resourceSpans": document}).encode()))


@pytest.mark.parametrize("depth", [90, 110, 5000])
def test_nested_values_are_decoded_or_refused(depth: int) -> None:
    value = '{"arrayValue":{"values":[' * depth + "]}}" * depth
    trace_id, span_id = "1" * 32, "1" * 16
    span = f'{{"traceId":"{trace_id}","spanId":"{span_id}","attributes":[{{"key":"a","value":{value}}}]}}'
    document = f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{span}]}}]}}]}}'
    assert _is_writable(_decoded(decode_json, document.encode()))
