"""Suggestions as cards: what each would change and bring, and what a new experiment is called."""

from collections.abc import Collection, Mapping, Sequence

import altair as alt
import pandas as pd

from dashboards import theme
from dashboards.views import charts
from kvscope.agent.asking import LastLook
from kvscope.model.advice import Experiment, Suggestion
from kvscope.model.prompt import Risk
from kvscope.reports import words

RISK_COLOURS: Mapping[Risk, charts.Colour] = {Risk.SAFE: "green", Risk.REVIEW: "orange", Risk.QUALITY: "red"}
RISK_MEANINGS = {
    Risk.SAFE: "What the model reads keeps its meaning.",
    Risk.REVIEW: "The order of what the model reads changes.",
    Risk.QUALITY: "What the model reads changes.",
}


def name_for(suggestion: Suggestion, taken: Collection[str]) -> str:
    """Return a name for an experiment of this suggestion that is not taken yet."""
    base = f"{suggestion.route}-{suggestion.kind}".replace("_", "-").replace(" ", "-")
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


def tried_by(suggestion: Suggestion, experiments: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments that put this suggestion to the test."""
    return [experiment for experiment in experiments if experiment.suggestion_id == suggestion.id]


def ttft_interval(suggestion: Suggestion) -> str | None:
    """Return the interval of the change of the time to first token: ``−140 to −122 ms``; None without one."""
    low = suggestion.evidence.get("ttft_change_low_seconds")
    high = suggestion.evidence.get("ttft_change_high_seconds")
    if suggestion.ttft_change_seconds is None or low is None or high is None:
        return None
    return words.interval(low, high, "ttft_seconds")


def nothing(look: LastLook | None, agent: str) -> tuple[str, str]:
    """Return a heading and a sentence on why there is no suggestion at all."""
    if look is None:
        told = f"Only a running agent knows why, and none answers at `{agent}`."
        return "No suggestions", f"{told} `kvscope dashboard --agent URL` names another."
    because = look.none_because or "all that it found were dismissed, or belong to another store"
    when = "" if look.looked_at is None else f" It looked last at {words.moment(look.looked_at)}."
    return "No suggestions", f"The agent says: {because}.{when}"


def left_alone(look: LastLook | None, suggestions: Sequence[Suggestion]) -> dict[str, str]:
    """Return by route why it has no suggestion, as the agent told."""
    suggested = {suggestion.route for suggestion in suggestions}
    found = {} if look is None else look.unchanged
    return {route: reason for route, reason in sorted(found.items()) if route not in suggested}


def hit_rate_bars(suggestion: Suggestion) -> alt.LayerChart:
    """Return two bars: the hit rate now, and the predicted one."""
    frame = pd.DataFrame(
        {
            "when": ["now", "predicted"],
            "rate": [suggestion.hit_rate_before, suggestion.hit_rate_after],
            "label": [words.percent(suggestion.hit_rate_before), words.percent(suggestion.hit_rate_after)],
        }
    )
    base = alt.Chart(frame).encode(
        y=alt.Y("when:N", sort=["now", "predicted"], title=None, axis=alt.Axis(ticks=False, domain=False)),
        x=alt.X("rate:Q", title=None, scale=alt.Scale(domain=[0, 1.25]), axis=None),
    )
    colours = alt.Scale(domain=["now", "predicted"], range=[theme.QUIET, theme.CHART])
    bars = base.mark_bar(cornerRadius=4, height=16).encode(
        color=alt.Color("when:N", scale=colours, legend=None)
    )
    texts = base.mark_text(align="left", dx=6, fontSize=12, color=theme.QUIET).encode(text="label:N")
    return charts.layered(bars, texts).properties(height=74)
