"""What a rule is: it looks at the window and yields changes, each with its effect by replay.

Rules are those whose change is no search over transforms: of the servers, of the time at which requests are
sent, of what the application does with its history. The registry is ``tuning.rules``.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kvscope.model.prompt import Risk
from kvscope.tuning.effects import Effect, TtftPredictor
from kvscope.tuning.judge import Judge
from kvscope.tuning.window import RouteWindow, Window


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What rules look at: the window, its judge, and the routes with enough requests."""

    judge: Judge
    window: Window
    routes: Sequence[RouteWindow]
    min_gain: float
    ttft: TtftPredictor | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A change, its effect on a route, and what it rests on; ``change`` says what a person has to set.

    ``timed``: the latency model can tell what the change does to the time to the first token.
    """

    kind: str
    effect: Effect
    change: Mapping[str, Any]
    evidence: Mapping[str, Any]
    risk: Risk = Risk.SAFE
    timed: bool = True


Rule = Callable[[Traffic], Iterator[Operation]]


def told(effect: Effect, window: Window | None = None) -> dict[str, Any]:
    """Return the evidence that every operation has; with the ``window`` also the requests that lose most."""
    route = effect.route
    evidence: dict[str, Any] = {
        "requests": len(route.positions),
        "window_seconds": route.window_seconds,
        "tokens_lost": effect.saved,
        "hit_rate_window_before": effect.before.hit_rate(),
        "hit_rate_window_after": effect.after.hit_rate(),
        "window_capped": route.capped,
    }
    if window is not None:
        evidence["example_request_ids"] = examples(effect, window)
    return evidence


def examples(effect: Effect, window: Window) -> list[str]:
    """Return the requests that lose most."""
    before, after = effect.before, effect.after
    most = sorted(effect.route.positions, key=lambda at: before.hit_tokens[at] - after.hit_tokens[at])
    return [window.prompts[at].request_id for at in most[:_EXAMPLES]]


_EXAMPLES = 3
