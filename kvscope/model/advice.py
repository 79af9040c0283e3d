"""Suggestions, experiments, arms and what becomes of them."""

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from kvscope.model.prompt import Risk, TransformSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A proposed change with its expected effect and evidence.

    ``id`` is stable: the same change to the same route has the same id. ``change`` holds
    ``transforms`` (a list of specs), or what a person must set, or both where neither gains much alone.
    """

    id: str
    kind: str
    route: str
    risk: Risk
    evidence: Mapping[str, Any]
    hit_rate_before: float
    hit_rate_after: float
    ttft_change_seconds: float | None
    tokens_saved_per_day: float | None  # None where the requests have no times
    change: Mapping[str, Any]
    created_at: float

    @property
    def transforms(self) -> tuple[TransformSpec, ...]:
        """The transforms that the gateway would apply."""
        return tuple(TransformSpec.from_json(spec) for spec in self.change.get("transforms", ()))

    @property
    def salts_first(self) -> bool:
        """Whether the transforms bring the gain only once a person has widened the salts."""
        return bool(self.transforms) and "cache_salt" in self.change


class ExperimentState(StrEnum):
    """Where an experiment stands; ``docs/architecture.md`` draws the transitions."""

    DRAFT = "draft"
    RUNNING = "running"
    DECIDED = "decided"
    STOPPED = "stopped"


class Verdict(StrEnum):
    """What the looks say about the treatment arm."""

    KEEP = "keep"
    DROP = "drop"
    UNDECIDED = "undecided"


class Unit(StrEnum):
    """What is assigned to an arm as a whole."""

    SESSION = "session"
    TENANT = "tenant"
    TIME_SLICE = "time_slice"  # switchback


class Routing(StrEnum):
    """How the gateway chooses among several servers."""

    SESSION = "session"  # always the same server for a session
    LEAST_LOAD = "least_load"  # the one that answers fewest requests
    LATENCY = "latency"  # the one with the least latest first-byte time, weighted by its load
    PREFIX = "prefix"  # the one that has most of the prompt cached


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way in an experiment; exactly one arm is the baseline. ``share`` of traffic is 0 to 1.

    ``routing`` is None where the arm leaves the choice of the server as it is set. The blocks of an
    ``isolated`` arm are kept apart by a salt, so that no arm profits from what another one cached.
    """

    name: str
    baseline: bool
    share: float
    transforms: tuple[TransformSpec, ...] = ()
    routing: Routing | None = None
    isolated: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """A metric that the treatment may not worsen by more than ``margin``.

    ``relative`` margins are a share of the baseline's mean; others are in the metric's own unit.
    """

    metric: str
    margin: float
    relative: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A planned comparison of prompt layouts on one route's live traffic."""

    id: str
    name: str
    route: str
    arms: tuple[Arm, ...]
    metric: str = "uncached_tokens"
    unit: Unit = Unit.SESSION
    guardrails: tuple[Guardrail, ...] = ()
    alpha: float = 0.05
    warmup_requests: int = 2  # per arm, marked and left out of the verdict
    min_units: int = 20  # units in each arm before a verdict
    max_seconds: float = 86_400.0
    slice_seconds: float = 30.0  # only for Unit.TIME_SLICE
    state: ExperimentState = ExperimentState.DRAFT
    verdict: Verdict | None = None
    suggestion_id: str | None = None
    predicted: Mapping[str, float] = dataclasses.field(default_factory=dict)
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def baseline(self) -> Arm:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.baseline)

    @property
    def treatment(self) -> Arm:
        """The arm that is on trial."""
        return next(arm for arm in self.arms if not arm.baseline)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One act on an experiment: who, when, why, and the state it leaves.

    A ramp and a promotion are acts that leave the state as it was.
    """

    experiment: str
    at: float
    state: ExperimentState
    actor: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the controller saw of an experiment at one time; ``results`` is JSON-able."""

    experiment: str
    at: float
    verdict: Verdict
    reasons: tuple[str, ...]
    results: Mapping[str, Any]


class IntentAction(StrEnum):
    """What a person asks the controller to do."""

    START = "start"
    STOP = "stop"
    PROMOTE = "promote"
    RAMP = "ramp"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A wish written by the CLI or the dashboard; only the agent's controller acts on it.

    ``outcome`` stays None until the controller has acted or refused, then says what came of it.
    """

    id: int | None
    experiment: str
    action: IntentAction
    actor: str
    at: float
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    outcome: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoutePolicy:
    """The transforms in force for all of a route's traffic: what promotion writes."""

    route: str
    transforms: tuple[TransformSpec, ...]
    experiment: str | None
    actor: str
    since_at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AddedR2:
    """How much of the variance a group of features tells that the others do not, with a 90 % interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """A fitted latency model with its measured error, as stored and shown."""

    name: str
    target: str  # the request field that it predicts, e.g. `prefill_seconds`
    features: tuple[str, ...]
    coefficients: Mapping[str, float]  # seconds per unit of the feature, and `intercept`
    r2: float  # out of sample
    mae_seconds: float  # out of sample
    coverage_90: float | None  # share of held-out values inside the 90 % interval
    error_quantiles: tuple[float, float]  # 5 % and 95 % of held-out errors ÷ sqrt(predicted seconds)
    rows: int
    ranges: Mapping[str, tuple[float, float]]  # feature -> seen minimum and maximum
    fitted_at: float
    quantile: float | None = None  # which quantile it predicts; None: the typical value
    below_rate: float | None = None  # share of held-out values at or below a predicted quantile
    pinball_seconds: float | None = None  # out of sample, of a quantile
    pinball_by_length_seconds: float | None = None  # the same by the prompt's length alone
    added_r2: Mapping[str, AddedR2] = dataclasses.field(default_factory=dict)  # by group of features
    typical: Mapping[str, float] = dataclasses.field(default_factory=dict)  # feature -> seen median
    from_at: float | None = None  # the window of requests
    to_at: float | None = None
