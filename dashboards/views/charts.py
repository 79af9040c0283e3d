"""What the charts share: axes, formats and the marks of events."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import altair as alt
import pandas as pd

from dashboards import theme

Colour = Literal["red", "orange", "yellow", "blue", "green", "violet", "gray", "primary"]
"""Names of colours that Streamlit's badges know."""

HEIGHT = 250
_LABEL_CHARACTERS = 32
_TIME_FORMATS = {
    "seconds": "%H:%M:%S",
    "minutes": "%H:%M",
    "hours": "%H:%M",
    "date": "%b %d",
    "day": "%b %d",
    "week": "%b %d",
    "month": "%b %Y",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened on a route and should be seen on a chart over time."""

    at: float
    label: str


def moments(seconds: pd.Series) -> pd.Series:
    """Return Unix seconds as times of day; charts show them in the reader's own time zone."""
    return pd.to_datetime(seconds, unit="s", utc=True)


def route_colours(routes: Sequence[str]) -> alt.Scale:
    """Return the scale that gives each route its colour, the first one the accent."""
    return alt.Scale(
        domain=list(routes), range=[theme.SERIES[min(i, len(theme.SERIES) - 1)] for i in range(len(routes))]
    )


def time_axis(column: str = "at") -> alt.X:
    """Return the axis of time, read from ``column``, without words that everybody knows."""
    axis = alt.Axis(grid=False, tickCount=6, labelOverlap=True, format=_TIME_FORMATS)
    return alt.X(f"{column}:T", title=None, axis=axis)


def legend(columns: int = 0) -> alt.Legend:
    """Return a legend above the chart, where it takes no width; 0 columns: all in one row."""
    return alt.Legend(title=None, orient="top", labelLimit=180, symbolType="circle", columns=columns)


def event_marks(events: Sequence[Event], colour: str) -> list[alt.Chart]:
    """Return dashed lines with a label at each event; no layers without events."""
    if not events:
        return []
    frame = pd.DataFrame(
        {
            "at": moments(pd.Series([event.at for event in events])),
            "label": [event.label for event in events],
            "short": [shortened(event.label, _LABEL_CHARACTERS) for event in events],
        }
    )
    base = alt.Chart(frame).encode(x=time_axis(), tooltip=[alt.Tooltip("label:N", title="Event")])
    return [
        base.mark_rule(strokeDash=[4, 4], color=colour, opacity=0.8),
        base.mark_text(align="center", baseline="bottom", fontSize=11, color=colour).encode(
            text="short:N", y=alt.value(-4)
        ),
    ]


def shortened(text: str, characters: int) -> str:
    """Return ``text`` cut to fit, with an ellipsis where it was cut."""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def layered(*layers: alt.Chart) -> alt.LayerChart:
    """Return the layers as one chart, the first one at the bottom."""
    return alt.LayerChart(layer=list(layers))
