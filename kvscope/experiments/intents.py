"""Carries out what people ask of experiments, or refuses with the reason."""

import dataclasses
import json
from collections.abc import Sequence

from kvscope.errors import UsageError
from kvscope.experiments.design import validate, with_in_force, with_share
from kvscope.model.advice import (
    Experiment,
    ExperimentState,
    Intent,
    IntentAction,
    RoutePolicy,
    Transition,
    Verdict,
)
from kvscope.model.prompt import TransformSpec
from kvscope.store.advice import AdviceStore
from kvscope.store.experiments import ExperimentStore

DONE = "done"
REFUSED = "refused"

_OVERRIDE = "a person may insist with the parameter override"


class Refusal(Exception):  # noqa: N818 - an answer, not an error
    """Raised with the reason why an intent cannot be carried out."""


class IntentHandler:
    """Acts on one intent after another; the state of the store alone says what is possible.

    An outcome starts with ``done`` or ``refused``. An intent that is carried out twice, because the agent
    died between the act and the outcome, changes nothing the second time.
    """

    def __init__(self, experiments: ExperimentStore, advice: AdviceStore) -> None:
        self._experiments = experiments
        self._advice = advice

    def act(self, intent: Intent, *, now: float) -> str:
        """Carry out ``intent`` and return its outcome."""
        try:
            experiment = self._experiments.get(intent.experiment)
            return f"{DONE}: {self._carry_out(experiment, intent, now)}"
        except (Refusal, UsageError) as reason:
            return f"{REFUSED}: {reason}"

    def _carry_out(self, experiment: Experiment, intent: Intent, now: float) -> str:
        match intent.action:
            case IntentAction.START:
                return self._start(experiment, intent, now)
            case IntentAction.STOP:
                return self._stop(experiment, intent, now)
            case IntentAction.PROMOTE:
                return self._promote(experiment, intent, now)
            case IntentAction.RAMP:
                return self._ramp(experiment, intent, now)

    def _start(self, experiment: Experiment, intent: Intent, now: float) -> str:
        if experiment.state is ExperimentState.RUNNING:
            return "it is running already"
        if experiment.state is not ExperimentState.DRAFT:
            raise Refusal(f"it is {experiment.state.value}: an experiment runs once, create a new one")
        self._require_free(experiment)
        # its creation was the yes to its risk, and this intent is a person's too
        validate(dataclasses.replace(experiment, arms=with_in_force(experiment, ())), approved=True)
        arms = with_in_force(experiment, self._in_force(experiment.route).transforms)
        if arms != experiment.arms:
            self._experiments.update_arms(experiment.id, arms)
        self._move(experiment, ExperimentState.RUNNING, intent, "start asked for", now)
        return "started"

    def _stop(self, experiment: Experiment, intent: Intent, now: float) -> str:
        promoted = self._in_force(experiment.route).experiment == experiment.id
        if promoted:
            self._require_free(experiment)
            told = f"promotion undone: route {experiment.route} is back to what was in force before it"
            self._move(experiment, ExperimentState.STOPPED, intent, told, now)
            self._put_in_force(experiment, experiment.baseline.transforms, None, intent.actor, now)
            return f"stopped; route {experiment.route} is back to what was in force before it"
        if experiment.state is ExperimentState.STOPPED:
            return "it is stopped already"
        self._move(experiment, ExperimentState.STOPPED, intent, "stop asked for", now)
        return "stopped"

    def _promote(self, experiment: Experiment, intent: Intent, now: float) -> str:
        in_force = self._in_force(experiment.route)
        if in_force.experiment == experiment.id:
            return "its treatment is in force already"
        if experiment.state in (ExperimentState.DRAFT, ExperimentState.RUNNING):
            raise Refusal(f"it is {experiment.state.value}: it has no verdict yet")
        if experiment.started_at is None:
            raise Refusal("it never ran")
        self._require_free(experiment)
        if intent.params.get("override") is not True:
            _require_keep(experiment)
            if set(map(_key, in_force.transforms)) != set(map(_key, experiment.baseline.transforms)):
                raise Refusal(
                    f"what is in force on route {experiment.route} has changed since it ran,"
                    f" and promotion would undo that; {_OVERRIDE}"
                )
        routing = _routing_to_set(experiment)
        # the row first, as in a ramp: were the agent to die in between, the promotion would be repeated
        told = f"promoted: the treatment is in force for all of route {experiment.route}"
        self._move(experiment, experiment.state, intent, told, now)
        self._put_in_force(experiment, experiment.treatment.transforms, experiment.id, intent.actor, now)
        return f"the treatment is in force for all traffic of route {experiment.route}{routing}"

    def _ramp(self, experiment: Experiment, intent: Intent, now: float) -> str:
        if experiment.state is not ExperimentState.RUNNING:
            raise Refusal(f"it is {experiment.state.value}: only a running experiment has a share to change")
        share = intent.params.get("share")
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise Refusal("a ramp needs the parameter share, a number between 0 and 1")
        arms = with_share(experiment, float(share))
        if arms == experiment.arms:
            return f"the treatment has {share:.0%} of the traffic already"
        # the row first: were the agent to die in between, the arms would differ and the ramp be repeated
        self._move(experiment, ExperimentState.RUNNING, intent, f"treatment's share set to {share:g}", now)
        self._experiments.update_arms(experiment.id, arms)
        return f"the treatment has {share:.0%} of the traffic; the comparison starts anew"

    def _require_free(self, experiment: Experiment) -> None:
        for other in self._experiments.list():
            same_route = other.route == experiment.route and other.id != experiment.id
            if same_route and other.state is ExperimentState.RUNNING:
                raise Refusal(f"route {experiment.route} runs experiment {other.name}: stop it first")

    def _in_force(self, route: str) -> RoutePolicy:
        for policy in self._advice.policies():
            if policy.route == route:
                return policy
        return RoutePolicy(route=route, transforms=(), experiment=None, actor="", since_at=0.0)

    def _put_in_force(
        self,
        experiment: Experiment,
        transforms: Sequence[TransformSpec],
        by_experiment: str | None,
        actor: str,
        now: float,
    ) -> None:
        self._advice.set_policy(
            RoutePolicy(
                route=experiment.route,
                transforms=tuple(transforms),
                experiment=by_experiment,
                actor=actor,
                since_at=now,
            )
        )

    def _move(
        self, experiment: Experiment, state: ExperimentState, intent: Intent, told: str, now: float
    ) -> None:
        given = intent.params.get("reason")
        reason = f"{told}: {given}" if given else told
        self._experiments.transition(
            Transition(experiment=experiment.id, at=now, state=state, actor=intent.actor, reason=reason)
        )


def _require_keep(experiment: Experiment) -> None:
    if experiment.state is ExperimentState.DECIDED and experiment.verdict is Verdict.KEEP:
        return
    verdict = f" with verdict {experiment.verdict.value}" if experiment.verdict else ""
    raise Refusal(
        f"it is {experiment.state.value}{verdict}, and only a decided keep is promoted; {_OVERRIDE}"
    )


def _routing_to_set(experiment: Experiment) -> str:
    """Return what to add to a promotion's outcome; raises ``Refusal`` where nothing else would change.

    How servers are chosen is set for the whole gateway: a route's policy holds transforms alone.
    """
    routing = experiment.treatment.routing
    if routing is None or routing is experiment.baseline.routing:
        return ""
    told = f"set collectors.gateway.routing to {routing.value} and restart the agent"
    added = set(map(_key, experiment.treatment.transforms)) - set(map(_key, experiment.baseline.transforms))
    if not added:
        raise Refusal(f"the treatment changes the choice of servers, which no route's policy holds: {told}")
    return f"; it also chose servers in another way: {told}"


def _key(spec: TransformSpec) -> str:
    return json.dumps(spec.as_json(), sort_keys=True)
