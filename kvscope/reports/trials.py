"""Experiments as reports and pages show them: arms, intervals and guardrails of a look.

This is the one place outside ``kvscope.experiments.looks`` that knows the shape of ``Look.results``.
"""

from collections.abc import Mapping
from typing import Any

from kvscope.model.advice import Arm, Experiment, Look
from kvscope.reports import words
from kvscope.reports.changes import changes_of
from kvscope.reports.content import ArmLine, ExperimentLine, GuardrailLine, IntervalLine, Times
from kvscope.store.database import Store

_UNTOLD = frozenset({"log_ttft"})  # a scale for statistics, not for people


def experiment_line(store: Store, experiment: Experiment) -> ExperimentLine:
    """Return an experiment with the figures of its last look."""
    looks = store.experiments.looks(experiment.id)
    last = looks[-1] if looks else None
    return ExperimentLine(
        id=experiment.id,
        name=experiment.name,
        route=experiment.route,
        state=experiment.state.value,
        verdict=experiment.verdict.value if experiment.verdict else None,
        metric=experiment.metric,
        alpha=experiment.alpha,
        started_at=experiment.started_at,
        ended_at=experiment.ended_at,
        looks=len(looks),
        reasons=tuple(last.reasons) if last else (),
        arms=arm_lines(experiment, last),
        intervals=interval_lines(last),
        guardrails=guardrail_lines(experiment, last),
        predicted=dict(experiment.predicted),
    )


def arm_lines(experiment: Experiment, look: Look | None) -> tuple[ArmLine, ...]:
    """Return the arms, baseline first, with what ``look`` counted; warm-up is left out."""
    seen: Mapping[str, Any] = look.results.get("arms", {}) if look else {}
    ordered = sorted(experiment.arms, key=lambda arm: not arm.baseline)
    return tuple(_arm(arm, seen.get(arm.name, {})) for arm in ordered)


def _arm(arm: Arm, seen: Mapping[str, Any]) -> ArmLine:
    requests = seen.get("requests", 0)
    ttft = seen.get("ttft_seconds") or {}
    known = None not in (ttft.get("mean"), ttft.get("p50"), ttft.get("p95"))
    return ArmLine(
        name=arm.name,
        baseline=arm.baseline,
        share=arm.share,
        changes=changes_of(arm.transforms),
        requests=requests,
        units=seen.get("units", 0),
        hit_rate=seen.get("hit_rate"),
        ttft=Times(source="either", requests=requests, mean=ttft["mean"], p50=ttft["p50"], p95=ttft["p95"])
        if known
        else None,
    )


def interval_lines(look: Look | None) -> tuple[IntervalLine, ...]:
    """Return the differences that ``look`` tells, the deciding metric first."""
    if look is None:
        return ()
    primary: Mapping[str, Any] = look.results.get("difference", {})
    others: Mapping[str, Any] = look.results.get("differences", {})
    lines = [_interval(primary, decides=True)] if primary else []
    lines += [
        _interval(row, decides=False)
        for name, row in others.items()
        if name not in _UNTOLD and name != primary.get("metric")
    ]
    return tuple(lines)


def _interval(row: Mapping[str, Any], *, decides: bool) -> IntervalLine:
    return IntervalLine(
        metric=row["metric"],
        decides=decides,
        lower_is_better=row.get("lower_is_better"),
        estimate=row.get("estimate"),
        low=row.get("low"),
        high=row.get("high"),
        # a share of a rate would be read as points: for rates the difference itself says it
        relative=None if words.is_share(row["metric"]) else row.get("relative"),
        note=row.get("cannot_tell"),
    )


def guardrail_lines(experiment: Experiment, look: Look | None) -> tuple[GuardrailLine, ...]:
    """Return the guardrails as ``look`` found them, or as they are planned before the first look."""
    if look is None:
        return tuple(
            GuardrailLine(
                metric=one.metric,
                margin=one.margin,
                relative=one.relative,
                state="cannot_tell",
                reason="no look has been taken yet",
            )
            for one in experiment.guardrails
        )
    return tuple(
        GuardrailLine(
            metric=row["metric"],
            margin=row["margin"],
            relative=row["relative"],
            state=row["state"],
            reason=row["reason"],
        )
        for row in look.results.get("guardrails", ())
    )
