"""Experiments: where each stands, what its looks say over time, and what a person may ask for."""

import dataclasses
from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from dashboards import theme
from dashboards.views import charts
from dashboards.views.charts import Colour
from kvscope.model.advice import (
    Experiment,
    ExperimentState,
    Intent,
    IntentAction,
    Look,
    RoutePolicy,
    Transition,
    Verdict,
)
from kvscope.reports import words
from kvscope.reports.content import ArmLine, GuardrailLine, IntervalLine
from kvscope.reports.trials import interval_lines

STATE_COLOURS: Mapping[ExperimentState, Colour] = {
    ExperimentState.DRAFT: "gray",
    ExperimentState.RUNNING: "primary",
    ExperimentState.DECIDED: "blue",
    ExperimentState.STOPPED: "gray",
}
VERDICT_COLOURS: Mapping[Verdict, Colour] = {
    Verdict.KEEP: "green",
    Verdict.DROP: "red",
    Verdict.UNDECIDED: "gray",
}
_GUARDRAIL_STATES = {
    "ok": (":green[:material/check_circle:]", "holds"),
    "breached": (":red[:material/error:]", "is breached"),
}
_MS = 1000.0
_PATIENCE_SECONDS = 15.0
_STOP_LABELS = {ExperimentState.DRAFT: "Discard", ExperimentState.DECIDED: "Close without promoting"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What may be asked for now; ``override`` says that promotion goes against or before a verdict."""

    start: bool
    stop: bool
    stop_label: str
    promote: bool
    override: bool
    promoted: bool


def actions(experiment: Experiment, policies: Sequence[RoutePolicy]) -> Actions:
    """Return what a person may ask of the controller, which has the last word."""
    promoted = any(policy.experiment == experiment.id and policy.transforms for policy in policies)
    ended = experiment.state in (ExperimentState.DECIDED, ExperimentState.STOPPED)
    kept = experiment.state is ExperimentState.DECIDED and experiment.verdict is Verdict.KEEP
    return Actions(
        start=experiment.state is ExperimentState.DRAFT,
        stop=promoted or experiment.state is not ExperimentState.STOPPED,
        stop_label="Undo the promotion" if promoted else _STOP_LABELS.get(experiment.state, "Stop"),
        promote=ended and not promoted,
        override=ended and not promoted and not kept,
        promoted=promoted,
    )


def asked(intent: Intent, now: float) -> tuple[str, str]:
    """Return what became of a wish: a kind (success, error, info or warning) and a sentence."""
    what = {IntentAction.RAMP: "Change of share"}.get(intent.action, intent.action.value.capitalize())
    if intent.outcome is None:
        if now - intent.at < _PATIENCE_SECONDS:
            return "info", f"{what} was asked for: the agent acts on it within seconds."
        waited = f"{what} was asked for {words.span(now - intent.at)} ago and no agent has acted on it:"
        return "warning", f"{waited} is `kvscope agent` running on this store?"
    kind = "success" if intent.outcome.startswith("done") else "error"
    said = intent.outcome.partition(":")[2].strip() or intent.outcome
    return kind, f"{what}: {said}"


def standing(experiment: Experiment, look: Look | None, now: float) -> str:
    """Return one sentence on where the experiment stands."""
    seen = f"; last look {words.span(max(0.0, now - look.at))} ago" if look else "; no look yet"
    match experiment.state:
        case ExperimentState.DRAFT:
            return "A draft: no traffic is changed until it is started."
        case ExperimentState.RUNNING:
            begun = experiment.started_at
            return f"Running for {words.span(now - begun) if begun else words.UNKNOWN}{seen}."
        case ExperimentState.DECIDED | ExperimentState.STOPPED:
            ran = None
            if experiment.started_at is not None and experiment.ended_at is not None:
                ran = experiment.ended_at - experiment.started_at
            lasted = "" if ran is None else f" after {words.span(ran)}"
            return f"{experiment.state.value.capitalize()} {words.moment(experiment.ended_at)}{lasted}."


def arm_frame(arms: Sequence[ArmLine]) -> pd.DataFrame:
    """Return a row an arm."""
    return pd.DataFrame(
        [
            {
                "arm": arm.name,
                "share": arm.share,
                "changes": " ".join(arm.changes) or ("what is in force" if arm.baseline else "as sent"),
                "requests": arm.requests,
                "units": arm.units,
                "hit_rate": arm.hit_rate,
                "ttft_ms": arm.ttft.mean * _MS if arm.ttft else None,
                "ttft_p95_ms": arm.ttft.p95 * _MS if arm.ttft else None,
            }
            for arm in arms
        ],
        columns=["arm", "share", "changes", "requests", "units", "hit_rate", "ttft_ms", "ttft_p95_ms"],
    )


def look_frame(looks: Sequence[Look]) -> pd.DataFrame:
    """Return the deciding metric's difference at each look that tells one, in the unit of the chart.

    Columns: ``at``, ``estimate``, ``low``, ``high``, ``verdict``.
    """
    rows = []
    for look in looks:
        line = next((line for line in interval_lines(look) if line.decides), None)
        if line is None or line.estimate is None or line.low is None or line.high is None:
            continue
        scale, _ = unit(line.metric)
        rows.append(
            {
                "at": look.at,
                "estimate": line.estimate * scale,
                "low": line.low * scale,
                "high": line.high * scale,
                "verdict": look.verdict.value,
            }
        )
    frame = pd.DataFrame(rows, columns=["at", "estimate", "low", "high", "verdict"])
    return frame.assign(at=charts.moments(frame["at"].astype(float)))


def unit(metric: str) -> tuple[float, str]:
    """Return the factor and the name of the unit in which a metric's change is drawn."""
    if metric.endswith("_seconds"):
        return _MS, "ms"
    if words.is_share(metric):
        return 100.0, "points"
    return 1.0, "tokens" if metric.endswith("_tokens") else ""


def interval_chart(frame: pd.DataFrame, metric: str) -> alt.LayerChart:
    """Return the interval over time as a band around the estimate, and the line of no change."""
    _, name = unit(metric)
    axis = alt.Axis(format=",.3~f", tickCount=5, title=None)
    base = alt.Chart(frame).encode(
        x=charts.time_axis(),
        tooltip=[
            alt.Tooltip("at:T", title="Look", format="%H:%M:%S"),
            alt.Tooltip("estimate:Q", title=f"Difference, {name}".rstrip(", "), format=",.1f"),
            alt.Tooltip("low:Q", title="From", format=",.1f"),
            alt.Tooltip("high:Q", title="To", format=",.1f"),
            alt.Tooltip("verdict:N", title="Verdict"),
        ],
    )
    # the first looks are so uncertain that they would squeeze all later ones flat
    reach = alt.Scale(domain=_domain(frame), clamp=True, nice=True)
    band = base.mark_area(opacity=0.18, color=theme.CHART).encode(
        y=alt.Y("low:Q", axis=axis, scale=reach), y2="high:Q"
    )
    line = base.mark_line(color=theme.CHART, point=alt.OverlayMarkDef(size=18, color=theme.CHART)).encode(
        y=alt.Y("estimate:Q", axis=axis, scale=reach)
    )
    zero = (
        alt.Chart(pd.DataFrame({"zero": [0.0]}))
        .mark_rule(color=theme.QUIET, strokeDash=[4, 4])
        .encode(y=alt.Y("zero:Q", axis=axis, scale=reach))
    )
    return charts.layered(zero, band, line).properties(height=charts.HEIGHT)


def _domain(frame: pd.DataFrame) -> list[float]:
    """Return the range of the axis: the later half of the looks, and zero."""
    later = frame.iloc[len(frame) // 2 :]
    low, high = min(0.0, float(later["low"].min())), max(0.0, float(later["high"].max()))
    margin = (high - low) * 0.08 or 1.0
    return [low - margin, high + margin]


def difference_frame(lines: Sequence[IntervalLine]) -> pd.DataFrame:
    """Return a row a metric: its change with its interval, and whether that tells better or worse."""
    return pd.DataFrame(
        [
            {
                "metric": words.metric(line.metric) + (" (decides)" if line.decides else ""),
                "difference": words.quantity(line.estimate, line.metric, change=True),
                "interval": line.note or words.interval(line.low, line.high, line.metric),
                "relative": words.change_percent(line.relative) if line.relative is not None else "",
                "reading": reading(line),
            }
            for line in lines
        ],
        columns=["metric", "difference", "interval", "relative", "reading"],
    )


def reading(line: IntervalLine) -> str:
    """Return what an interval says: better, worse, or not told from no change."""
    if line.low is None or line.high is None or line.lower_is_better is None:
        return "cannot tell"
    if line.low <= 0 <= line.high:
        return "not told from no change"
    return "better" if (line.high < 0) == line.lower_is_better else "worse"


def guardrail_words(line: GuardrailLine) -> tuple[str, str]:
    """Return an icon and one sentence on where a guardrail stands."""
    icon, state = _GUARDRAIL_STATES.get(line.state, (":gray[:material/help:]", "cannot be told yet"))
    margin = words.margin(line.margin, line.metric, relative=line.relative)
    return icon, f"{words.metric(line.metric).capitalize()} may worsen by {margin}: {state}"


def history_lines(experiment: Experiment, transitions: Sequence[Transition]) -> list[str]:
    """Return what happened, a line each, newest first, down to its creation."""
    lines = [
        f"{words.moment(row.at)}, {row.actor}: {row.state.value}, {row.reason}"
        for row in reversed(transitions)
    ]
    if not any(row.state is ExperimentState.DRAFT for row in transitions):
        lines.append(f"{words.moment(experiment.created_at)}: created")
    return lines


def experiment_frame(experiments: Sequence[Experiment]) -> pd.DataFrame:
    """Return a row an experiment, in the given order."""
    frame = pd.DataFrame(
        [
            {
                "name": experiment.name,
                "route": experiment.route,
                "state": experiment.state.value,
                "verdict": experiment.verdict.value if experiment.verdict else None,
                "started": experiment.started_at,
                "ended": experiment.ended_at,
            }
            for experiment in experiments
        ],
        columns=["name", "route", "state", "verdict", "started", "ended"],
    )
    return frame.assign(
        started=charts.moments(frame["started"].astype(float)),
        ended=charts.moments(frame["ended"].astype(float)),
    )
