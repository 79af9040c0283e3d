"""Experiments: what is tried on live traffic, what it shows, and the buttons that ask the agent to act."""

from collections.abc import Mapping, Sequence

import streamlit as st

from dashboards import data, ui
from dashboards.views import tables
from dashboards.views import trials as view
from kvscope.errors import KvscopeError
from kvscope.model.advice import Experiment, IntentAction, Look
from kvscope.reports import words
from kvscope.reports.changes import changes_of
from kvscope.reports.trials import arm_lines, guardrail_lines, interval_lines

_SUGGESTIONS = "screens/suggestions.py"


def show() -> None:
    """Draw the page."""
    ui.page(
        "Experiments",
        "Changes on trial. This page asks; the agent's controller acts, watches, rolls back what does harm.",
        _body,
    )


def _body() -> None:
    known = data.experiments()
    if not known:
        ui.empty("No experiments yet", "Create one from a suggestion.", ":material/science:")
        st.page_link(_SUGGESTIONS, label="Go to the suggestions", icon=":material/lightbulb:")
        return
    names = [experiment.name for experiment in known]
    wanted = st.session_state.pop(ui.EXPERIMENT, None)
    if wanted in names:
        st.session_state["experiment-choice"] = wanted
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    name = left.selectbox("Experiment", names, key="experiment-choice")
    right.page_link(_SUGGESTIONS, label="New, from a suggestion", icon=":material/lightbulb:")
    _live(name)


@st.fragment(run_every=2)
def _live(name: str) -> None:
    ui.guarded(lambda: _experiment(name))


def _experiment(name: str) -> None:
    known = data.experiments()
    experiment = next((one for one in known if one.name == name), None)
    if experiment is None:
        return
    looks = data.looks(experiment.id)
    last = looks[-1] if looks else None
    _head(experiment, last)
    _buttons(experiment)
    _key_figures(experiment, last)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        _intervals(experiment, looks)
    with right:
        _findings(experiment, last)
    _arms(experiment, last)
    _tables(experiment, last)
    if len(known) > 1:
        st.subheader("All experiments", anchor=False)
        st.dataframe(**tables.options(view.experiment_frame(known)))


def _head(experiment: Experiment, look: Look | None) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(f"route {ui.plain(experiment.route)}", color="gray")
        st.badge(experiment.state.value, color=view.STATE_COLOURS[experiment.state])
        if experiment.verdict:
            st.badge(f"verdict: {experiment.verdict.value}", color=view.VERDICT_COLOURS[experiment.verdict])
        st.caption(view.standing(experiment, look, data.now()), width="content")


def _buttons(experiment: Experiment) -> None:
    may = view.actions(experiment, data.policies())
    waiting = data.pending(experiment.id)
    busy = bool(waiting)
    with st.container(horizontal=True, vertical_alignment="center"):
        if may.start:
            _button(experiment, IntentAction.START, "Start", ":material/play_arrow:", disabled=busy)
        if may.promote:
            yes = not may.override or st.checkbox(
                "Promote all the same: the verdict is not keep", key=f"override-{experiment.id}"
            )
            _button(
                experiment,
                IntentAction.PROMOTE,
                "Promote",
                ":material/rocket_launch:",
                disabled=busy or not yes,
                params={"override": True} if may.override else {},
            )
        if may.stop:
            _button(experiment, IntentAction.STOP, may.stop_label, ":material/stop:", disabled=busy)
    if problem := st.session_state.get(f"problem-{experiment.id}"):
        st.error(ui.plain(problem))
    own = st.session_state.get(f"intent-{experiment.id}")
    shown = waiting if own is None else [data.intent(own), *(one for one in waiting if one.id != own)]
    for wish in shown:
        kind, sentence = view.asked(wish, data.now())
        getattr(st, kind)(ui.prose(sentence))


def _button(
    experiment: Experiment,
    action: IntentAction,
    label: str,
    icon: str,
    *,
    disabled: bool,
    params: Mapping[str, bool] | None = None,
) -> None:
    st.button(
        label,
        type="secondary" if action is IntentAction.STOP else "primary",
        icon=icon,
        disabled=disabled,
        key=action.value,
        on_click=_ask,
        args=(experiment.id, action, params or {}),
    )


def _ask(experiment_id: str, action: IntentAction, params: Mapping[str, bool]) -> None:
    """Write the intent; what keeps it from being written is shown at the next drawing."""
    st.session_state.pop(f"problem-{experiment_id}", None)
    try:
        st.session_state[f"intent-{experiment_id}"] = data.ask(experiment_id, action, **params)
    except KvscopeError as error:
        st.session_state[f"problem-{experiment_id}"] = str(error)


def _key_figures(experiment: Experiment, look: Look | None) -> None:
    arms = {arm.baseline: arm for arm in arm_lines(experiment, look)}
    before, after = arms[True], arms[False]
    predicted = experiment.predicted.get("hit_rate_after")
    first, second, third, fourth = st.columns(4)
    first.metric("Hit rate, baseline", words.percent(before.hit_rate), border=True)
    second.metric("Hit rate, treatment", words.percent(after.hit_rate), border=True)
    third.metric("Hit rate, predicted", words.percent(predicted), border=True)
    fourth.metric(
        "TTFT, baseline to treatment",
        f"{words.seconds(before.ttft.mean)} → {words.seconds(after.ttft.mean)}"
        if before.ttft and after.ttft
        else words.UNKNOWN,
        border=True,
    )


def _intervals(experiment: Experiment, looks: Sequence[Look]) -> None:
    _, unit = view.unit(experiment.metric)
    st.markdown(f"**{words.metric(experiment.metric).capitalize()}: treatment − baseline, {unit}**")
    frame = view.look_frame(looks)
    if frame.empty:
        st.caption("No look can tell a difference yet: each arm needs some finished requests.")
        return
    st.altair_chart(view.interval_chart(frame, experiment.metric))
    st.caption(
        f"The band holds the true difference at all looks together with {1 - experiment.alpha:.0%}"
        " confidence. A verdict falls when it leaves the dashed line of no change and each arm has"
        f" {experiment.min_units} units."
    )


def _findings(experiment: Experiment, look: Look | None) -> None:
    st.markdown("**What the last look says**")
    if look is None:
        st.caption("No look yet. The agent looks every few seconds while the experiment runs.")
    else:
        for reason in look.reasons:
            st.markdown(f"- {ui.plain(reason)}")
    st.markdown("**Guardrails**")
    lines = guardrail_lines(experiment, look)
    for line in lines:
        icon, sentence = view.guardrail_words(line)
        st.markdown(f"{icon} {ui.plain(sentence)}")
    if not lines:
        st.caption("None.")


def _arms(experiment: Experiment, look: Look | None) -> None:
    st.markdown("**Arms**")
    frame = view.arm_frame(arm_lines(experiment, look))
    st.dataframe(**tables.options(frame.drop(columns="changes")))
    for arm in experiment.arms:
        for line in changes_of(arm.transforms):
            st.caption(f"{arm.name}: {ui.plain(line)}")


def _tables(experiment: Experiment, look: Look | None) -> None:
    st.markdown("**All metrics**")
    frame = view.difference_frame(interval_lines(look))
    if frame.empty:
        st.caption("Nothing to compare yet.")
    else:
        st.dataframe(**tables.options(frame))
    st.markdown("**History**")
    for line in view.history_lines(experiment, data.history(experiment.id)):
        st.caption(ui.plain(line))


if __name__ == "__main__":
    show()
