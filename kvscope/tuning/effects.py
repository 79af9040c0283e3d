"""What a change would bring, told as a suggestion: gains in the route, a day's tokens, first-token times."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Risk
from kvscope.tuning.judge import Outcome
from kvscope.tuning.window import RouteWindow

TtftPredictor = Callable[[int, int], float | None]
"""From prompt tokens and cached tokens to seconds; None where the model refuses."""

_DAY_SECONDS = 86_400.0
_ID_CHARS = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Effect:
    """The window replayed as it is and with a change, seen from one route."""

    before: Outcome
    after: Outcome
    route: RouteWindow
    cost_tokens: int = 0  # that the change itself computes over the window, such as by touches

    def gain(self, positions: Iterable[int]) -> float:
        """Return by how much the hit rate of the requests at ``positions`` grows."""
        chosen = tuple(positions)
        return self.after.hit_rate(chosen) - self.before.hit_rate(chosen)

    @property
    def least_gain(self) -> float:
        """The gain over the whole window, or over its newer half where that is less."""
        return min(self.gain(self.route.positions), self.gain(self.route.newer_half))

    @property
    def saved_per_day(self) -> float | None:
        """Tokens a day that need no computing any more, at the window's rate and once it is warm.

        None where the requests have no times that would give a rate.
        """
        route = self.route
        if route.window_seconds is None:
            return None
        newer = route.newer_half
        saved = sum(self.before.uncached(at) - self.after.uncached(at) for at in newer)
        requests_per_day = (route.seen - 1) / route.window_seconds * _DAY_SECONDS
        cost_per_day = self.cost_tokens / route.window_seconds * _DAY_SECONDS
        return saved / len(newer) * requests_per_day - cost_per_day

    @property
    def saved(self) -> int:
        """Tokens that the route's requests would not have computed, less those that the change computes."""
        return (
            sum(self.before.uncached(at) - self.after.uncached(at) for at in self.route.positions)
            - self.cost_tokens
        )

    def ttft_change(self, ttft: TtftPredictor) -> tuple[float | None, int]:
        """Return the mean of after - before in seconds, and over how many requests the model could tell it.

        It is None where the model refuses more than half of the requests.
        """
        changes: list[float] = []
        for at in self.route.positions:
            before = ttft(self.before.prompt_tokens[at], self.before.hit_tokens[at])
            after = ttft(self.after.prompt_tokens[at], self.after.hit_tokens[at])
            if before is not None and after is not None:
                changes.append(after - before)
        if 2 * len(changes) < len(self.route.positions):
            return None, len(changes)
        return sum(changes) / len(changes), len(changes)


def suggestion_of(
    effect: Effect,
    *,
    kind: str,
    risk: Risk,
    change: Mapping[str, Any],
    evidence: Mapping[str, Any],
    ttft: TtftPredictor | None,
    now: float,
) -> Suggestion:
    """Return the suggestion of a change; the same change of the same route has the same id."""
    route = effect.route
    told = dict(evidence)
    told["hit_rate_newer_half_before"] = effect.before.hit_rate(route.newer_half)
    told["hit_rate_newer_half_after"] = effect.after.hit_rate(route.newer_half)
    ttft_change = None
    if ttft is not None:
        ttft_change, told["ttft_requests"] = effect.ttft_change(ttft)
    return Suggestion(
        id=_stable_id(route.route, kind, change),
        kind=kind,
        route=route.route,
        risk=risk,
        evidence=told,
        hit_rate_before=effect.before.hit_rate(route.positions),
        hit_rate_after=effect.after.hit_rate(route.positions),
        ttft_change_seconds=ttft_change,
        tokens_saved_per_day=effect.saved_per_day,
        change=change,
        created_at=now,
    )


def _stable_id(route: str, kind: str, change: Mapping[str, Any]) -> str:
    canonical = json.dumps([route, kind, change], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_ID_CHARS]
