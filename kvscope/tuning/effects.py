"""What a change would bring, told as a suggestion: gains in the route, a day's tokens, first-token times."""

import dataclasses
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Risk
from kvscope.tuning.judge import Outcome
from kvscope.tuning.window import RouteWindow

TtftPredictor = Callable[[int, int], float | None]
"""From prompt tokens and cached tokens to seconds; None where the model refuses."""

_DAY_SECONDS = 86_400.0
_HOUR_SECONDS = 3_600.0
_Z_90 = 1.645  # of the normal distribution: 90 % of it lie within
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
    def requests_per_day(self) -> float | None:
        """The route's rate over the window, None without times."""
        route = self.route
        if route.window_seconds is None:
            return None
        return (route.seen - 1) / route.window_seconds * _DAY_SECONDS

    @property
    def saved_per_day(self) -> float | None:
        """Tokens a day that need no computing any more, at the window's rate and once it is warm.

        None where the requests have no times that would give a rate.
        """
        route = self.route
        per_day = self.requests_per_day
        if per_day is None or route.window_seconds is None:
            return None
        newer = route.newer_half
        saved = sum(self.before.uncached(at) - self.after.uncached(at) for at in newer)
        cost_per_day = self.cost_tokens / route.window_seconds * _DAY_SECONDS
        return saved / len(newer) * per_day - cost_per_day

    @property
    def saved(self) -> int:
        """Tokens that the route's requests would not have computed, less those that the change computes."""
        return (
            sum(self.before.uncached(at) - self.after.uncached(at) for at in self.route.positions)
            - self.cost_tokens
        )

    def ttft_changes(self, ttft: TtftPredictor) -> list[float]:
        """Return after - before in seconds of the route's requests that the model can tell, in order."""
        changes: list[float] = []
        for at in self.route.positions:
            before = ttft(self.before.prompt_tokens[at], self.before.hit_tokens[at])
            after = ttft(self.after.prompt_tokens[at], self.after.hit_tokens[at])
            if before is not None and after is not None:
                changes.append(after - before)
        return changes


def _ttft_told(effect: Effect, ttft: TtftPredictor) -> tuple[float | None, dict[str, Any]]:
    """Return the mean change of the time to the first token, and its evidence.

    The mean is None where the model refuses more than half of the requests. Its 90 % interval is that of a
    mean over such requests; the model's own error, which ``kvscope fit`` shows, comes on top.
    """
    changes = effect.ttft_changes(ttft)
    told: dict[str, Any] = {"ttft_requests": len(changes)}
    if not changes or 2 * len(changes) < len(effect.route.positions):
        return None, told
    mean = statistics.fmean(changes)
    half = _Z_90 * statistics.stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else 0.0
    told |= {"ttft_change_low_seconds": mean - half, "ttft_change_high_seconds": mean + half}
    per_day = effect.requests_per_day
    if per_day is not None:
        newer = changes[len(changes) // 2 :]  # once the cache is warm
        told["gpu_seconds_saved_per_day"] = -statistics.fmean(newer) * per_day
    return mean, told


def cost_saved_per_day(
    suggestion: Suggestion,
    *,
    price_per_gpu_hour: float,
    gpus: int = 1,
    seconds_per_token: float | None = None,
) -> float | None:
    """Return what a suggestion saves a day, in the price's currency; None where nothing tells the time.

    ``gpus`` is how many work on one prompt at a time (tensor and pipeline parallel). ``seconds_per_token`` is
    the prefill time of an uncached token, for suggestions without a latency model.
    """
    seconds = suggestion.evidence.get("gpu_seconds_saved_per_day")
    if seconds is None and seconds_per_token is not None and suggestion.tokens_saved_per_day is not None:
        seconds = seconds_per_token * suggestion.tokens_saved_per_day
    return None if seconds is None else seconds * gpus * price_per_gpu_hour / _HOUR_SECONDS


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
        ttft_change, more = _ttft_told(effect, ttft)
        told |= more
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
