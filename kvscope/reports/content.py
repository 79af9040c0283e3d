"""What a tuning report holds, as frozen dataclasses whose content is JSON-able; no words, no layout."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How a time is spread over requests; ``source`` says who measured.

    It is ``engine``, ``client`` (the gateway, at the client's side) or, in arms of an experiment,
    ``either``: each request's engine where it told the time, else the gateway.
    """

    source: str
    requests: int
    mean: float
    p50: float
    p95: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Hits and times of one set of requests; tokens are sums over ``known_requests``."""

    key: str
    requests: int
    known_requests: int
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None
    ttft: Times | None
    tpot_seconds_mean: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CauseLine:
    """Prompt tokens that were not hits for one cause; ``share`` is of all missed tokens."""

    cause: str
    tokens: int
    share: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlaceLine:
    """A place where prefixes break: the tokens that missed from there on."""

    route: str
    cause: str
    role: str | None
    message_index: int | None
    value_kind: str | None
    requests: int
    tokens: int
    example_request_id: str
    char_start: int | None
    char_end: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """A latency model and its error on data that it was not fitted to."""

    name: str
    target: str
    features: tuple[str, ...]
    coefficients: Mapping[str, float]
    r2: float
    mae_seconds: float
    coverage_90: float | None
    rows: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SuggestionLine:
    """A suggestion: what would change, what it should bring, and what may go wrong."""

    id: str
    kind: str
    route: str
    risk: str
    hit_rate_before: float
    hit_rate_after: float
    ttft_change_seconds: float | None
    tokens_saved_per_day: float | None
    gpu_seconds_saved_per_day: float | None
    changes: tuple[str, ...]
    harms: tuple[str, ...]
    by_hand: bool  # no transform does it: a person must act
    in_force: bool
    evidence: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArmLine:
    """One arm of an experiment and what its requests measured, warm-up left out."""

    name: str
    baseline: bool
    share: float
    changes: tuple[str, ...]
    requests: int
    units: int
    hit_rate: float | None
    ttft: Times | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IntervalLine:
    """Treatment minus baseline of one metric, with its interval; ``decides`` marks the primary metric.

    Where it cannot be told, the numbers are None and ``note`` says why. ``relative`` is the estimate as a
    share of the baseline.
    """

    metric: str
    decides: bool
    lower_is_better: bool | None
    estimate: float | None
    low: float | None
    high: float | None
    relative: float | None
    note: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailLine:
    """A guardrail at the last look; ``state`` is ``ok``, ``breached`` or ``cannot_tell``."""

    metric: str
    margin: float
    relative: bool
    state: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentLine:
    """An experiment, its verdict, and the intervals of its last look."""

    id: str
    name: str
    route: str
    state: str
    verdict: str | None
    metric: str
    alpha: float
    started_at: float | None
    ended_at: float | None
    looks: int
    reasons: tuple[str, ...]
    arms: tuple[ArmLine, ...]
    intervals: tuple[IntervalLine, ...]
    guardrails: tuple[GuardrailLine, ...]
    predicted: Mapping[str, float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromotionLine:
    """A policy in force, and its route's traffic before and after."""

    route: str
    changes: tuple[str, ...]
    experiment: str | None
    actor: str
    since_at: float
    before: Traffic | None
    after: Traffic | None
    predicted_hit_rate: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SumLine:
    """Cached tokens of the records against the engine's own counter over the same time.

    ``agree`` is None where the two differ and some requests' cached tokens are unknown: it cannot be told.
    """

    engine: str
    first_at: float
    last_at: float
    counter_tokens: int
    record_tokens: int
    unknown_requests: int
    agree: bool | None

    @property
    def difference_tokens(self) -> int:
        """How many cached tokens the engine counted beyond those of the records; see ``disagreement``."""
        return self.counter_tokens - self.record_tokens


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A server and the models it answered for; ``built_in`` marks kvscope's own stand-in engine."""

    url: str
    models: tuple[str, ...]
    built_in: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that the tuning report tells.

    ``since_at`` is what was asked for (None: all); ``first_at`` and ``last_at`` are the arrivals of the
    first and last request inside. ``sampled_requests`` is None unless times come from only the newest
    requests of the window.
    """

    generated_at: float
    since_at: float | None
    first_at: float | None
    last_at: float | None
    sampled_requests: int | None
    engines: tuple[Engine, ...]
    totals: Traffic
    routes: tuple[Traffic, ...]
    missed_tokens: int
    causes: tuple[CauseLine, ...]
    places: tuple[PlaceLine, ...]
    models: tuple[ModelLine, ...]
    suggestions: tuple[SuggestionLine, ...]
    experiments: tuple[ExperimentLine, ...]
    promotions: tuple[PromotionLine, ...]
    sums: tuple[SumLine, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the content as plain dictionaries, lists, numbers and text."""
        return dataclasses.asdict(self)
