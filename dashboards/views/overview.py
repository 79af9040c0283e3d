"""The overview: hit rate and times, by route and over time."""

import dataclasses
from collections.abc import Callable, Sequence

import altair as alt
import pandas as pd

from dashboards import theme
from dashboards.views import charts
from kvscope.model.advice import Experiment, RoutePolicy
from kvscope.model.views import HitRow, SpreadRow, TimelineRow
from kvscope.reports import words
from kvscope.reports.content import SumLine

OTHERS = "other routes"
_SHOWN_ROUTES = len(theme.SERIES) - 1
_BARS = 8
_BAR_PIXELS = 34


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A line over time: what it is called, how it is read from a bucket, and how its axis is written."""

    title: str
    value: Callable[[TimelineRow], float | None]
    weight: Callable[[TimelineRow], int]
    axis: str  # a d3 format
    share: bool = False


HIT_RATE = Measure(
    title="Hit rate",
    value=lambda row: row.cached_tokens / row.prompt_tokens if row.prompt_tokens else None,
    weight=lambda row: row.prompt_tokens,
    axis=".0%",
    share=True,
)
TTFT = Measure(
    title="TTFT (ms)",
    value=lambda row: None if row.ttft_seconds_mean is None else row.ttft_seconds_mean * 1000,
    weight=lambda row: row.requests,
    axis=",.0f",
)
TPOT = Measure(
    title="TPOT (ms)",
    value=lambda row: None if row.tpot_seconds_mean is None else row.tpot_seconds_mean * 1000,
    weight=lambda row: row.requests,
    axis=",.1f",
)


def p95(rows: Sequence[SpreadRow]) -> float | None:
    """Return the 95th percentile of one key's times: the engine's where it told any, else the client's."""
    told = {row.source: row.p95 for row in rows}
    return told.get("engine", told.get("client"))


def shown_routes(rows: Sequence[HitRow]) -> list[str]:
    """Return the routes with a line of their own, most prompt tokens first, and one name for the rest."""
    names = [row.key for row in sorted(rows, key=lambda row: (-row.prompt_tokens, row.key))]
    return names if len(names) <= _SHOWN_ROUTES + 1 else [*names[:_SHOWN_ROUTES], OTHERS]


def timeline_frame(
    rows: Sequence[TimelineRow], measure: Measure, routes: Sequence[str], bucket_seconds: float
) -> pd.DataFrame:
    """Return ``at``, ``middle``, ``route``, ``value``, ``requests``; an unknown bucket is absent.

    ``at`` is when a bucket begins; its point is drawn in its middle, so that a bucket which begins before
    an event and ends after it is not seen before the event alone.
    """
    sums: dict[tuple[float, str], tuple[float, int, int]] = {}
    for row in rows:
        value = measure.value(row)
        if value is None:
            continue
        key = (row.at, row.route if row.route in routes else OTHERS)
        total, weight, requests = sums.get(key, (0.0, 0, 0))
        sums[key] = (
            total + value * measure.weight(row),
            weight + measure.weight(row),
            requests + row.requests,
        )
    points = [
        {"at": at, "route": route, "value": total / weight, "requests": requests}
        for (at, route), (total, weight, requests) in sorted(sums.items())
        if weight
    ]
    frame = pd.DataFrame(points, columns=["at", "route", "value", "requests"])
    return frame.assign(
        at=charts.moments(frame["at"]),
        middle=charts.moments(frame["at"].astype(float) + bucket_seconds / 2),
    )


def timeline_chart(
    frame: pd.DataFrame, measure: Measure, routes: Sequence[str], events: Sequence[charts.Event] = ()
) -> alt.LayerChart:
    """Return lines over time, one a route, with the events marked."""
    scale = alt.Scale(domain=[0, 1]) if measure.share else alt.Scale(zero=True, nice=True)
    lines = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(size=16), strokeWidth=2, interpolate="linear")
        .encode(
            x=charts.time_axis("middle"),
            y=alt.Y("value:Q", title=None, scale=scale, axis=alt.Axis(format=measure.axis, tickCount=5)),
            color=alt.Color("route:N", scale=charts.route_colours(routes), legend=charts.legend()),
            tooltip=[
                alt.Tooltip("route:N", title="Route"),
                alt.Tooltip("at:T", title="From", format="%b %d, %H:%M:%S"),
                alt.Tooltip("value:Q", title=measure.title, format=".1%" if measure.share else ",.1f"),
                alt.Tooltip("requests:Q", title="Requests", format=","),
            ],
        )
    )
    chart = charts.layered(*charts.event_marks(events, theme.QUIET), lines)
    return chart.properties(height=charts.HEIGHT)


def route_frame(rows: Sequence[HitRow]) -> pd.DataFrame:
    """Return a row a route with what the table and the bars show; unknown is None, never 0."""
    return pd.DataFrame(
        [
            {
                "route": row.key,
                "requests": row.requests,
                "prompt_tokens": row.prompt_tokens if row.known_requests else None,
                "cached_tokens": row.cached_tokens if row.known_requests else None,
                "hit_rate": row.hit_rate,
                "label": words.percent(row.hit_rate),
                "ttft_ms": None if row.ttft_seconds_mean is None else row.ttft_seconds_mean * 1000,
            }
            for row in sorted(rows, key=lambda row: (-row.prompt_tokens, row.key))
        ],
        columns=["route", "requests", "prompt_tokens", "cached_tokens", "hit_rate", "label", "ttft_ms"],
    )


def route_bars(frame: pd.DataFrame, routes: Sequence[str]) -> alt.LayerChart:
    """Return a bar a route with its hit rate written at its end."""
    shown = frame.head(_BARS).assign(drawn=frame["hit_rate"].astype(float).fillna(0.0))
    shown["colour"] = [route if route in routes else OTHERS for route in shown["route"]]
    base = alt.Chart(shown).encode(
        y=alt.Y("route:N", sort=list(shown["route"]), title=None, axis=alt.Axis(labelLimit=130, ticks=False)),
        # the scale ends beyond 1 so that the label of a full bar has room
        x=alt.X("drawn:Q", title=None, scale=alt.Scale(domain=[0, 1.3]), axis=None),
        tooltip=[
            alt.Tooltip("route:N", title="Route"),
            alt.Tooltip("label:N", title="Hit rate"),
            alt.Tooltip("requests:Q", title="Requests", format=","),
            alt.Tooltip("prompt_tokens:Q", title="Prompt tokens", format=","),
        ],
    )
    bars = base.mark_bar(cornerRadius=4, height=14).encode(
        color=alt.Color("colour:N", scale=charts.route_colours(routes), legend=None)
    )
    texts = base.mark_text(align="left", dx=6, fontSize=12, color=theme.QUIET).encode(text="label:N")
    return charts.layered(bars, texts).properties(height=_BAR_PIXELS * max(2, len(shown)))


def events(
    experiments: Sequence[Experiment], policies: Sequence[RoutePolicy], since_at: float | None
) -> list[charts.Event]:
    """Return the starts of experiments and the promotions inside the window, oldest first."""
    found = [
        charts.Event(at=e.started_at, label=f"{e.name} started")
        for e in experiments
        if e.started_at is not None
    ]
    found += [charts.Event(at=policy.since_at, label=f"{policy.route} promoted") for policy in policies]
    return sorted((e for e in found if since_at is None or e.at >= since_at), key=lambda event: event.at)


def change(now: float | None, before: float | None) -> float | None:
    """Return the difference of two values, or None where one is unknown."""
    return None if now is None or before is None else now - before


def sums_line(line: SumLine) -> str:
    """Return, without the engine's name, whether its counter and the records agree."""
    counted, recorded = words.count(line.counter_tokens), words.count(line.record_tokens)
    if line.agree:
        return f"the engine counted {counted} cached tokens, and so do the records."
    missing = f" It is not known of {words.requests(line.unknown_requests)}." if line.unknown_requests else ""
    return f"the engine counted {counted} cached tokens, the records hold {recorded}.{missing}"
