"""The evidence of a suggestion as labelled lines for people."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvscope.reports import words

_PLACE_KEYS = frozenset({"role", "message_index", "tools", "char_start", "char_end"})


def lines(evidence: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (label, text) pairs: where the prefix breaks first, then all else that was given."""
    return tuple(_lines(evidence))


def _lines(evidence: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    where = _where(evidence)
    if where:
        yield "Where", where
    for key, value in evidence.items():
        if key not in _PLACE_KEYS and value is not None:
            yield _label(key), _text(key, value)


def _where(evidence: Mapping[str, Any]) -> str:
    role, index = evidence.get("role"), evidence.get("message_index")
    if role is None and index is None and evidence.get("tools"):
        role = "tools"
    if role is None and index is None:
        return ""
    start, end = evidence.get("char_start"), evidence.get("char_end")
    place = words.place(role, index)
    return place if start is None else f"{place}, {words.characters(start, end)}"


def _label(key: str) -> str:
    for ending in ("_seconds", "_rate", "_at"):
        key = key.removesuffix(ending) or key
    return key.replace("_", " ").capitalize()


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(key, value)
    if isinstance(value, Mapping):
        return _where(value) or "; ".join(f"{words.text(k)}: {_text(str(k), v)}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_text(key, item) for item in value) or "none"
    return words.text(value) if key.endswith(("kind", "cause")) else str(value)


def _number(key: str, value: float) -> str:
    if key.endswith("_at"):
        return words.moment(value)
    if key.endswith("_seconds"):
        return words.seconds(value)
    if key.endswith(("_rate", "_share")):
        return words.percent(value)
    return words.count(value) if float(value).is_integer() else words.decimal(value)
