"""The evidence of a suggestion as labelled lines for people.

What ``tuning.evidence`` and the advisor write is told in sentences; a key that is not known here is shown
by its name, so that a newer rule's evidence is not lost.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvscope.reports import words

_TOLD = frozenset(
    {
        *("role", "message_index", "tools", "char_start", "char_end", "value_kind", "parts"),
        *("requests", "window_seconds", "window_capped", "tokens_lost", "example_request_ids"),
        *("hit_rate_newer_half_before", "hit_rate_newer_half_after", "in_force"),
        # for programs: the same is told in another way, or is of no use to a reader
        *("ttft_change_low_seconds", "ttft_change_high_seconds", "gpu_seconds_saved_per_day"),
        *("characters_moved", "hit_rate_window_before", "hit_rate_window_after", "ttft_requests"),
    }
)
_PARTS = 3
_LABELS = {
    "blocks_now": "Blocks now",
    "hit_rate_without_limit": "With endless memory",
    "replicas": "Replicas used",
    "salts": "Salts in use",
    "tenants": "Tenants",
    "turns_at_fault": "Turns at fault",
    "history": "History is",
    "mean_prompt_tokens_before": "Prompt tokens now",
    "mean_prompt_tokens_after": "Prompt tokens then",
    "texts": "Wordings",
    "routes": "Routes that share it",
    "example_of_kept": "A request with the wording to keep",
    "images": "Requests with images",
    "block_size": "Tokens a block",
    "tokens_in_last_block": "Tokens in the unfilled block",
    "requests_held": "Requests that would wait",
    "mean_wait_seconds": "Their mean wait",
    "touches": "Touches in the window",
    "touch_tokens": "Tokens of a touch",
    "tokens_computed_by_touches": "Tokens that touches compute",
    "tokens_saved_all_routes": "Saved over all routes",
}
_ASSUMED = {
    "image_tokens_assumed": "each image counts as a text of fixed length",
    "prefill_assumed": "0.1 ms of prefill a token, as no latency model is fitted",
}


def lines(evidence: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (label, text) pairs: where the prefix breaks, what it costs, where to look."""
    return tuple((label, text) for label, text in _lines(evidence) if text)


def ttft_change(change_seconds: float | None, evidence: Mapping[str, Any]) -> str:
    """Return the change of the time to the first token with its 90 % interval, where there is one."""
    low, high = evidence.get("ttft_change_low_seconds"), evidence.get("ttft_change_high_seconds")
    return words.change_within(change_seconds, low, high)


def gpu_seconds(evidence: Mapping[str, Any]) -> float | None:
    """Return the GPU seconds that are saved a day, None where no latency model told them."""
    value = evidence.get("gpu_seconds_saved_per_day")
    return value if isinstance(value, int | float) else None


def _lines(evidence: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    # salts are a part without a place
    parts = [part for part in evidence.get("parts") or [evidence] if part.get("role") is not None]
    yield "Where", "; ".join(filter(None, map(_where, parts[:_PARTS])))
    if len(parts) > _PARTS:
        yield "More places", words.count(len(parts) - _PARTS)
    yield "Seen in", _seen(evidence)
    lost = evidence.get("tokens_lost")
    yield "Lost", "" if lost is None else f"{words.count(lost)} tokens"
    before, after = evidence.get("hit_rate_newer_half_before"), evidence.get("hit_rate_newer_half_after")
    if before is not None and after is not None:
        yield "On the newer half alone", f"{words.percent(before)} to {words.percent(after)}"
    yield "In force already", _text("in_force", evidence.get("in_force"))
    yield "Examples", ", ".join(words.short_id(str(one)) for one in evidence.get("example_request_ids") or ())
    yield "Assumed", "; ".join(told for key, told in _ASSUMED.items() if evidence.get(key))
    for key, value in evidence.items():
        if key not in _TOLD and key not in _ASSUMED:
            yield _LABELS.get(key) or words.text(key).capitalize(), _text(key, value)


def _where(part: Mapping[str, Any]) -> str:
    """Return a place with its kind of value: ``system message 0, characters 14 to 33: timestamp``."""
    role, index = part.get("role"), part.get("message_index")
    if role is None and index is None:
        return ""
    text = words.place(role, index if isinstance(index, int) else None)
    start = part.get("char_start")
    if start is not None:
        text += f", {words.characters(start, part.get('char_end'))}"
    kind = part.get("value_kind")
    return text if kind is None else f"{text}: {words.text(kind)}"


def _seen(evidence: Mapping[str, Any]) -> str:
    requests, seconds = evidence.get("requests"), evidence.get("window_seconds")
    if requests is None:
        return ""
    text = words.requests(requests)
    if seconds is not None:
        text += f" in {words.span(seconds)}"
    return text + (", the newest of more" if evidence.get("window_capped") else "")


def _text(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(key, value)
    if isinstance(value, Mapping):
        return "; ".join(f"{words.text(k)}: {_text(str(k), v)}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_text(key, item) for item in value)
    return words.text(value) if key.endswith(("kind", "cause")) else str(value)


def _number(key: str, value: float) -> str:
    if key.endswith("_at"):
        return words.moment(value)
    if key.endswith("_seconds"):
        return words.seconds(value)
    if key.startswith("hit_rate") or key.endswith(("_rate", "_share")):
        return words.percent(value)
    return words.count(value) if float(value).is_integer() else words.decimal(value)
