"""What the controller sees of an experiment at one time: a pure function from records to a look.

``Look.results`` is JSON with these keys (an end that is infinite, and what is unknown, is null)::

    requests        requests that the look is about, warm-up and all
    arms            {name: {baseline, share, requests, warmup_requests, units, hit_rate, prompt_tokens,
                    cached_tokens, ttft_seconds: {mean, p50, p95}, means: {metric: mean}}}
    difference      of the primary metric, treatment - baseline: {metric, lower_is_better, level,
                    estimate, low, high, relative} or {metric, cannot_tell: reason}
    differences     the same for every metric of which anything is known; only ``difference`` decides
    guardrails      [{metric, margin, relative, state: ok | breached | cannot_tell, reason,
                    excess, low}]: excess is how far the treatment is beyond the margin, low its lower bound
    sample_ratio    {units: {name: n}, ok: true | false | null, p_value, reason}
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.experiments.metrics import METRICS, Metric, metric_named, ttft_seconds, uncached_tokens
from kvscope.experiments.units import Figures, Sorted, Units, sort_requests
from kvscope.model.advice import Experiment, Guardrail, Look, Unit, Verdict
from kvscope.model.request import RequestRecord
from kvscope.stats.quantiles import quantile
from kvscope.stats.sequential import (
    CannotTell,
    Interval,
    Plan,
    Side,
    difference_interval,
    paired_interval,
)
from kvscope.stats.srm import MISMATCH_P, check_ratio

GUARDRAIL_UNITS = 10
"""Units in each arm before a guardrail can be breached: below, the intervals do not hold."""

_TIGHTEST_AT_UNITS = 10  # times the least number of units in an arm


def make_look(
    experiment: Experiment, records: Sequence[RequestRecord], *, now: float, since_at: float | None = None
) -> Look:
    """Return the look at ``records``: sample ratio first, then guardrails, then the verdict.

    ``since_at`` is when the shares were last set; requests before it are left out, because a mix of
    shares over time compares different hours. A breach makes the verdict ``drop``, a wrong sample ratio
    makes it ``undecided`` whatever the figures say.
    """
    begin = since_at if since_at is not None else experiment.started_at or 0.0
    found = sort_requests(experiment, records, since_at=begin, now=now)
    ratio = _ratio(experiment, found)
    figures = Figures(found.counted)
    guardrails = [_guardrail(experiment, figures, guardrail) for guardrail in experiment.guardrails]
    differences = {metric.name: _difference(experiment, figures, metric) for metric in METRICS.values()}
    difference = differences[metric_named(experiment.metric).name]
    verdict, reasons = _verdict(experiment, figures, ratio, guardrails, difference)
    return Look(
        experiment=experiment.id,
        at=now,
        verdict=verdict,
        reasons=(*reasons, *_remarks(experiment, found)),
        results={
            "requests": found.requests,
            "arms": {
                arm.name: {
                    "baseline": arm.baseline,
                    "share": arm.share,
                    "warmup_requests": found.warmups[arm.name],
                    **_arm_figures(found.counted[arm.name]),
                    "means": {
                        metric.name: figures.moments(arm.name, metric).ratio for metric in METRICS.values()
                    },
                }
                for arm in experiment.arms
            },
            "difference": difference,
            "differences": {name: row for name, row in differences.items() if "cannot_tell" not in row},
            "guardrails": guardrails,
            "sample_ratio": ratio,
        },
    )


def breaches(look: Look) -> tuple[str, ...]:
    """Return why guardrails are breached, in words; empty where none is."""
    return tuple(row["reason"] for row in look.results["guardrails"] if row["state"] == "breached")


def _ratio(experiment: Experiment, found: Sorted) -> dict[str, Any]:
    if experiment.unit is Unit.TIME_SLICE:
        reason = "time slices are assigned by the clock: there is no ratio to check"
        return {"units": dict(found.assigned), "ok": None, "p_value": None, "reason": reason}
    shares = [arm.share for arm in experiment.arms]
    counted = {arm.name: len(found.counted[arm.name]) for arm in experiment.arms}
    worst: dict[str, Any] = {"units": dict(found.assigned), "ok": None, "p_value": None, "reason": None}
    for units, words in ((found.assigned, "assigned"), (counted, "counted")):
        check = check_ratio([units[arm.name] for arm in experiment.arms], shares)
        if isinstance(check, CannotTell):
            return worst | {"reason": check.reason}
        if worst["p_value"] is None or check.p_value < worst["p_value"]:
            told = ", ".join(f"{name} {n}" for name, n in units.items())
            reason = f"units {words}: {told}; p = {check.p_value:.2g} under the planned shares"
            worst |= {"units": dict(units), "p_value": check.p_value, "reason": reason}
    return worst | {"ok": worst["p_value"] >= MISMATCH_P}


def _guardrail(experiment: Experiment, figures: Figures, guardrail: Guardrail) -> dict[str, Any]:
    """Judge one guardrail: breached only when even the better end of the interval is beyond the margin."""
    metric = metric_named(guardrail.metric)
    row = {
        "metric": metric.name,
        "margin": guardrail.margin,
        "relative": guardrail.relative,
        "excess": None,
        "low": None,
    }
    plan = Plan(
        # each guardrail gets its part of alpha: together they stop a harmless change at most that often
        alpha=experiment.alpha / len(experiment.guardrails),
        side=Side.LOWER if metric.lower_is_better else Side.UPPER,
        tightest_at=_tightest_at(experiment),
    )
    worse = 1.0 if metric.lower_is_better else -1.0
    factor = 1.0 + worse * guardrail.margin if guardrail.relative else 1.0
    gap = _gap(experiment, figures, metric, plan, factor)
    if isinstance(gap, CannotTell):
        return row | {"state": "cannot_tell", "reason": f"{metric.name}: {gap.reason}"}
    margin = 0.0 if guardrail.relative else guardrail.margin
    excess = worse * gap.estimate - margin
    low = (gap.low if metric.lower_is_better else -gap.high) - margin
    row |= {"excess": excess, "low": low}
    units = _units_in_each(experiment, figures, metric)
    if units < GUARDRAIL_UNITS:
        reason = f"{metric.name}: {units} units in an arm are too few (at least {GUARDRAIL_UNITS})"
        return row | {"state": "cannot_tell", "reason": reason}
    allowed = f"{guardrail.margin:.0%}" if guardrail.relative else f"{guardrail.margin:g} {metric.unit}"
    if low > 0:
        reason = f"guardrail {metric.name}: worse than the baseline by more than the {allowed} allowed"
        return row | {"state": "breached", "reason": reason}
    return row | {"state": "ok", "reason": f"{metric.name}: not shown to be worse by more than {allowed}"}


def _verdict(
    experiment: Experiment,
    figures: Figures,
    ratio: Mapping[str, Any],
    guardrails: Sequence[Mapping[str, Any]],
    difference: Mapping[str, Any],
) -> tuple[Verdict, list[str]]:
    reasons = []
    if ratio["ok"] is False:
        reasons.append(
            f"the arms did not get their shares: {ratio['reason']}; no comparison is to be trusted"
        )
    breached = [row["reason"] for row in guardrails if row["state"] == "breached"]
    reasons += breached
    metric = metric_named(experiment.metric)
    if "cannot_tell" in difference:
        reasons.append(f"{metric.name}: {difference['cannot_tell']}")
    else:
        reasons.append(_words(metric, difference))
    if breached:
        return Verdict.DROP, reasons
    if ratio["ok"] is False or "cannot_tell" in difference:
        return Verdict.UNDECIDED, reasons
    units = _units_in_each(experiment, figures, metric)
    if units < experiment.min_units:
        reasons.append(f"{units} units in an arm are too few for a verdict (at least {experiment.min_units})")
        return Verdict.UNDECIDED, reasons
    return _by_interval(metric, difference), reasons


def _by_interval(metric: Metric, difference: Mapping[str, Any]) -> Verdict:
    low, high = difference["low"], difference["high"]
    if low <= 0 <= high:
        return Verdict.UNDECIDED
    return Verdict.KEEP if (high < 0) == metric.lower_is_better else Verdict.DROP


def _words(metric: Metric, difference: Mapping[str, Any]) -> str:
    low, high = difference["low"], difference["high"]
    told = (
        f"{metric.words}: treatment - baseline = {difference['estimate']:.4g} {metric.unit}"
        f" ({difference['level']:.0%} interval {low:.4g} to {high:.4g})"
    )
    if low <= 0 <= high:
        return f"{told}; not told from no change"
    return f"{told}; {'better' if (high < 0) == metric.lower_is_better else 'worse'}"


def _remarks(experiment: Experiment, found: Sorted) -> list[str]:
    remarks = []
    if found.sessionless and experiment.unit is not Unit.TIME_SLICE:
        alone = f"{found.sessionless} of {found.requests} requests told no {experiment.unit.value}"
        remarks.append(f"{alone}: each was assigned on its own")
    if found.crossed:
        remarks.append(f"{found.crossed} {experiment.unit.value}s were served by both arms and are left out")
    if found.earlier:
        remarks.append(f"{found.earlier} requests from before the shares were last set are left out")
    return remarks


def _difference(experiment: Experiment, figures: Figures, metric: Metric) -> dict[str, Any]:
    plan = Plan(alpha=experiment.alpha, tightest_at=_tightest_at(experiment))
    gap = _gap(experiment, figures, metric, plan, 1.0)
    if isinstance(gap, CannotTell):
        return {"metric": metric.name, "cannot_tell": gap.reason}
    base = figures.moments(experiment.baseline.name, metric).ratio
    return {
        "metric": metric.name,
        "lower_is_better": metric.lower_is_better,
        "level": 1.0 - experiment.alpha,
        "estimate": gap.estimate,
        "low": gap.low,
        "high": gap.high,
        "relative": math.expm1(gap.estimate) if metric.log else gap.estimate / base if base else None,
    }


def _gap(
    experiment: Experiment, figures: Figures, metric: Metric, plan: Plan, factor: float
) -> Interval | CannotTell:
    treatment, baseline = experiment.treatment.name, experiment.baseline.name
    if experiment.unit is Unit.TIME_SLICE:
        return paired_interval(figures.paired(treatment, baseline, metric, factor), plan)
    return difference_interval(
        figures.moments(treatment, metric),
        figures.moments(baseline, metric),
        plan,
        factor=factor,
        share=metric.share,
    )


def _units_in_each(experiment: Experiment, figures: Figures, metric: Metric) -> int:
    """Return the units of the smaller arm, or the whole pairs of slices, of which the metric is known."""
    treatment, baseline = experiment.treatment.name, experiment.baseline.name
    if experiment.unit is Unit.TIME_SLICE:
        return figures.paired(treatment, baseline, metric).n
    return min(figures.moments(treatment, metric).n, figures.moments(baseline, metric).n)


def _tightest_at(experiment: Experiment) -> float:
    return float(_TIGHTEST_AT_UNITS * experiment.min_units)


def _arm_figures(units: Units) -> dict[str, Any]:
    records = [record for unit in units.values() for record in unit]
    known = [record for record in records if uncached_tokens(record) is not None]
    prompt = sum(record.prompt_tokens or 0 for record in known)
    cached = sum(record.cached_tokens or 0 for record in known)
    times = [seconds for record in records if (seconds := ttft_seconds(record)) is not None]
    return {
        "requests": len(records),
        "units": len(units),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "hit_rate": cached / prompt if prompt else None,
        "ttft_seconds": {
            "mean": math.fsum(times) / len(times) if times else None,
            "p50": quantile(times, 0.5),
            "p95": quantile(times, 0.95),
        },
    }
