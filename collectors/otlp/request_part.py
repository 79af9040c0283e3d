"""What a span tells of one request; knows the attribute names of several producers."""

import math
from collections.abc import Mapping
from typing import Any

from kvscope.model.ids import request_id_of_engine, request_id_of_response
from kvscope.model.request import RequestPart, Source, Status
from kvscope.model.telemetry import Span

ENGINE_SPAN = "llm_request"  # vLLM 0.11 to 0.33
PLUGIN_SPAN = "kvscope.request"  # collectors/vllm_plugin
_SPANS_OF_ONE_SEQUENCE = frozenset({ENGINE_SPAN, PLUGIN_SPAN})

_LARGEST_COUNT = 10**9
_STATUS_OF_FINISH = {"abort": Status.ABORTED, "error": Status.ERROR}

# A field, and the names that tell it: vLLM's own first, then OpenTelemetry's GenAI conventions
# (November 2026), then SGLang's.
_COUNTS = {
    "prompt_tokens": ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"),
    "output_tokens": ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens"),
    "cached_tokens": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.cached_tokens",
    ),
}
_SECONDS = {
    "ttft_seconds": "gen_ai.latency.time_to_first_token",
    "e2e_seconds": "gen_ai.latency.e2e",
    "queue_seconds": "gen_ai.latency.time_in_queue",
    "prefill_seconds": "gen_ai.latency.time_in_model_prefill",
    "decode_seconds": "gen_ai.latency.time_in_model_decode",
}
_PLUGIN_SECONDS = {
    "e2e_seconds": "kvscope.e2e_seconds",
    "queue_seconds": "kvscope.queue_seconds",
    "prefill_seconds": "kvscope.prefill_seconds",
    "decode_seconds": "kvscope.decode_seconds",
    "tpot_seconds": "kvscope.tpot_seconds",
}
_TELLING = frozenset(name for names in _COUNTS.values() for name in names) | frozenset(_SECONDS.values())


def request_part(span: Span) -> RequestPart | None:
    """Return the part that ``span`` tells, or None where it is not about one request with an id."""
    attributes = span.attributes
    if span.name == PLUGIN_SPAN:
        return _part(span, Source.PLUGIN, _plugin_values(span))
    if span.name == ENGINE_SPAN or _TELLING & attributes.keys():
        return _part(span, Source.SPAN, _span_values(span))
    return None


def _part(span: Span, source: Source, values: dict[str, Any]) -> RequestPart | None:
    """Return a part of its own sequence where vLLM speaks: it sends one span each (0.32, executed).

    Of other producers' spans several may be about one sequence.
    """
    request_id = _request_id(span.attributes)
    if request_id is None:
        return None
    piece = span.span_id if span.name in _SPANS_OF_ONE_SEQUENCE else ""
    return RequestPart(request_id=request_id, source=source, values=values, piece=piece)


def _request_id(attributes: Mapping[str, Any]) -> str | None:
    if engine_id := _text(attributes, "gen_ai.request.id"):
        return request_id_of_engine(engine_id)
    if response_id := _text(attributes, "gen_ai.response.id"):
        return request_id_of_response(response_id)
    return None


def _span_values(span: Span) -> dict[str, Any]:
    """Values of an engine's span, or the tokens alone where a client in front of it speaks."""
    values: dict[str, Any] = {
        "trace_id": span.trace_id,
        **_common(span.attributes),
        **_seconds(span.attributes, _SECONDS),
    }
    if "gen_ai.request.id" in span.attributes:
        values |= {"span_id": span.span_id, "arrived_at": span.start_at or None}
    values["tpot_seconds"] = tpot_seconds(values["decode_seconds"], values["output_tokens"])
    return values


def _plugin_values(span: Span) -> dict[str, Any]:
    """Values of kvscope's own plugin, whose span is in no trace of the client's."""
    index = span.attributes.get("kvscope.engine_index")
    values: dict[str, Any] = {
        "arrived_at": span.start_at or None,
        "replica": str(index) if count(index) is not None else None,
        "preemptions": count(span.attributes.get("kvscope.preemptions")),
        **_common(span.attributes),
        **_seconds(span.attributes, _PLUGIN_SECONDS),
    }
    if (reason := values["finish_reason"]) is not None:
        values["status"] = _STATUS_OF_FINISH.get(reason, Status.OK)
    return values


def _common(attributes: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field, names in _COUNTS.items():
        values[field] = None
        for name in names:
            if name in attributes and (told := count(attributes[name])) is not None:
                values[field] = told
                break
    prompt, cached = values["prompt_tokens"], values["cached_tokens"]
    if prompt is not None and cached is not None and cached > prompt:
        values["cached_tokens"] = None  # impossible, so it tells nothing
    reasons = attributes.get("gen_ai.response.finish_reasons")
    first = reasons[0] if isinstance(reasons, list) and reasons else reasons
    values["finish_reason"] = first if isinstance(first, str) and first else None
    values["model"] = _text(attributes, "gen_ai.response.model") or _text(attributes, "gen_ai.request.model")
    return values


def _seconds(attributes: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float | None]:
    return {field: seconds(attributes[name]) if name in attributes else None for field, name in names.items()}


def seconds(value: Any) -> float | None:
    """Return a duration, or None for what cannot be one: text, NaN, infinity, a negative number."""
    if value.__class__ is float and 0 <= value < math.inf:  # nearly always
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def count(value: Any) -> int | None:
    """Return a count of tokens or events, or None for what cannot be one."""
    if value.__class__ is int and 0 <= value <= _LARGEST_COUNT:  # nearly always
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value <= _LARGEST_COUNT or value != int(value):
        return None
    return int(value)


def tpot_seconds(decode_seconds: float | None, output_tokens: int | None) -> float | None:
    """Return decode time ÷ (output tokens - 1): the first token comes from prefill; one token has none."""
    if decode_seconds is None or output_tokens is None or output_tokens <= 1:
        return None
    return decode_seconds / (output_tokens - 1)


def _text(attributes: Mapping[str, Any], name: str) -> str | None:
    value = attributes.get(name)
    return value if isinstance(value, str) and value else None
