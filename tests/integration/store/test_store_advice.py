"""Suggestions, models, policies and experiments read back as they were stored."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvscope.errors import UsageError
from kvscope.model.advice import (
    Arm,
    Experiment,
    ExperimentState,
    FittedModel,
    Guardrail,
    Intent,
    IntentAction,
    Look,
    RoutePolicy,
    Suggestion,
    Transition,
    Unit,
    Verdict,
)
from kvscope.model.prompt import Risk, TransformSpec
from kvscope.store.database import Store

MOVE = TransformSpec(kind="move_volatile", params={"role": "system", "line_keys": ["0123456789abcdef"]})
SUGGESTION = Suggestion(
    id="s1",
    kind="move_volatile",
    route="support",
    risk=Risk.REVIEW,
    evidence={"message_index": 0, "role": "system", "char_range": [7, 26], "lost_tokens": 1200},
    hit_rate_before=0.1,
    hit_rate_after=0.8,
    ttft_change_seconds=-0.05,
    tokens_saved_per_day=1_000.0,
    change={"transforms": [MOVE.as_json()]},
    created_at=10.0,
)
MODEL = FittedModel(
    name="prefill",
    target="prefill_seconds",
    features=("uncached_tokens", "attention_work"),
    coefficients={"intercept": 0.01, "uncached_tokens": 0.0001, "attention_work": 1e-9},
    r2=0.97,
    mae_seconds=0.002,
    coverage_90=0.91,
    error_quantiles=(-0.05, 0.08),
    rows=500,
    ranges={"uncached_tokens": (16.0, 4096.0), "attention_work": (0.0, 1e7)},
    fitted_at=20.0,
)
EXPERIMENT = Experiment(
    id="e1",
    name="clock last",
    route="support",
    arms=(
        Arm(name="baseline", baseline=True, share=0.5),
        Arm(name="treatment", baseline=False, share=0.5, transforms=(MOVE,)),
    ),
    unit=Unit.TIME_SLICE,
    guardrails=(Guardrail(metric="ttft_seconds", margin=0.1, relative=True),),
    suggestion_id="s1",
    predicted={"hit_rate": 0.8},
    created_at=30.0,
)


def moved(to: ExperimentState, at: float, reason: str = "asked") -> Transition:
    return Transition(experiment="e1", at=at, state=to, actor="cli", reason=reason)


def intent(action: IntentAction = IntentAction.START, **params: Any) -> Intent:
    return Intent(id=None, experiment="e1", action=action, actor="cli", at=40.0, params=params)


def test_suggestions_read_back_ranked(store: Store) -> None:
    small = dataclasses.replace(
        SUGGESTION, id="s2", tokens_saved_per_day=5.0, ttft_change_seconds=None, route="other"
    )
    store.advice.save_suggestions([])
    unknown = dataclasses.replace(SUGGESTION, id="s0", tokens_saved_per_day=None)
    store.advice.save_suggestions([unknown, small, SUGGESTION])
    assert store.advice.suggestions() == [SUGGESTION, small, unknown]
    assert store.advice.suggestions(route="other") == [small]
    assert store.advice.suggestion("s1") == SUGGESTION
    assert store.advice.suggestion("s1").transforms == (MOVE,)


def test_a_suggestion_found_again_stays_dismissed_until_its_evidence_changes(store: Store) -> None:
    store.advice.save_suggestions([SUGGESTION])
    store.advice.dismiss("s1")
    alike = dataclasses.replace(SUGGESTION, hit_rate_after=SUGGESTION.hit_rate_after + 0.05, created_at=99.0)
    store.advice.save_suggestions([alike])
    assert store.advice.suggestions() == []
    # as it was when it was dismissed: small steps do not add up unseen
    assert store.advice.suggestions(include_dismissed=True) == [SUGGESTION]
    more = dataclasses.replace(SUGGESTION, hit_rate_after=SUGGESTION.hit_rate_after + 0.11, created_at=99.0)
    store.advice.save_suggestions([more])
    assert store.advice.suggestions() == [dataclasses.replace(more, created_at=SUGGESTION.created_at)]
    store.advice.dismiss("s1")
    doubled = dataclasses.replace(more, tokens_saved_per_day=2 * (SUGGESTION.tokens_saved_per_day or 0.0))
    store.advice.save_suggestions([doubled])
    assert [one.id for one in store.advice.suggestions()] == ["s1"]


def test_an_unknown_suggestion_is_a_wrong_use(store: Store) -> None:
    for call in (store.advice.suggestion, store.advice.dismiss):
        with pytest.raises(UsageError, match="there is no suggestion 'nope'"):
            call("nope")


def test_models_read_back_and_the_newer_fit_replaces_the_older(store: Store) -> None:
    store.advice.save_models([])
    store.advice.save_models([MODEL])
    assert store.advice.models() == [MODEL]
    refit = dataclasses.replace(MODEL, r2=0.5, coverage_90=None)
    other = dataclasses.replace(MODEL, name="decode")
    store.advice.save_models([refit, other])
    assert store.advice.models() == [other, refit]


def test_numbers_of_numpy_are_stored(store: Store) -> None:
    fitted: dict[str, Any] = {
        "coefficients": {"intercept": np.float64(0.25)},
        "r2": np.float64(0.5),
        "rows": np.int64(7),
    }
    store.advice.save_models([dataclasses.replace(MODEL, **fitted)])
    (model,) = store.advice.models()
    assert (model.coefficients, model.r2, model.rows) == ({"intercept": 0.25}, 0.5, 7)


def test_a_policy_replaces_the_one_before(store: Store) -> None:
    policy = RoutePolicy(
        route="support", transforms=(MOVE,), experiment="e1", actor="controller", since_at=50.0
    )
    store.advice.set_policy(policy)
    assert store.advice.policies() == [policy]
    cleared = RoutePolicy(route="support", transforms=(), experiment=None, actor="cli", since_at=60.0)
    store.advice.set_policy(cleared)
    assert store.advice.policies() == [cleared]


def test_an_experiment_reads_back_by_id_and_by_name(store: Store) -> None:
    store.experiments.create(EXPERIMENT)
    assert store.experiments.get("e1") == EXPERIMENT
    assert store.experiments.get("clock last") == EXPERIMENT
    later = dataclasses.replace(EXPERIMENT, id="e2", name="e1", created_at=31.0)
    store.experiments.create(later)
    assert store.experiments.get("e1") == EXPERIMENT
    assert store.experiments.list() == [EXPERIMENT, later]


@pytest.mark.parametrize("taken", [{"id": "new"}, {"name": "new"}])
def test_a_taken_id_or_name_is_refused(store: Store, taken: dict[str, Any]) -> None:
    store.experiments.create(EXPERIMENT)
    with pytest.raises(UsageError, match="exists already"):
        store.experiments.create(dataclasses.replace(EXPERIMENT, **taken))
    assert store.experiments.list() == [EXPERIMENT]


def test_an_unknown_experiment_is_a_wrong_use_and_the_known_are_named(store: Store) -> None:
    with pytest.raises(UsageError, match="there is no experiment 'x'; there are none yet"):
        store.experiments.get("x")
    store.experiments.create(EXPERIMENT)
    look = Look(experiment="x", at=1.0, verdict=Verdict.KEEP, reasons=(), results={})
    calls: list[Callable[[], object]] = [
        lambda: store.experiments.get("x"),
        lambda: store.experiments.update_arms("x", EXPERIMENT.arms),
        lambda: store.experiments.transition(
            dataclasses.replace(moved(ExperimentState.RUNNING, 1.0), experiment="x")
        ),
        lambda: store.experiments.add_intent(dataclasses.replace(intent(), experiment="x")),
        lambda: store.experiments.add_look(look),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="there is no experiment 'x'; there are clock last"):
            call()
    assert store.experiments.pending_intents() == []


def test_transitions_move_the_state_and_are_kept(store: Store) -> None:
    store.experiments.create(EXPERIMENT)
    changes = [
        moved(ExperimentState.RUNNING, 40.0),
        moved(ExperimentState.DECIDED, 50.0, "interval above zero"),
        moved(ExperimentState.STOPPED, 60.0),
    ]
    store.experiments.transition(changes[0])
    running = store.experiments.get("e1")
    assert (running.state, running.started_at, running.ended_at) == (ExperimentState.RUNNING, 40.0, None)
    store.experiments.transition(changes[1], verdict=Verdict.KEEP)
    store.experiments.transition(changes[2])
    ended = store.experiments.get("e1")
    assert (ended.state, ended.verdict) == (ExperimentState.STOPPED, Verdict.KEEP)
    assert (ended.started_at, ended.ended_at) == (40.0, 50.0)
    assert store.experiments.history("e1") == changes
    assert store.experiments.history("nothing") == []


def test_arms_are_replaced(store: Store) -> None:
    store.experiments.create(EXPERIMENT)
    arms = tuple(dataclasses.replace(arm, share=0.9 if arm.baseline else 0.1) for arm in EXPERIMENT.arms)
    store.experiments.update_arms("e1", arms)
    assert store.experiments.get("e1").arms == arms


def test_intents_wait_until_they_are_closed(store: Store) -> None:
    store.experiments.create(EXPERIMENT)
    first = store.experiments.add_intent(intent())
    second = store.experiments.add_intent(intent(IntentAction.RAMP, share=0.8))
    pending = store.experiments.pending_intents()
    assert [one.id for one in pending] == [first, second]
    assert pending[1] == dataclasses.replace(intent(IntentAction.RAMP, share=0.8), id=second)
    store.experiments.close_intent(first, "started")
    assert [one.id for one in store.experiments.pending_intents()] == [second]
    assert store.experiments.intent(first).outcome == "started"
    with pytest.raises(UsageError, match="there is no intent 99"):
        store.experiments.close_intent(99, "started")
    with pytest.raises(UsageError, match="there is no intent 99"):
        store.experiments.intent(99)


def test_looks_read_back_oldest_first(store: Store) -> None:
    store.experiments.create(EXPERIMENT)
    results = {"effect": np.float64(-0.5), "interval": (-1.0, float("inf")), "by_slice": {1: 2}}
    looks = [
        Look(
            experiment="e1",
            at=float(at),
            verdict=Verdict.UNDECIDED,
            reasons=("too few units",),
            results=results,
        )
        for at in range(3)
    ]
    for look in looks:
        store.experiments.add_look(look)
    stored = {"effect": -0.5, "interval": [-1.0, None], "by_slice": {"1": 2}}
    expected = [dataclasses.replace(look, results=stored) for look in looks]
    assert store.experiments.looks("e1") == expected
    assert store.experiments.looks("e1", last=2) == expected[1:]


def test_many_threads_may_write_at_once(store: Store) -> None:
    """The controller, the advisor and the writer share one store."""
    store.experiments.create(EXPERIMENT)

    def work(number: int) -> None:
        for step in range(10):
            store.experiments.add_intent(intent(step=step, number=number))
            store.advice.save_suggestions([dataclasses.replace(SUGGESTION, id=f"{number}-{step}")])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.id for one in store.experiments.pending_intents()}) == 40
    assert len(store.advice.suggestions()) == 40


def test_names_of_any_text_are_stored_and_found(store: Store) -> None:
    odd = "n\x00\ud800" + "é" * 5_000
    store.experiments.create(dataclasses.replace(EXPERIMENT, name=odd, route=odd, predicted={odd: 1.0}))
    found = store.experiments.get(odd)
    assert found.name.startswith("n\ufffd\ufffdé")
    assert found.name == found.route
    store.experiments.transition(moved(ExperimentState.RUNNING, 1.0, reason=odd))
    assert len(store.experiments.history("e1")) == 1
    store.advice.save_suggestions([dataclasses.replace(SUGGESTION, route=odd, evidence={"x": odd})])
    assert [one.route for one in store.advice.suggestions(route=odd)] == [found.route]
    with pytest.raises(UsageError):
        store.advice.suggestion("\x00")


def test_what_is_not_suggested_any_more_goes_unless_dismissed(store: Store) -> None:
    gone, dismissed, other, new = (
        dataclasses.replace(SUGGESTION, id=name, route=route)
        for name, route in (("gone", "r"), ("dismissed", "r"), ("other", "elsewhere"), ("new", "r"))
    )
    store.advice.save_suggestions([gone, dismissed, other])
    store.advice.dismiss("dismissed")
    store.advice.save_suggestions([new], looked_at={"r"})
    assert {one.id for one in store.advice.suggestions()} == {"new", "other"}
    assert {one.id for one in store.advice.suggestions(include_dismissed=True)} == {
        "new",
        "other",
        "dismissed",
    }
    store.advice.save_suggestions([], looked_at={"r"})
    assert {one.id for one in store.advice.suggestions()} == {"other"}
