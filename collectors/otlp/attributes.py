"""OTLP attribute values to plain Python, without prompt text and without what a store cannot hold."""

import math
from collections.abc import Iterable

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

AttributeValue = str | int | float | bool | list[str | int | float | bool]

LONGEST_TEXT = 256  # characters of a key or a text value
_LONGEST_ID = 4_096  # of a request: a shortened one would join nothing
_MOST_ITEMS = 64  # of an array value

# Any other producer's span may carry prompts and answers as text, under names that nobody can list.
# So text is taken from these names only; numbers and booleans are taken from all.
_TEXT_NAMESPACES = (
    "code.",
    "container.id",
    "deployment.",
    "error.type",
    "host.",
    "k8s.",
    "kvscope.",
    "llm_d.",
    "process.executable.name",
    "process.runtime.",
    "server.",
    "service.",
    "telemetry.",
    "vllm.",
)
_TEXT_KEYS = frozenset(
    {
        "gen_ai.agent.id",
        "gen_ai.conversation.id",
        "gen_ai.operation.name",
        "gen_ai.output.type",
        "gen_ai.provider.name",
        "gen_ai.request.id",
        "gen_ai.request.model",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.id",
        "gen_ai.response.model",
        "gen_ai.system",
    }
)
_ID_KEYS = frozenset({"gen_ai.request.id", "gen_ai.response.id"})


def clean_text(text: str) -> str:
    """Return ``text`` cut to the longest that is kept, without the NUL that PostgreSQL refuses."""
    return text[:LONGEST_TEXT].replace("\x00", "\ufffd")


def attributes_of(pairs: Iterable[KeyValue], most: int) -> tuple[dict[str, AttributeValue], int]:
    """Return the first ``most`` attributes that are kept, and how many were left out."""
    kept: dict[str, AttributeValue] = {}
    dropped = 0
    for pair in pairs:
        value = _value(pair.key, pair.value) if len(pair.key) <= LONGEST_TEXT else None
        if value is None or (len(kept) >= most and pair.key not in kept):
            dropped += 1
        else:
            kept[clean_text(pair.key)] = value
    return kept, dropped


def _value(key: str, value: AnyValue) -> AttributeValue | None:
    if value.HasField("array_value"):
        items = [_scalar(key, item) for item in value.array_value.values[:_MOST_ITEMS]]
        return [item for item in items if item is not None] or None
    return _scalar(key, value)


def _scalar(key: str, value: AnyValue) -> str | int | float | bool | None:
    match value.WhichOneof("value"):
        case "bool_value":
            return bool(value.bool_value)
        case "int_value":
            return int(value.int_value)
        case "double_value":
            # JSON has no NaN and no infinity: they stay visible as text, as OTLP's own JSON writes them
            number = float(value.double_value)
            return number if math.isfinite(number) else str(number)
        case "string_value" if key in _ID_KEYS and len(value.string_value) <= _LONGEST_ID:
            return value.string_value.replace("\x00", "\ufffd")
        case "string_value" if _is_text_kept(key) and len(value.string_value) <= LONGEST_TEXT:
            return clean_text(value.string_value)
        case _:
            return None


def _is_text_kept(key: str) -> bool:
    return key in _TEXT_KEYS or key.startswith(_TEXT_NAMESPACES)
