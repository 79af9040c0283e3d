"""The controller on a real store: intents, verdicts, rollback, promotion, restarts."""

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kvscope.experiments.design import from_suggestion
from kvscope.model.advice import (
    Experiment,
    ExperimentState,
    Guardrail,
    Intent,
    IntentAction,
    RoutePolicy,
    Routing,
    Unit,
    Verdict,
)
from kvscope.model.prompt import TransformSpec
from kvscope.model.request import Status
from kvscope.pipeline.contracts import Decision
from tests.integration.experiments.conftest import suggestion

if TYPE_CHECKING:
    from tests.integration.experiments.conftest import Loop

SORT = TransformSpec(kind="sort_tools")
SPACES = TransformSpec(kind="normalize_whitespace")


def better(arm: str | None) -> dict[str, Any]:
    return {"cached_tokens": 900} if arm == "treatment" else {}


def same(_: str | None) -> dict[str, Any]:
    return {}


def failing(arm: str | None) -> dict[str, Any]:
    return {"status": Status.ERROR} if arm == "treatment" else {}


def _run(loop: "Loop", experiment: Experiment, values: Any, *, most: int = 400) -> Experiment:
    """Serve and step until the experiment has ended."""
    for _ in range(0, most, 10):
        loop.serve(10, values)
        loop.controller.step()
        if loop.get(experiment).state is not ExperimentState.RUNNING:
            break
    return loop.get(experiment)


def _decision(loop: "Loop", *, route: str = "agent") -> Decision:
    return loop.policy.decide(route=route, session="x", request_id="x", at=loop.now)


def test_a_better_layout_is_kept_then_promoted_and_promotion_is_undone_by_stop(loop: "Loop") -> None:
    experiment = loop.plan()
    assert loop.ask(experiment, IntentAction.START) == "done: started"
    ended = _run(loop, experiment, better)
    assert (ended.state, ended.verdict) == (ExperimentState.DECIDED, Verdict.KEEP)
    # a verdict ends the trial: until someone promotes, everything is as before
    assert _decision(loop) == Decision()
    history = loop.store.experiments.history(experiment.id)
    assert [(row.state, row.actor) for row in history] == [
        (ExperimentState.RUNNING, "tester"),
        (ExperimentState.DECIDED, "controller"),
    ]
    assert "better" in history[-1].reason
    look = loop.store.experiments.looks(experiment.id, last=1)[0]
    assert look.verdict is Verdict.KEEP
    assert look.results["arms"]["treatment"]["hit_rate"] == 0.9

    outcome = loop.ask(experiment, IntentAction.PROMOTE)
    assert outcome == "done: the treatment is in force for all traffic of route agent"
    (policy,) = loop.store.advice.policies()
    assert (policy.transforms, policy.experiment, policy.actor) == ((SORT,), experiment.id, "tester")
    assert _decision(loop) == Decision(transforms=(SORT,))

    outcome = loop.ask(experiment, IntentAction.STOP, reason="answers got worse")
    assert outcome == "done: stopped; route agent is back to what was in force before it"
    assert _decision(loop) == Decision()
    undone = "promotion undone: route agent is back to what was in force before it: answers got worse"
    assert loop.store.experiments.history(experiment.id)[-1].reason == undone


def test_a_breach_stops_the_experiment_and_the_traffic_is_back_to_the_baseline(loop: "Loop") -> None:
    experiment = loop.plan()
    loop.ask(experiment, IntentAction.START)
    ended = _run(loop, experiment, failing)
    assert (ended.state, ended.verdict) == (ExperimentState.STOPPED, None)
    assert _decision(loop) == Decision()
    last = loop.store.experiments.history(experiment.id)[-1]
    assert last.reason == "guardrail error: worse than the baseline by more than the 0.01 rate allowed"
    assert loop.store.experiments.looks(experiment.id)[-1].verdict is Verdict.DROP
    assert loop.number < 200


def test_the_rollback_does_not_wait_for_the_store(
    sqlite_loop: "Loop", monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = sqlite_loop
    experiment = loop.plan()
    loop.ask(experiment, IntentAction.START)
    loop.serve(120, failing)

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("the disk is full")

    with monkeypatch.context() as fault:
        fault.setattr(loop.store.experiments, "add_look", away)
        with pytest.raises(ConnectionError, match="the disk is full"):
            loop.controller.step()
        assert _decision(loop) == Decision()
        loop.now += 10
        with pytest.raises(ConnectionError):
            loop.controller.step()
        assert _decision(loop) == Decision()  # the store still says running, and nobody believes it
    loop.now += 10
    loop.controller.step()
    assert loop.get(experiment).state is ExperimentState.STOPPED


def test_equal_arms_are_decided_undecided_when_time_is_up(sqlite_loop: "Loop") -> None:
    loop = sqlite_loop
    experiment = loop.plan(max_seconds=90.0)
    loop.ask(experiment, IntentAction.START)
    ended = _run(loop, experiment, same)
    assert (ended.state, ended.verdict) == (ExperimentState.DECIDED, Verdict.UNDECIDED)
    reason = loop.store.experiments.history(experiment.id)[-1].reason
    assert reason == "90 s have passed without a verdict"
    refused = loop.ask(experiment, IntentAction.PROMOTE)
    assert refused.startswith("refused: it is decided with verdict undecided, and only a decided keep")
    assert loop.store.advice.policies() == []
    assert loop.ask(experiment, IntentAction.PROMOTE, override=True).startswith("done")
    assert _decision(loop) == Decision(transforms=(SORT,))


def test_an_experiment_without_traffic_ends_too(sqlite_loop: "Loop") -> None:
    experiment = sqlite_loop.plan(max_seconds=60.0)
    sqlite_loop.ask(experiment, IntentAction.START)
    sqlite_loop.now += 61
    sqlite_loop.controller.step()
    assert sqlite_loop.get(experiment).verdict is Verdict.UNDECIDED


def test_a_worse_layout_is_dropped(sqlite_loop: "Loop") -> None:
    experiment = sqlite_loop.plan()
    sqlite_loop.ask(experiment, IntentAction.START)
    ended = _run(sqlite_loop, experiment, lambda arm: {"cached_tokens": 0} if arm == "treatment" else {})
    assert (ended.state, ended.verdict) == (ExperimentState.DECIDED, Verdict.DROP)


def test_a_restart_loses_nothing(loop: "Loop") -> None:
    experiment = loop.plan(warmup_requests=5, min_units=25)
    loop.ask(experiment, IntentAction.START)
    loop.serve(40, better)
    loop.controller.step()
    arms = {
        session: loop.policy.decide(route="agent", session=session, request_id="r", at=loop.now).arm
        for session in map(str, range(30))
    }
    before = loop.store.experiments.looks(experiment.id)[-1]
    loop.restart()
    assert _decision(loop) == Decision()  # until the first step, nothing is changed
    loop.controller.step()
    for session, arm in arms.items():
        decision = loop.policy.decide(route="agent", session=session, request_id="r", at=loop.now)
        assert (decision.arm, decision.warmup) == (arm, False)
    after = loop.store.experiments.looks(experiment.id)[-1]
    assert after.results == before.results
    assert _run(loop, experiment, better).verdict is Verdict.KEEP


def test_impossible_wishes_are_refused_with_the_reason(sqlite_loop: "Loop") -> None:
    loop = sqlite_loop
    first, second, elsewhere = loop.plan("first"), loop.plan("second"), loop.plan("third", route="chat")
    assert loop.ask(first, IntentAction.PROMOTE) == "refused: it is draft: it has no verdict yet"
    assert loop.ask(first, IntentAction.RAMP, share=0.3) == (
        "refused: it is draft: only a running experiment has a share to change"
    )
    assert loop.ask(first, IntentAction.START) == "done: started"
    assert loop.ask(first, IntentAction.START) == "done: it is running already"
    assert loop.ask(second, IntentAction.START) == (
        "refused: route agent runs experiment first: stop it first"
    )
    assert loop.ask(elsewhere, IntentAction.START) == "done: started"
    assert loop.ask(first, IntentAction.PROMOTE, override=True) == (
        "refused: it is running: it has no verdict yet"
    )
    assert loop.ask(first, IntentAction.STOP) == "done: stopped"
    assert loop.ask(first, IntentAction.STOP) == "done: it is stopped already"
    assert loop.ask(first, IntentAction.START) == (
        "refused: it is stopped: an experiment runs once, create a new one"
    )
    assert loop.ask(second, IntentAction.STOP) == "done: stopped"
    assert loop.ask(second, IntentAction.PROMOTE, override=True) == "refused: it never ran"
    assert loop.get(second).state is ExperimentState.STOPPED


def test_a_ramp_moves_traffic_and_starts_the_comparison_anew(sqlite_loop: "Loop") -> None:
    loop = sqlite_loop
    experiment = loop.plan(share=0.1, min_units=200)
    loop.ask(experiment, IntentAction.START)
    loop.serve(40, better)
    for share in (0.0, 1.0, "half", None, True):
        assert loop.ask(experiment, IntentAction.RAMP, share=share).startswith("refused: ")
    loop.now += 1
    outcome = loop.ask(experiment, IntentAction.RAMP, share=0.5)
    assert outcome == "done: the treatment has 50% of the traffic; the comparison starts anew"
    now = loop.get(experiment)
    assert (now.state, now.treatment.share, now.baseline.share) == (ExperimentState.RUNNING, 0.5, 0.5)
    assert now.started_at == 1000.0
    assert loop.store.experiments.history(experiment.id)[-1].reason == "treatment's share set to 0.5"
    loop.serve(60, better)
    loop.controller.step()
    look = loop.store.experiments.looks(experiment.id)[-1]
    assert look.results["requests"] == 60
    assert look.reasons[-1] == "40 requests from before the shares were last set are left out"
    assert look.results["sample_ratio"]["ok"] is True


def test_baseline_means_what_is_in_force(sqlite_loop: "Loop") -> None:
    loop = sqlite_loop
    loop.store.advice.set_policy(
        RoutePolicy(route="agent", transforms=(SPACES,), experiment=None, actor="me", since_at=1.0)
    )
    experiment = loop.plan()
    loop.ask(experiment, IntentAction.START)
    arms = {arm.name: arm.transforms for arm in loop.get(experiment).arms}
    assert arms == {"baseline": (SPACES,), "treatment": (SPACES, SORT)}
    assert _run(loop, experiment, better).verdict is Verdict.KEEP
    loop.ask(experiment, IntentAction.PROMOTE)
    assert _decision(loop) == Decision(transforms=(SPACES, SORT))
    loop.ask(experiment, IntentAction.STOP)
    assert _decision(loop) == Decision(transforms=(SPACES,))


def test_a_promotion_and_its_undoing_are_told_in_the_history(sqlite_loop: "Loop") -> None:
    loop = sqlite_loop
    experiment = loop.plan()
    loop.ask(experiment, IntentAction.START)
    decided = _run(loop, experiment, better)
    loop.now += 60
    loop.ask(experiment, IntentAction.PROMOTE)
    loop.ask(experiment, IntentAction.PROMOTE)
    assert loop.get(experiment) == decided, "neither its end nor its verdict has changed"
    loop.ask(experiment, IntentAction.STOP)
    assert (loop.get(experiment).ended_at, loop.get(experiment).verdict) == (decided.ended_at, Verdict.KEEP)
    loop.ask(experiment, IntentAction.PROMOTE, override=True, reason="again")
    loop.ask(experiment, IntentAction.STOP)
    promoted = "promoted: the treatment is in force for all of route agent"
    undone = "promotion undone: route agent is back to what was in force before it"
    assert [(row.state.value, row.reason) for row in loop.store.experiments.history(experiment.id)[2:]] == [
        ("decided", promoted),
        ("stopped", undone),
        ("stopped", f"{promoted}: again"),
        ("stopped", undone),
    ]


def test_promotion_does_not_undo_what_came_into_force_since(sqlite_loop: "Loop") -> None:
    loop = sqlite_loop
    experiment = loop.plan()
    loop.ask(experiment, IntentAction.START)
    _run(loop, experiment, better)
    loop.store.advice.set_policy(
        RoutePolicy(route="agent", transforms=(SPACES,), experiment=None, actor="me", since_at=loop.now)
    )
    assert loop.ask(experiment, IntentAction.PROMOTE).startswith(
        "refused: what is in force on route agent has changed since it ran"
    )
    assert _decision(loop) == Decision(transforms=(SPACES,))


@pytest.mark.parametrize("with_transform", [True, False])
def test_promotion_says_what_it_cannot_put_in_force(sqlite_loop: "Loop", with_transform: bool) -> None:
    loop = sqlite_loop
    draft = from_suggestion(suggestion(), name="routed", now=loop.now)
    treatment = dataclasses.replace(
        draft.treatment, routing=Routing.PREFIX, transforms=(SORT,) if with_transform else ()
    )
    experiment = dataclasses.replace(draft, arms=(draft.baseline, treatment), suggestion_id=None)
    loop.store.experiments.create(experiment)
    loop.ask(experiment, IntentAction.START)
    assert _run(loop, experiment, better).verdict is Verdict.KEEP
    outcome = loop.ask(experiment, IntentAction.PROMOTE)
    assert "set collectors.gateway.routing to prefix" in outcome
    assert outcome.startswith("done" if with_transform else "refused")
    assert _decision(loop) == Decision(transforms=(SORT,) if with_transform else ())


def test_time_slices_from_start_to_verdict(sqlite_loop: "Loop") -> None:
    loop = sqlite_loop
    experiment = loop.plan(unit=Unit.TIME_SLICE, slice_seconds=5.0, warmup_requests=1)
    loop.ask(experiment, IntentAction.START)
    assert loop.ask(experiment, IntentAction.RAMP, share=0.2).startswith("refused: time slices")
    ended = _run(loop, experiment, better, most=1000)
    assert (ended.state, ended.verdict) == (ExperimentState.DECIDED, Verdict.KEEP)
    look = loop.store.experiments.looks(experiment.id)[-1]
    assert look.results["arms"]["treatment"]["units"] >= 20


def test_a_fault_with_one_experiment_does_not_leave_another_unwatched(sqlite_loop: "Loop") -> None:
    loop = sqlite_loop
    broken = loop.plan("broken", route="chat")
    watched = loop.plan("watched", route="agent", guardrails=[Guardrail(metric="error", margin=0.01)])
    for experiment in (broken, watched):
        loop.ask(experiment, IntentAction.START)
    loop.serve(20, same, route="chat")
    loop.serve(120, failing)
    real = loop.store.reader.requests

    class Reader:
        def requests(self, *, experiment: str) -> Any:
            if experiment == broken.id:
                raise ValueError("a row that cannot be read")
            return real(experiment=experiment)

    loop.controller._reader = Reader()  # type: ignore[assignment]  # a fault that no real reader has
    loop.now += 10
    with pytest.raises(ValueError, match="a row that cannot be read"):
        loop.controller.step()
    assert loop.get(watched).state is ExperimentState.STOPPED


def test_intents_are_carried_out_in_order_and_once(sqlite_loop: "Loop") -> None:
    loop = sqlite_loop
    experiment = loop.plan()
    numbers = [
        loop.store.experiments.add_intent(
            Intent(id=None, experiment=experiment.id, action=action, actor="me", at=1.0)
        )
        for action in (IntentAction.START, IntentAction.STOP, IntentAction.START)
    ]
    loop.controller.step()
    outcomes = [loop.store.experiments.intent(number).outcome for number in numbers]
    assert outcomes[:2] == ["done: started", "done: stopped"]
    assert str(outcomes[2]).startswith("refused: it is stopped")
    loop.controller.step()
    assert len(loop.store.experiments.history(experiment.id)) == 2


def test_looks_are_not_made_without_news_nor_too_often(sqlite_loop: "Loop") -> None:
    loop = sqlite_loop
    experiment = loop.plan(min_units=500)
    loop.ask(experiment, IntentAction.START)

    def looks() -> int:
        return len(loop.store.experiments.looks(experiment.id))

    loop.serve(20, same)
    loop.controller.step()
    assert looks() == 1
    loop.now += 60
    loop.controller.step()
    assert looks() == 1  # nothing new
    loop.serve(2, same)  # a second's worth
    loop.controller.step()
    assert looks() == 1  # too soon
    loop.now += 60
    loop.controller.step()
    assert looks() == 2
