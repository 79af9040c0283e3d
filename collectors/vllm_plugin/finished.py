"""vLLM's statistics of one finished request, read without trust in their shape, as span attributes."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

SPAN_NAME = "kvscope.request"

AttributeValue = str | int | float | tuple[str, ...]

_SECONDS = {
    "kvscope.e2e_seconds": "e2e_latency",
    "kvscope.queue_seconds": "queued_time",
    "kvscope.prefill_seconds": "prefill_time",
    "kvscope.decode_seconds": "decode_time",
    "kvscope.tpot_seconds": "mean_time_per_output_token",
}


class UnknownShapeError(Exception):
    """Raised when this vLLM's statistics are not as those of 0.20 to 0.33."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """One finished request, ready to become a span; times are Unix seconds."""

    start_at: float
    end_at: float
    attributes: Mapping[str, AttributeValue]


def finished_request(
    stats: Any, *, finished_at: float, engine_index: int, model: str | None
) -> FinishedRequest | None:
    """Return what ``FinishedRequestStats`` tells, or None where it names no request.

    Raises ``UnknownShapeError`` when a field that is needed is missing or is no number.
    """
    try:
        request_id = stats.request_id
        counts = {
            "gen_ai.usage.input_tokens": int(stats.num_prompt_tokens),
            "gen_ai.usage.output_tokens": int(stats.num_generation_tokens),
            "gen_ai.usage.cache_read.input_tokens": int(stats.num_cached_tokens),
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise UnknownShapeError(str(error)) from error
    if not isinstance(request_id, str) or not request_id:
        return None
    if counts["gen_ai.usage.cache_read.input_tokens"] < 0:  # vLLM's word for a prompt not looked up yet
        del counts["gen_ai.usage.cache_read.input_tokens"]
    attributes: dict[str, AttributeValue] = {
        "gen_ai.request.id": request_id,
        **counts,
        **_seconds(stats, output_tokens=counts["gen_ai.usage.output_tokens"]),
        "kvscope.engine_index": engine_index,
    }
    if isinstance(preemptions := getattr(stats, "num_preemptions", None), int):
        attributes["kvscope.preemptions"] = preemptions
    if reason := finish_reason(getattr(stats, "finish_reason", None)):
        attributes["gen_ai.response.finish_reasons"] = (reason,)
    if model:
        attributes["gen_ai.request.model"] = model
    duration = attributes.get("kvscope.e2e_seconds", 0.0)
    start_at = finished_at - (duration if isinstance(duration, float) else 0.0)
    return FinishedRequest(start_at=start_at, end_at=finished_at, attributes=attributes)


def finish_reason(reason: Any) -> str | None:
    """Return vLLM's reason in the API's words: its enum's members are named STOP, LENGTH, ABORT, ERROR."""
    name = getattr(reason, "name", reason)
    return name.lower() if isinstance(name, str) and name else None


def _seconds(stats: Any, *, output_tokens: int) -> dict[str, float]:
    """Return the durations that are real.

    vLLM subtracts times that are 0 where a step was never reached, and writes 0 for the time per token
    of a request with one token; neither is a duration.
    """
    known: dict[str, float] = {}
    for name, field in _SECONDS.items():
        value = getattr(stats, field, None)
        if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
            known[name] = float(value)
    if output_tokens <= 1:
        known.pop("kvscope.tpot_seconds", None)
    if output_tokens == 0:
        for name in ("kvscope.prefill_seconds", "kvscope.decode_seconds"):
            known.pop(name, None)
    return known
