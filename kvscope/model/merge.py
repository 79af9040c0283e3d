"""Joins the parts of a request into its record, whatever their order.

Each field has an order of trust among sources. A value from a more trusted source replaces one from a
less trusted source; among equals the greater one wins, so that every order of arrival, delay and
repetition ends in the same record.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from kvscope.model.request import MissCause, RequestPart, RequestRecord, Source

_DEFAULT_TRUST = (Source.GATEWAY, Source.SPAN, Source.PLUGIN, Source.ANALYSIS)
_ENGINE_FIRST = (Source.SPAN, Source.PLUGIN, Source.GATEWAY, Source.ANALYSIS)
_TRUST: dict[str, tuple[Source, ...]] = {
    "ttft_seconds": _ENGINE_FIRST,
    "queue_seconds": _ENGINE_FIRST,
    "prefill_seconds": _ENGINE_FIRST,
    "decode_seconds": _ENGINE_FIRST,
    "tpot_seconds": _ENGINE_FIRST,
    "e2e_seconds": _ENGINE_FIRST,
    # the engine counts what it really did; a client's usage is the same number, one hop later
    "prompt_tokens": _ENGINE_FIRST,
    "output_tokens": _ENGINE_FIRST,
    "cached_tokens": (Source.PLUGIN, Source.SPAN, Source.GATEWAY, Source.ANALYSIS),
}


def _rank(field: str, source: str) -> int:
    return _TRUST.get(field, _DEFAULT_TRUST).index(Source(source))


def _order(value: Any) -> tuple[Any, ...]:
    """Return what orders values of any kind in one way.

    Of two sets of miss causes the greater one explains more, which is to say leaves fewer tokens unknown.
    """
    if isinstance(value, Mapping):
        items = sorted((str(name), str(item)) for name, item in value.items())
        return "mapping", -float(value.get(MissCause.UNKNOWN, 0)), items
    if isinstance(value, (int, float)):
        return "number", value
    return "text" if isinstance(value, str) else type(value).__name__, str(value)


def _says_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def merge(record: RequestRecord | None, part: RequestPart) -> RequestRecord:
    """Return ``record`` with what ``part`` adds; None, NaN and infinite values in a part say nothing.

    The same object comes back when the part adds nothing.
    """
    current = record or RequestRecord(request_id=part.request_id)
    if current.request_id != part.request_id:
        raise ValueError(f"part of {part.request_id!r} merged into {current.request_id!r}")
    changes: dict[str, Any] = {}
    sources = dict(current.sources)
    for field, value in part.values.items():
        if _says_nothing(value):
            continue
        known = sources.get(field)
        if known is not None:
            new_rank, old_rank = _rank(field, part.source), _rank(field, known)
            if new_rank > old_rank:
                continue
            if new_rank == old_rank and _order(value) <= _order(getattr(current, field)):
                continue
        changes[field] = value
        sources[field] = part.source.value
    return dataclasses.replace(current, **changes, sources=sources) if changes else current
