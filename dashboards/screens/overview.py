"""The overview: is the cache used well, and is it fast."""

from collections.abc import Sequence

import streamlit as st

from dashboards import data, ui
from dashboards.views import overview as view
from dashboards.views import tables
from dashboards.views.charts import Event
from dashboards.views.windows import bucket_seconds
from kvscope.model.views import HitRow, TimelineRow
from kvscope.reports import words
from kvscope.reports.content import Traffic
from kvscope.reports.measure import traffic

_NEWEST = 5_000  # requests whose times are read one by one
_STEPS = (86_400.0, 3_600.0, 60.0, 1.0)
_ENOUGH_BUCKETS = 12


def show() -> None:
    """Draw the page."""
    ui.page(
        "Overview", "How much of every prompt comes from the KV cache, and how fast answers begin.", _live
    )


@st.fragment(run_every=10)
def _live() -> None:
    ui.guarded(_body)


def _body() -> None:
    window, now = ui.window(), data.now()
    since_at = window.since_at(now)
    rows = data.hits("route", since_at)
    if not rows:
        ui.no_requests(window)
        return
    total = data.hits("total", since_at)[0]
    if any(engine.built_in for engine in data.engines(_NEWEST, since_at)):
        st.info("The built-in engine answers: it models vLLM's cache and timing, it is not vLLM.")
    before = window.before(now)
    _figures(total, data.hits("total", *before) if before else [], since_at)
    routes = view.shown_routes(rows)
    _charts(rows, routes, since_at)
    st.dataframe(**tables.options(view.route_frame(rows).drop(columns="label")))
    _sums()


def _figures(total: HitRow, before: Sequence[HitRow], since_at: float | None) -> None:
    """Draw the key figures, with their change from the window before where that had traffic."""
    figures = traffic("total", data.requests(_NEWEST, since_at), total)
    old = before[0] if before else None
    rate = view.change(total.hit_rate, old.hit_rate if old else None)
    ttft = view.change(total.ttft_seconds_mean, old.ttft_seconds_mean if old else None)
    note = "from before"
    first, second, third, fourth, fifth = st.columns(5)
    first.metric(
        "Hit rate",
        words.percent(total.hit_rate),
        None if rate is None else words.points(rate),
        border=True,
        height="stretch",
        help="Cached ÷ prompt tokens, over requests whose tokens are known.",
        delta_description=None if rate is None else note,
    )
    second.metric(
        "TTFT mean",
        words.seconds(figures.ttft.mean if figures.ttft else None),
        None if ttft is None else words.change_seconds(ttft),
        delta_color="inverse",
        border=True,
        help=_ttft_help(figures),
        delta_description=None if ttft is None else note,
    )
    third.metric(
        "TTFT p95",
        words.seconds(view.p95(data.ttft("total", since_at))),
        border=True,
        help="Of all requests of the window, within one percent.",
    )
    fourth.metric(
        "TPOT mean",
        words.seconds(figures.tpot_seconds_mean),
        border=True,
        help="Time per output token after the first.",
    )
    fifth.metric("Requests", words.count(total.requests), border=True, help=_requests_help(total))


def _ttft_help(figures: Traffic) -> str:
    if figures.ttft is None:
        return "No source told the time to first token."
    who = "the engine" if figures.ttft.source == "engine" else "the gateway, at the client's side"
    newest = words.count(figures.ttft.requests)
    return f"Time to first token, measured by {who}; from the newest {newest} requests."


def _requests_help(total: HitRow) -> str:
    prompt, cached = words.count(total.prompt_tokens), words.count(total.cached_tokens)
    tokens = f"{prompt} prompt tokens, {cached} of them cached."
    unknown = total.requests - total.known_requests
    return tokens + (f" The tokens of {words.requests(unknown)} are unknown." if unknown else "")


def _charts(rows: Sequence[HitRow], routes: Sequence[str], since_at: float | None) -> None:
    fine = _timeline(since_at)
    events = view.events(data.experiments(), data.policies(), since_at)
    left, right = st.columns([2, 1], gap="medium")
    with left:
        _line("Hit rate over time", fine, view.HIT_RATE, routes, events)
    with right:
        st.subheader("Hit rate by route", anchor=False)
        st.altair_chart(view.route_bars(view.route_frame(rows), routes))
    left, right = st.columns(2, gap="medium")
    with left:
        _line("TTFT over time, ms", fine, view.TTFT, routes, events)
    with right:
        _line("TPOT over time, ms", fine, view.TPOT, routes, events)


def _timeline(since_at: float | None) -> tuple[list[TimelineRow], float]:
    """Read the traffic in buckets that suit its length, which coarser buckets tell first.

    Returns the buckets and the seconds that each lasts.
    """
    for step in _STEPS:
        rows = data.timeline(step, since_at)
        length = rows[-1].at - rows[0].at if rows else 0.0
        if length >= step * _ENOUGH_BUCKETS or step == _STEPS[-1]:
            seconds = bucket_seconds(length, sum(row.requests for row in rows))
            return data.timeline(seconds, since_at), seconds
    return [], _STEPS[-1]


def _line(
    heading: str,
    timeline: tuple[list[TimelineRow], float],
    measure: view.Measure,
    routes: Sequence[str],
    events: Sequence[Event],
) -> None:
    st.subheader(heading, anchor=False)
    rows, seconds = timeline
    frame = view.timeline_frame(rows, measure, routes, seconds)
    if frame.empty:
        st.caption("No source told it for any request of this window.")
        return
    st.altair_chart(view.timeline_chart(frame, measure, routes, events))


def _sums() -> None:
    for line in data.sums():
        icon = {True: ":material/check_circle:", False: ":material/error:", None: ":material/help:"}[
            line.agree
        ]
        st.caption(f"{icon} `{line.engine}`: {view.sums_line(line)}")


if __name__ == "__main__":
    show()
