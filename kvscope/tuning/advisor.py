"""From a window of traffic to ranked suggestions; every figure in them comes from an exact replay.

A replay begins with an empty cache, so the first sight of each prefix is a miss before and after alike. The
hit rates of a suggestion are over the whole window of the route, these misses included; what is said of a day
is taken from the newer half of the window, where the cache is warm. A change must gain enough in both.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Prompt, Risk, TransformSpec
from kvscope.prompts.tokenizing import PromptTokenizer
from kvscope.prompts.transforms import layout_name
from kvscope.tuning.evidence import evidence_of
from kvscope.tuning.judge import Judge, Outcome, stand_ins
from kvscope.tuning.search import Change, newer_half, options_of, promising
from kvscope.tuning.structure import RouteStructure, learn
from kvscope.tuning.window import FEWEST_REQUESTS, InForce, Limits, RouteWindow, Window, select

TtftPredictor = Callable[[int, int], float | None]
"""From prompt tokens and cached tokens to seconds; None where the model refuses."""

_DAY_SECONDS = 86_400.0
_ID_CHARS = 12
_RISKS = list(Risk)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Suggestions, the best first; ``none_because`` tells in one line why there are none."""

    suggestions: tuple[Suggestion, ...]
    none_because: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A change of one route and what the exact replay says of it."""

    change: Change
    before: Outcome
    after: Outcome
    route: RouteWindow

    def gain(self, positions: Iterable[int]) -> float:
        """Return by how much the hit rate of the requests at ``positions`` grows."""
        chosen = tuple(positions)
        return self.after.hit_rate(chosen) - self.before.hit_rate(chosen)

    @property
    def least_gain(self) -> float:
        return min(self.gain(self.route.positions), self.gain(newer_half(self.route)))


def advise(  # noqa: PLR0913 - what advice depends on, all of it named
    prompts: Sequence[Prompt],
    *,
    tokenizer: PromptTokenizer,
    block_size: int,
    num_blocks: int | None,
    ttft: TtftPredictor | None,
    now: float,
    min_gain: float = 0.02,
    in_force: InForce | None = None,
    limits: Limits | None = None,
) -> Advice:
    """Return what would raise the hit rate of each route by at least ``min_gain`` (0 to 1).

    ``in_force`` names the transforms that each route's traffic gets now; a suggestion's change holds these
    too, because it replaces them. Without it requests count as they were sent, see ``tuning.window``.
    Raises ``UnreachableError`` where the tokenizer's server does not answer.
    """
    if not prompts:
        return _nothing("no prompts in the window")
    window = select(prompts, limits or Limits(), in_force)
    routes = [route for route in window.routes if len(route.positions) >= FEWEST_REQUESTS]
    if not routes:
        most = max(len(route.positions) for route in window.routes)
        return _nothing(f"too few requests: advice needs {FEWEST_REQUESTS} of one route, the most are {most}")
    structures = {
        route.route: learn([window.prompts[position] for position in route.positions]) for route in routes
    }
    options = {route: options_of(structure) for route, structure in structures.items()}
    if not any(options.values()):
        return _nothing(_why_no_option(structures.values()))
    exact = Judge(window, tokenizer.encode, block_size=block_size, num_blocks=num_blocks)
    if not any(exact.now.prompt_tokens):
        reason = exact.refused[0] if exact.refused else "the cache is smaller than every prompt"
        return _nothing(f"no prompt could be replayed: {reason}")
    rough = Judge(
        window,
        stand_ins(_characters_a_token(window, exact)),
        block_size=block_size,
        num_blocks=num_blocks,
    )
    suggestions = [
        _suggestion(judged, window=window, ttft=ttft, now=now)
        for route in routes
        if options[route.route]
        for judged in _judge(
            exact, route, promising(rough, route, options[route.route], min_gain=min_gain), min_gain
        )
    ]
    suggestions.sort(key=_most_saved_first)
    if not suggestions:
        return _nothing(
            f"the cache holds what repeats: no change would raise a route's hit rate by {min_gain:.1%}"
        )
    return Advice(suggestions=tuple(suggestions), none_because=None)


def _most_saved_first(item: Suggestion) -> tuple[bool, float, int, str]:
    saved = item.tokens_saved_per_day
    return saved is None, -(saved or 0.0), _RISKS.index(item.risk), item.id


def _why_no_option(structures: Iterable[RouteStructure]) -> str:
    if any(structure.lines for structure in structures):
        return "what varies are items of lists (examples, documents), which belong together"
    return (
        "nothing varies before the stable part: no line of a system message changes its value, "
        "and tools, their keys and spaces stand in one order and form"
    )


def _nothing(reason: str) -> Advice:
    return Advice(suggestions=(), none_because=reason)


def _characters_a_token(window: Window, exact: Judge) -> int:
    return max(1, round(window.characters / sum(exact.now.prompt_tokens)))


def _judge(exact: Judge, route: RouteWindow, changes: Sequence[Change], min_gain: float) -> Iterator[_Judged]:
    """Yield the changes that gain enough; a combination only where it gains more than its parts alone."""
    best = 0.0
    for change in sorted(changes, key=lambda change: len(change.kinds)):
        judged = _Judged(
            change=change, before=exact.now, after=exact.outcome(route, change.specs), route=route
        )
        bar = min_gain if len(change.kinds) == 1 else max(min_gain, best + min_gain / 4)
        if judged.least_gain >= bar:
            best = max(best, judged.least_gain)
            yield dataclasses.replace(judged, change=_largest_first(exact, judged))


def _largest_first(exact: Judge, judged: _Judged) -> Change:
    """Return the change with the kind first that alone gains most: it names the suggestion."""
    if len(judged.change.kinds) == 1:
        return judged.change

    def alone(kind: str) -> float:
        part = judged.change.only(kind)
        after = exact.outcome(judged.route, part.specs)
        return dataclasses.replace(judged, change=part, after=after).least_gain

    gains = {kind: alone(kind) for kind in judged.change.kinds}
    ranked = sorted(judged.change.options, key=lambda option: -gains[option.kind])
    return Change(tuple(ranked))


def _suggestion(judged: _Judged, *, window: Window, ttft: TtftPredictor | None, now: float) -> Suggestion:
    route = judged.route
    kind = judged.change.kinds[0]
    transforms = _merged((*route.in_force, *judged.change.specs))
    change = {"transforms": [spec.as_json() for spec in transforms]}
    ttft_change, ttft_requests = _ttft_change(judged, ttft)
    evidence = evidence_of(
        judged.change, route=route, window=window, before=judged.before, after=judged.after
    )
    evidence["hit_rate_newer_half_before"] = judged.before.hit_rate(newer_half(route))
    evidence["hit_rate_newer_half_after"] = judged.after.hit_rate(newer_half(route))
    if ttft is not None:
        evidence["ttft_requests"] = ttft_requests
    if route.in_force:
        evidence["in_force"] = layout_name(route.in_force)
    return Suggestion(
        id=_stable_id(route.route, kind, change),
        kind=kind,
        route=route.route,
        risk=judged.change.risk,
        evidence=evidence,
        hit_rate_before=judged.before.hit_rate(route.positions),
        hit_rate_after=judged.after.hit_rate(route.positions),
        ttft_change_seconds=ttft_change,
        tokens_saved_per_day=_saved_per_day(judged),
        change=change,
        created_at=now,
    )


def _merged(specs: Iterable[TransformSpec]) -> tuple[TransformSpec, ...]:
    """Return ``specs`` without repetition; moves of lines of one role become one."""
    merged: dict[tuple[str, str], TransformSpec] = {}
    for spec in specs:
        role = str(spec.params.get("role", ""))
        known = merged.get((spec.kind, role))
        if known is not None and "line_keys" in spec.params:
            keys = sorted({*known.params["line_keys"], *spec.params["line_keys"]})
            merged[spec.kind, role] = TransformSpec(kind=spec.kind, params={**spec.params, "line_keys": keys})
        else:
            merged[spec.kind, role] = spec
    return tuple(merged[key] for key in sorted(merged))


def _stable_id(route: str, kind: str, change: Mapping[str, Any]) -> str:
    canonical = json.dumps([route, kind, change], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_ID_CHARS]


def _uncached(outcome: Outcome, position: int) -> int:
    return outcome.prompt_tokens[position] - outcome.hit_tokens[position]


def _saved_per_day(judged: _Judged) -> float | None:
    """Return the tokens a day that need no computing any more, at the window's rate and once it is warm.

    None where the requests have no times that would give a rate.
    """
    route = judged.route
    if route.window_seconds is None:
        return None
    newer = newer_half(route)
    saved = sum(_uncached(judged.before, at) - _uncached(judged.after, at) for at in newer)
    requests_per_day = (route.seen - 1) / route.window_seconds * _DAY_SECONDS
    return saved / len(newer) * requests_per_day


def _ttft_change(judged: _Judged, ttft: TtftPredictor | None) -> tuple[float | None, int]:
    """Return the mean of after - before in seconds, and over how many requests the model could tell it.

    It is None where the model refuses more than half of the requests.
    """
    if ttft is None:
        return None, 0
    changes: list[float] = []
    for at in judged.route.positions:
        before = ttft(judged.before.prompt_tokens[at], judged.before.hit_tokens[at])
        after = ttft(judged.after.prompt_tokens[at], judged.after.hit_tokens[at])
        if before is not None and after is not None:
            changes.append(after - before)
    if 2 * len(changes) < len(judged.route.positions):
        return None, len(changes)
    return sum(changes) / len(changes), len(changes)
