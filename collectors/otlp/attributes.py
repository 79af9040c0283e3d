"""OTLP attribute values to plain Python, without prompt text and without what a store cannot hold."""

import functools
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

AttributeValue = str | int | float | bool | list[str | int | float | bool]

LONGEST_TEXT = 256  # characters of a key or a text value
_LONGEST_ID = 4_096  # of a request: a shortened one would join nothing
_NO_TEXT = -1
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
        key, longest = _terms_of(pair.key)
        told = pair.value
        number = told.double_value or told.int_value
        value: AttributeValue | None = number
        if longest is None:
            value = None
        elif not number:  # another kind, or zero; most are numbers, and asking for the kind takes long
            read = _VALUES.get(told.WhichOneof("value"))
            value = read(told, longest) if read is not None else None
        elif not isfinite(number):
            value = _number(told, longest)
        if value is None or (len(kept) >= most and key not in kept):
            dropped += 1
        else:
            kept[key] = value
    return kept, dropped


@functools.lru_cache(maxsize=4_096)
def _terms_of(key: str) -> tuple[str, int | None]:
    """Return ``key`` as it is kept, and the longest text that is kept of it; None of one that is too long."""
    if len(key) > LONGEST_TEXT:
        return key[:LONGEST_TEXT], None
    if key in _ID_KEYS:
        return key, _LONGEST_ID
    is_text_kept = key in _TEXT_KEYS or key.startswith(_TEXT_NAMESPACES)
    return clean_text(key), LONGEST_TEXT if is_text_kept else _NO_TEXT


def _number(value: AnyValue, _longest: int) -> float | str:
    number = value.double_value
    # JSON has no NaN and no infinity: they stay visible as text, as OTLP's own JSON writes them
    return number if isfinite(number) else str(number)


def _text(value: AnyValue, longest: int) -> str | None:
    text = value.string_value
    return text.replace("\x00", "\ufffd") if len(text) <= longest else None


def _items(value: AnyValue, longest: int) -> list[str | int | float | bool] | None:
    told = [
        _SCALARS[kind](item, longest)
        for item in value.array_value.values[:_MOST_ITEMS]
        if (kind := item.WhichOneof("value")) in _SCALARS
    ]
    return [item for item in told if item is not None] or None


_SCALARS: dict[str | None, Callable[[AnyValue, int], Any]] = {
    "double_value": _number,
    "int_value": lambda value, _longest: value.int_value,
    "string_value": _text,
    "bool_value": lambda value, _longest: value.bool_value,
}
_VALUES = {**_SCALARS, "array_value": _items}
