"""Suggestions: what to change, what it should bring, and the way to try it on live traffic."""

from collections.abc import Mapping, Sequence

import streamlit as st

from dashboards import data, ui
from dashboards.views import advice as view
from kvscope.errors import KvscopeError
from kvscope.model.advice import Experiment, RoutePolicy, Suggestion, Unit
from kvscope.model.prompt import Risk
from kvscope.reports import evidence, kinds, words
from kvscope.reports.changes import harms_of, in_force, steps_of

_UNITS = {
    Unit.SESSION: "By session: each session stays in its arm",
    Unit.TENANT: "By tenant: each tenant stays in its arm",
    Unit.TIME_SLICE: "By time: arms take turns",
}

_REPLAYED = (
    "Both are worked out, not measured: the agent replays its window of requests with the layout in force"
    " (now) and with this change (predicted)."
)

_INTERVAL = "90 % interval of the mean over such requests; the latency model's own error comes on top."
_GPU = "By the latency model, at the window's rate of requests."


def show() -> None:
    """Draw the page."""
    ui.page(
        "Suggestions",
        "What would let more of each prompt come from the cache, predicted by replay. Best first.",
        _body,
    )


def _body() -> None:
    suggestions = data.suggestions()
    if suggestions:
        experiments, policies = data.experiments(), data.policies()
        for suggestion in suggestions:
            _card(suggestion, experiments, policies)
    else:
        heading, text = view.nothing(data.advisor(), data.agent_url())
        ui.empty(heading, text, ":material/lightbulb:")
    _left_alone(view.left_alone(data.advisor(), suggestions))


def _left_alone(reasons: Mapping[str, str]) -> None:
    """Say why other routes get no suggestion."""
    if not reasons:
        return
    with st.container(border=True, key="left-alone"):
        st.markdown(":material/check_circle: **Routes without a suggestion**")
        for route, reason in reasons.items():
            st.caption(f"**{ui.plain(route)}**: {ui.plain(reason)}")


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
        left, middle, right, last = st.columns([4, 3, 3, 3], gap="medium")
        with left:
            st.caption("Hit rate by replay of the window", help=_REPLAYED)
            st.altair_chart(view.hit_rate_bars(suggestion))
        with middle:
            st.metric("TTFT change", words.change_seconds(suggestion.ttft_change_seconds))
            if interval := view.ttft_interval(suggestion):
                st.caption(interval, help=_INTERVAL)
        right.metric("Tokens saved a day", words.rough(suggestion.tokens_saved_per_day))
        last.metric(
            "GPU time saved a day", words.gpu_seconds(evidence.gpu_seconds(suggestion.evidence)), help=_GPU
        )
        for line in steps_of(suggestion):
            st.markdown(ui.plain(line))
        if suggestion.salts_first:
            st.caption(":material/person: A person must act first, then ask again: salts hide the rest.")
        elif not suggestion.transforms:
            st.caption(":material/person: A person must act: no transform of the gateway does this.")
        st.caption(f"**What could go wrong:** {ui.plain(' '.join(harms_of(suggestion)))}")
        st.caption(
            " · ".join(f"{label}: {ui.plain(text)}" for label, text in evidence.lines(suggestion.evidence))
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            if suggestion.transforms and not suggestion.salts_first:
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
