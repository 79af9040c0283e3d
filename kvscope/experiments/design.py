"""How an experiment is planned: from a suggestion, and what makes a plan valid."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

from kvscope.errors import UsageError
from kvscope.experiments.metrics import metric_named
from kvscope.model.advice import Arm, Experiment, Guardrail, Suggestion, Unit
from kvscope.model.prompt import Risk, TransformSpec
from kvscope.prompts.transforms import check_spec, risk_of

BASELINE = "baseline"
TREATMENT = "treatment"

DEFAULT_GUARDRAILS = (
    # one more failure in a hundred requests
    Guardrail(metric="error", margin=0.01),
    # a tenth slower on average: a layout that is meant to save prefill must not cost any
    Guardrail(metric="ttft_seconds", margin=0.10, relative=True),
    # answers a quarter longer: the model reads something else than before
    Guardrail(metric="output_tokens", margin=0.25, relative=True),
)
_RISK_ORDER = (Risk.SAFE, Risk.REVIEW, Risk.QUALITY)


def from_suggestion(  # noqa: PLR0913 - one argument for each choice that a person can make
    suggestion: Suggestion,
    *,
    name: str,
    now: float,
    approved: bool = False,
    share: float = 0.5,
    unit: Unit = Unit.SESSION,
    metric: str = "uncached_tokens",
    guardrails: Sequence[Guardrail] = DEFAULT_GUARDRAILS,
    alpha: float = 0.05,
    warmup_requests: int = 2,
    min_units: int = 20,
    max_seconds: float = 86_400.0,
    slice_seconds: float = 30.0,
    isolated: bool = False,
) -> Experiment:
    """Return the draft that tries ``suggestion`` on ``share`` of its route's traffic.

    ``approved`` is a person's yes, without which nothing but a ``safe`` change may run. The baseline
    holds no transforms: it is what is in force when the experiment starts. Raises ``UsageError``.
    """
    if not suggestion.transforms:
        raise UsageError(
            f"suggestion {suggestion.id} ({suggestion.kind}) has no transform to try:"
            " a person must act on it, `kvscope suggest` says how"
        )
    if suggestion.salts_first:
        raise UsageError(
            f"suggestion {suggestion.id} holds only with one cache_salt a {suggestion.change['cache_salt']},"
            " which the gateway cannot set: have the application send that first, then try what"
            " `kvscope suggest` says of the new traffic"
        )
    _require_approval((suggestion.risk,), approved=approved)
    planned = from_transforms(
        suggestion.transforms,
        route=suggestion.route,
        name=name,
        now=now,
        approved=approved,
        share=share,
        unit=unit,
        metric=metric,
        guardrails=guardrails,
        alpha=alpha,
        warmup_requests=warmup_requests,
        min_units=min_units,
        max_seconds=max_seconds,
        slice_seconds=slice_seconds,
        isolated=isolated,
    )
    return dataclasses.replace(
        planned,
        id=_new_id(name, suggestion.id, now),
        suggestion_id=suggestion.id,
        predicted=_predicted(suggestion),
    )


def from_transforms(  # noqa: PLR0913 - one argument for each choice that a person can make
    transforms: Sequence[TransformSpec],
    *,
    route: str,
    name: str,
    now: float,
    approved: bool = False,
    share: float = 0.5,
    unit: Unit = Unit.SESSION,
    metric: str = "uncached_tokens",
    guardrails: Sequence[Guardrail] = DEFAULT_GUARDRAILS,
    alpha: float = 0.05,
    warmup_requests: int = 2,
    min_units: int = 20,
    max_seconds: float = 86_400.0,
    slice_seconds: float = 30.0,
    isolated: bool = False,
) -> Experiment:
    """Return the draft that tries ``transforms``, such as a layout's variant, all that changes on ``route``.

    ``isolated`` keeps the arms' blocks apart by salts: what each reaches alone, not what they do together.
    Raises ``UsageError``.
    """
    experiment = Experiment(
        id=_new_id(name, route, now),
        name=name,
        route=route,
        arms=(
            Arm(name=BASELINE, baseline=True, share=1.0 - share, isolated=isolated),
            Arm(
                name=TREATMENT,
                baseline=False,
                share=share,
                transforms=tuple(transforms),
                isolated=isolated,
            ),
        ),
        metric=metric,
        unit=unit,
        guardrails=tuple(guardrails),
        alpha=alpha,
        warmup_requests=warmup_requests,
        min_units=min_units,
        max_seconds=max_seconds,
        slice_seconds=slice_seconds,
        created_at=now,
    )
    validate(experiment, approved=approved)
    return experiment


def validate(experiment: Experiment, *, approved: bool) -> None:
    """Raise ``UsageError`` with the first thing that is wrong with a plan.

    Without ``approved``, a person's yes, a transform that is not ``safe`` is wrong.
    """
    if not experiment.name.strip():
        raise UsageError("an experiment needs a name")
    if not experiment.route:
        raise UsageError("an experiment needs a route")
    _check_arms(experiment)
    metric_named(experiment.metric)
    for guardrail in experiment.guardrails:
        metric_named(guardrail.metric)
        if guardrail.margin < 0:
            raise UsageError(f"the margin of guardrail {guardrail.metric} must not be negative")
    for ok, told in (
        (0 < experiment.alpha < 1, f"alpha must lie between 0 and 1, not {experiment.alpha:g}"),
        (experiment.min_units >= 2, "min_units must be 2 or more: one unit has no spread"),  # noqa: PLR2004
        (experiment.warmup_requests >= 0, "warmup_requests must not be negative"),
        (
            len({arm.isolated for arm in experiment.arms}) == 1,
            "either all arms are isolated or none: a cache of its own is no part of a change",
        ),
        (experiment.max_seconds > 0, "max_seconds must be positive"),
        (experiment.slice_seconds > 0, "slice_seconds must be positive"),
    ):
        if not ok:
            raise UsageError(told)
    risks = (risk_of(spec) for arm in experiment.arms for spec in arm.transforms)
    _require_approval(risks, approved=approved)


def with_share(experiment: Experiment, share: float) -> tuple[Arm, ...]:
    """Return the arms with the treatment's share changed; raises ``UsageError`` where it cannot be."""
    if experiment.unit is Unit.TIME_SLICE:
        raise UsageError("time slices hold each arm half of the time: their share cannot be changed")
    if not 0 < share < 1:
        raise UsageError(f"the treatment's share must lie between 0 and 1, not {share:g}")
    return tuple(
        dataclasses.replace(arm, share=1.0 - share if arm.baseline else share) for arm in experiment.arms
    )


def with_in_force(experiment: Experiment, in_force: Sequence[TransformSpec]) -> tuple[Arm, ...]:
    """Return the arms as they run on a route where ``in_force`` applies already.

    Baseline means "what is in force", so it takes these transforms. A suggestion is an addition to them,
    so the treatment of one takes them too, before its own; the arms of a plan made by hand stay.
    """
    arms = []
    for arm in experiment.arms:
        transforms: Iterable[TransformSpec] = arm.transforms
        if arm.baseline:
            transforms = in_force
        elif experiment.suggestion_id is not None:
            transforms = [*in_force, *(spec for spec in arm.transforms if spec not in in_force)]
        arms.append(dataclasses.replace(arm, transforms=tuple(transforms)))
    return tuple(arms)


def _check_arms(experiment: Experiment) -> None:
    arms = experiment.arms
    baselines = [arm for arm in arms if arm.baseline]
    if len(baselines) != 1:
        raise UsageError(f"exactly one arm must be the baseline, not {len(baselines)}")
    if len(arms) != 2:  # noqa: PLR2004 - the model names one treatment
        raise UsageError(f"an experiment has a baseline and one treatment, not {len(arms)} arms")
    if not all(arm.name.strip() for arm in arms) or len({arm.name for arm in arms}) != len(arms):
        raise UsageError("the arms need names that differ")
    if baselines[0].transforms:
        raise UsageError("the baseline is what is in force on the route: it takes no transforms of its own")
    for arm in arms:
        if not 0 < arm.share < 1:
            raise UsageError(f"the share of arm {arm.name} must lie between 0 and 1, not {arm.share:g}")
        for spec in arm.transforms:
            check_spec(spec)
    total = sum(arm.share for arm in arms)
    if abs(total - 1) > 1e-9:  # noqa: PLR2004 - rounding of two floats
        raise UsageError(f"the shares of the arms must add up to 1, not {total:g}")
    if experiment.unit is Unit.TIME_SLICE and any(abs(arm.share - 0.5) > 1e-9 for arm in arms):  # noqa: PLR2004
        raise UsageError("time slices hold each arm half of the time: the share must be 0.5")


def _require_approval(risks: Iterable[Risk], *, approved: bool) -> None:
    worst = max(risks, key=_RISK_ORDER.index, default=Risk.SAFE)
    if worst is not Risk.SAFE and not approved:
        raise UsageError(
            f"this change has risk `{worst.value}` and needs a person's yes:"
            " read what it does, then approve it (command line: --approve)"
        )


def _predicted(suggestion: Suggestion) -> dict[str, float]:
    predicted = {
        "hit_rate_before": suggestion.hit_rate_before,
        "hit_rate_after": suggestion.hit_rate_after,
    }
    if suggestion.ttft_change_seconds is not None:
        predicted["ttft_change_seconds"] = suggestion.ttft_change_seconds
    return predicted


def _new_id(name: str, suggestion_id: str, now: float) -> str:
    seed = "\n".join((name, suggestion_id, repr(now)))
    return f"exp-{hashlib.blake2b(seed.encode(), digest_size=6).hexdigest()}"
