"""From a window of traffic to ranked suggestions; every figure in them comes from an exact replay.

A replay begins with an empty cache, so the first sight of each prefix is a miss before and after alike. The
hit rates of a suggestion are over the whole window of the route, these misses included; what is said of a day
is taken from the newer half of the window, where the cache is warm. A change must gain enough in both.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvscope.analysis.offline.load import Encoder
from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Prompt, Risk
from kvscope.prompts.transforms import layout_name
from kvscope.tuning.effects import Effect, TtftPredictor, suggestion_of
from kvscope.tuning.evidence import evidence_of
from kvscope.tuning.judge import Judge, stand_ins
from kvscope.tuning.rule import Traffic
from kvscope.tuning.rules import operations
from kvscope.tuning.salts import (
    SALT_A_TENANT,
    WIDEN_SALT,
    WideJudges,
    a_salt_a_tenant,
    counted,
    with_wider_salts,
)
from kvscope.tuning.search import Change, Option, merged, options_of, promising
from kvscope.tuning.structure import RouteStructure, learn
from kvscope.tuning.unchanged import reason
from kvscope.tuning.window import FEWEST_REQUESTS, InForce, Limits, RouteWindow, Window, select

_RISKS = list(Risk)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Suggestions, the best first; ``none_because`` tells in one line why there are none.

    ``unchanged`` tells by route why nothing is suggested for it.
    """

    suggestions: tuple[Suggestion, ...]
    none_because: str | None
    unchanged: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class _Judged:
    """A change of one route's prompts and what the exact replay says of it.

    ``salts_first``: the suggestion widens salts, too, and is named by these.
    """

    change: Change
    effect: Effect
    salts_first: bool | None = None  # None: salts stay as they are


def advise(  # noqa: PLR0913 - what advice depends on, all of it named
    prompts: Sequence[Prompt],
    *,
    tokenizer: Encoder,
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
    exact = Judge(window, tokenizer.encode, block_size=block_size, num_blocks=num_blocks)
    traffic = Traffic(judge=exact, window=window, routes=routes, min_gain=min_gain, ttft=ttft)
    suggestions = [
        suggestion_of(
            found.effect,
            kind=found.kind,
            risk=found.risk,
            change=found.change,
            evidence=found.evidence,
            ttft=ttft if found.timed else None,
            now=now,
        )
        for found in operations(traffic)
    ]
    if not any(exact.now.prompt_tokens) and not suggestions:
        why = exact.refused[0] if exact.refused else "the cache is smaller than every prompt"
        return _nothing(f"no prompt could be replayed: {why}")
    if any(exact.now.prompt_tokens):
        rough = Judge(
            window,
            stand_ins(_characters_a_token(window, exact)),
            block_size=block_size,
            num_blocks=num_blocks,
        )
        wide = _wide(exact, rough, window)
        suggestions += [
            _changed_prompts(judged, window=window, ttft=ttft, now=now)
            for route in routes
            if options[route.route]
            for judged in (
                *_judge(
                    exact, route, promising(rough, route, options[route.route], min_gain=min_gain), min_gain
                ),
                *_salted(exact, wide, route, options[route.route], min_gain),
            )
        ]
    suggestions.sort(key=_most_saved_first)
    unchanged = _unchanged(exact, window, structures, suggestions, min_gain)
    if not suggestions and not any(options.values()):
        return _nothing(_why_no_option(structures.values()), unchanged)
    if not suggestions:
        return _nothing(
            f"the cache holds what repeats: no change would raise a route's hit rate by {min_gain:.1%}",
            unchanged,
        )
    return Advice(suggestions=tuple(suggestions), none_because=None, unchanged=unchanged)


def _unchanged(
    exact: Judge,
    window: Window,
    structures: Mapping[str, RouteStructure],
    suggestions: Iterable[Suggestion],
    min_gain: float,
) -> dict[str, str]:
    """Return why nothing is suggested for each route that nothing is suggested for."""
    suggested = {item.route for item in suggestions}
    reasons: dict[str, str] = {}
    for route in window.routes:
        structure = structures.get(route.route)
        if structure is None:
            reasons[route.route] = f"too few requests: {len(route.positions)} of {FEWEST_REQUESTS}"
        elif route.route not in suggested:
            tried = bool(options_of(structure))
            reasons[route.route] = reason(exact, route, structure, tried=tried, min_gain=min_gain)
    return reasons


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


def _nothing(because: str, unchanged: Mapping[str, str] | None = None) -> Advice:
    return Advice(suggestions=(), none_because=because, unchanged=unchanged or {})


def _characters_a_token(window: Window, exact: Judge) -> int:
    return max(1, round(window.characters / sum(exact.now.prompt_tokens)))


def _judge(exact: Judge, route: RouteWindow, changes: Sequence[Change], min_gain: float) -> Iterator[_Judged]:
    """Yield the changes that gain enough; a combination only where it gains more than its parts alone."""
    best = 0.0
    for change in sorted(changes, key=lambda change: len(change.kinds)):
        judged = _Judged(change, Effect(exact.now, exact.outcome(route, change.specs), route))
        bar = min_gain if len(change.kinds) == 1 else max(min_gain, best + min_gain / 4)
        if judged.effect.least_gain >= bar:
            best = max(best, judged.effect.least_gain)
            yield dataclasses.replace(judged, change=_largest_first(exact, judged))


def _wide(exact: Judge, rough: Judge, window: Window) -> WideJudges | None:
    serving = a_salt_a_tenant(exact.serving, window)
    return None if serving is None else WideJudges(exact.under(serving), rough.under(serving))


def _salted(
    exact: Judge,
    wide: WideJudges | None,
    route: RouteWindow,
    options: Sequence[Option],
    min_gain: float,
) -> Iterator[_Judged]:
    """Yield the changes that gain only, or clearly more, with one salt a tenant."""
    if wide is None:
        return
    for found in with_wider_salts(exact, wide, route, options, min_gain=min_gain):
        judged = _Judged(found.change, found.effect, found.salts_first)
        yield dataclasses.replace(judged, change=_largest_first(wide.exact, judged))


def _largest_first(exact: Judge, judged: _Judged) -> Change:
    """Return the change with the kind first that alone gains most: it names the suggestion."""
    if len(judged.change.kinds) == 1:
        return judged.change

    def alone(kind: str) -> float:
        part = judged.change.only(kind)
        after = exact.outcome(judged.effect.route, part.specs)
        return dataclasses.replace(judged.effect, after=after).least_gain

    gains = {kind: alone(kind) for kind in judged.change.kinds}
    ranked = sorted(judged.change.options, key=lambda option: -gains[option.kind])
    return Change(tuple(ranked))


def _changed_prompts(
    judged: _Judged, *, window: Window, ttft: TtftPredictor | None, now: float
) -> Suggestion:
    change, effect = judged.change, judged.effect
    transforms = merged((*effect.route.in_force, *change.specs))
    evidence = evidence_of(
        change, route=effect.route, window=window, before=effect.before, after=effect.after
    )
    if effect.route.in_force:
        evidence["in_force"] = layout_name(effect.route.in_force)
    told: dict[str, Any] = {"transforms": [spec.as_json() for spec in transforms]}
    if judged.salts_first is not None:
        told = {**SALT_A_TENANT, **told}
        evidence |= counted(effect.route, window)
        evidence["parts"] = [*evidence["parts"], {"kind": WIDEN_SALT}]
    return suggestion_of(
        effect,
        kind=WIDEN_SALT if judged.salts_first else change.kinds[0],
        risk=change.risk,
        change=told,
        evidence=evidence,
        ttft=ttft,
        now=now,
    )
