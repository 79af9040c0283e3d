"""What a suggestion rests on: counts, places and kinds of value; never a prompt's text."""

from collections.abc import Sequence
from typing import Any

from kvscope.tuning.judge import Outcome
from kvscope.tuning.search import Change, Option
from kvscope.tuning.window import RouteWindow, Window

_EXAMPLES = 3


def evidence_of(
    change: Change, *, route: RouteWindow, window: Window, before: Outcome, after: Outcome
) -> dict[str, Any]:
    """Return the evidence for ``change``: where the prefix breaks first, what it costs, where to look.

    ``tokens_lost`` are the tokens of the window that were computed and would have hit. ``parts`` has a line
    for each thing that varies.
    """
    parts = [_part(option) for option in sorted(change.options, key=_standing)]
    first = parts[0]
    return {
        "requests": len(route.positions),
        "window_seconds": route.window_seconds,
        "role": first["role"],
        "message_index": first["message_index"],
        "char_start": first["char_start"],
        "char_end": first["char_end"],
        "value_kind": first["value_kind"],
        "tokens_lost": sum(after.hit_tokens[at] - before.hit_tokens[at] for at in route.positions),
        "characters_moved": round(sum(line.characters for option in change.options for line in option.lines)),
        "example_request_ids": _examples(route.positions, window, before, after),
        "hit_rate_window_before": before.hit_rate(),
        "hit_rate_window_after": after.hit_rate(),
        "window_capped": route.capped,
        "parts": parts,
    }


def _standing(option: Option) -> tuple[int, int]:
    """Order options as they stand in the prompt: tools come first in chat templates."""
    place = option.place
    return -1 if place.message_index is None else place.message_index, place.char_start


def _part(option: Option) -> dict[str, Any]:
    place = option.place
    part: dict[str, Any] = {
        "kind": option.kind,
        "role": place.role,
        "message_index": "tools" if place.role == "tools" else place.message_index,
        "char_start": place.char_start,
        "char_end": place.char_end,
        "value_kind": str(place.value_kind),
    }
    if option.lines:
        first = option.lines[0]
        part |= {
            "line_key": first.key_hash,
            "distinct": max(line.distinct for line in option.lines),
            "occurrences": max(line.occurrences for line in option.lines),
        }
    if len(option.lines) > 1:
        part["lines"] = len(option.lines)
    return part


def _examples(positions: Sequence[int], window: Window, before: Outcome, after: Outcome) -> list[str]:
    """Return the requests that lose most."""
    most = sorted(positions, key=lambda at: before.hit_tokens[at] - after.hit_tokens[at])
    return [window.prompts[at].request_id for at in most[:_EXAMPLES]]
