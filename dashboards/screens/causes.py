"""Causes: why prompt tokens were not in the cache, and where prompts break their prefix."""

import streamlit as st

from dashboards import data, ui
from dashboards.views import causes as view
from dashboards.views import tables
from kvscope.reports.tuning import BREAKING

_TOKENS, _SHARE = "Tokens", "Share of prompt"
_BREAKING, _EVERYWHERE = "Breaks a prefix", "All causes"


def show() -> None:
    """Draw the page."""
    ui.page("Causes", "Why prompt tokens were not in the cache, and which place in the prompt did it.", _body)


def _body() -> None:
    window, now = ui.window(), data.now()
    since_at = window.since_at(now)
    rows = data.hits("route", since_at)
    if not rows:
        ui.no_requests(window)
        return
    frame = view.cause_frame(rows)
    if frame.empty:
        ui.empty(
            "Cached tokens are unknown",
            "Start vLLM with `--enable-prompt-tokens-details`, or install kvscope in its environment.",
            ":material/help:",
        )
        return
    st.subheader("Prompt tokens by route and cause", anchor=False)
    unit = st.segmented_control(
        "Unit",
        [_TOKENS, _SHARE],
        default=_TOKENS,
        required=True,
        key="causes-unit",
        label_visibility="collapsed",
    )
    st.altair_chart(view.cause_chart(frame, share=unit == _SHARE))
    _places(since_at)
    st.subheader("Missed tokens by cause", anchor=False)
    st.dataframe(**tables.options(view.totals_frame(rows)))


def _places(since_at: float | None) -> None:
    st.subheader("Places where prefixes break", anchor=False)
    chosen = st.segmented_control(
        "Causes",
        [_BREAKING, _EVERYWHERE],
        default=_BREAKING,
        required=True,
        key="causes-places",
        label_visibility="collapsed",
    )
    frame = view.place_frame(data.misses(since_at), sorted(BREAKING) if chosen == _BREAKING else None)
    if frame.empty:
        st.caption("No difference between prompts was found that breaks a prefix.")
        return
    st.dataframe(**tables.options(frame))
    st.caption("Positions and kinds of value only: kvscope stores no prompt text.")


if __name__ == "__main__":
    show()
