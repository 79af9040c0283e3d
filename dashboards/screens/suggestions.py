"""Suggestions: what to change, what it should bring, and the way to try it on live traffic."""

from collections.abc import Sequence

import streamlit as st

from dashboards import data, ui
from dashboards.views import advice as view
from kvscope.errors import KvscopeError
from kvscope.model.advice import Experiment, RoutePolicy, Suggestion, Unit
from kvscope.model.prompt import Risk
from kvscope.reports import evidence, kinds, words
from kvscope.reports.changes import in_force, steps_of

_UNITS = {
    Unit.SESSION: "By session: each session stays in its arm",
    Unit.TENANT: "By tenant: each tenant stays in its arm",
    Unit.TIME_SLICE: "By time: arms take turns",
}

_REPLAYED = (
    "Both are worked out, not measured: the agent replays its window of requests with the layout in force"
    " (now) and with this change (predicted)."
)


def show() -> None:
    """Draw the page."""
    ui.page(
        "Suggestions",
        "What would let more of each prompt come from the cache, predicted by replay. Best first.",
        _body,
    )


def _body() -> None:
    suggestions = data.suggestions()
    if not suggestions:
        ui.empty(
            "No suggestions",
            "Either nothing is worth changing, or the agent has not seen enough traffic yet."
            " `kvscope suggest` says which.",
            ":material/lightbulb:",
        )
        return
    experiments, policies = data.experiments(), data.policies()
    for suggestion in suggestions:
        _card(suggestion, experiments, policies)


def _card(suggestion: Suggestion, experiments: Sequence[Experiment], policies: Sequence[RoutePolicy]) -> None:
    with st.container(border=True, key=f"card-{suggestion.id}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.subheader(kinds.title(suggestion.kind), anchor=False, width="content")
            st.badge(f"route {ui.plain(suggestion.route)}", color="gray")
            st.badge(
                suggestion.risk.value,
                color=view.RISK_COLOURS[suggestion.risk],
                help=view.RISK_MEANINGS[suggestion.risk],
            )
            if in_force(suggestion, policies):
                st.badge("already in force", icon=":material/check:", color="green")
        left, middle, right = st.columns([4, 3, 3], gap="medium")
        with left:
            st.caption("Hit rate by replay of the window", help=_REPLAYED)
            st.altair_chart(view.hit_rate_bars(suggestion))
        middle.metric("TTFT change", words.change_seconds(suggestion.ttft_change_seconds))
        right.metric("Tokens saved a day", words.rough(suggestion.tokens_saved_per_day))
        for line in steps_of(suggestion):
            st.markdown(ui.plain(line))
        st.caption(
            " · ".join(f"{label}: {ui.plain(text)}" for label, text in evidence.lines(suggestion.evidence))
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            if suggestion.transforms:
                _create(suggestion, experiments)
            if st.button("Dismiss", key=f"dismiss-{suggestion.id}", type="tertiary"):
                data.dismiss(suggestion.id)
                st.rerun()
            for experiment in view.tried_by(suggestion, experiments):
                st.caption(
                    f"Tried by **{ui.plain(experiment.name)}** ({experiment.state.value})", width="content"
                )


def _create(suggestion: Suggestion, experiments: Sequence[Experiment]) -> None:
    with (
        st.popover("Create experiment", icon=":material/science:", key=f"create-{suggestion.id}"),
        st.form(f"form-{suggestion.id}", border=False),
    ):
        left, right = st.columns([3, 2], gap="medium")
        name = left.text_input("Name", view.name_for(suggestion, {e.name for e in experiments}))
        share = right.slider("Share that gets the change", 5, 95, 50, 5, format="%d %%")
        unit = st.radio("How traffic is split", list(_UNITS), format_func=lambda unit: _UNITS[unit])
        approved = suggestion.risk is Risk.SAFE or st.checkbox(
            f"I have read what it does and approve it. {view.RISK_MEANINGS[suggestion.risk]}",
            key=f"approve-{suggestion.id}",
        )
        if not st.form_submit_button("Create draft", type="primary"):
            return
        try:
            planned = data.create_experiment(
                suggestion, name=name, share=share / 100, unit=unit, approved=approved
            )
        except KvscopeError as error:
            st.error(str(error))
            return
    st.session_state[ui.EXPERIMENT] = planned.name
    st.switch_page("screens/experiments.py")


if __name__ == "__main__":
    show()
