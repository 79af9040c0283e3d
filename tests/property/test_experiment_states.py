"""Whatever people ask and whatever the traffic does, experiments move along legal transitions only."""

import dataclasses
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from kvscope.experiments.controller import Controller
from kvscope.experiments.design import from_suggestion
from kvscope.experiments.policy import LivePolicy
from kvscope.model.advice import Experiment, ExperimentState, Intent, IntentAction, Suggestion, Verdict
from kvscope.model.prompt import Risk
from kvscope.model.request import RequestPart, Source, Status
from kvscope.pipeline.contracts import Batch, Decision
from kvscope.store.database import Store, open_store

_ROUTES = ("agent", "chat")
_MOST_EXPERIMENTS = 4
_KINDS = ("sort_tools", "normalize_whitespace")
_LEGAL = {
    ExperimentState.DRAFT: {ExperimentState.RUNNING, ExperimentState.STOPPED},
    ExperimentState.RUNNING: {ExperimentState.RUNNING, ExperimentState.DECIDED, ExperimentState.STOPPED},
    ExperimentState.DECIDED: {ExperimentState.DECIDED, ExperimentState.STOPPED},  # promoted; undone
    ExperimentState.STOPPED: {ExperimentState.STOPPED},  # promoted by override; undone
}
_PARAMS: dict[IntentAction, st.SearchStrategy[dict[str, Any]]] = {
    IntentAction.START: st.just({}),
    IntentAction.STOP: st.sampled_from([{}, {"reason": "enough"}]),
    IntentAction.PROMOTE: st.sampled_from([{}, {"override": True}, {"override": "yes"}]),
    IntentAction.RAMP: st.sampled_from([{}, {"share": 0.1}, {"share": 0.9}, {"share": 2}, {"share": "all"}]),
}
_INTENTS = st.sampled_from(IntentAction).flatmap(lambda action: st.tuples(st.just(action), _PARAMS[action]))


def _suggestion(route: str, kind: str) -> Suggestion:
    return Suggestion(
        id=f"{kind}-{route}",
        kind=kind,
        route=route,
        risk=Risk.SAFE,
        evidence={},
        hit_rate_before=0.1,
        hit_rate_after=0.9,
        ttft_change_seconds=None,
        tokens_saved_per_day=1.0,
        change={"transforms": [{"kind": kind, "params": {}}]},
        created_at=0.0,
    )


@dataclasses.dataclass
class _World:
    """How an arm's requests fare."""

    cached_tokens: int
    error_rate: float


_WORLDS = {
    "better": _World(900, 0.0),
    "same": _World(100, 0.0),
    "worse": _World(0, 0.0),
    "failing": _World(900, 0.6),
}


class Experiments(RuleBasedStateMachine):
    """People, traffic, time and restarts against a controller on a real SQLite store."""

    empty_store: ClassVar[Path | None] = None

    @override
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kvscope-states-"))
        self.now, self.number, self.names = 1_000.0, 0, 0
        self.rng = random.Random(0)
        self.started_at: dict[str, float] = {}

    @initialize()
    def open(self) -> None:
        file = self.folder / "kvscope.db"
        if Experiments.empty_store is None:
            kept = Path(tempfile.mkdtemp(prefix="kvscope-states-")) / "empty.db"
            open_store(f"sqlite:///{kept}", upgrade=True).close()
            Experiments.empty_store = kept
        shutil.copy(Experiments.empty_store, file)
        self.store: Store = open_store(f"sqlite:///{file}")
        self.begin()

    def begin(self) -> None:
        self.policy = LivePolicy()
        self.controller = Controller(
            experiments=self.store.experiments,
            reader=self.store.reader,
            advice=self.store.advice,
            policy=self.policy,
            clock=lambda: self.now,
        )
        self.controller.step()

    @precondition(lambda self: self.names < _MOST_EXPERIMENTS)
    @rule(
        route=st.sampled_from(_ROUTES),
        kind=st.sampled_from(_KINDS),
        share=st.sampled_from([0.2, 0.5]),
        max_seconds=st.sampled_from([100.0, 1e6]),
        start=st.sampled_from([True, True, False]),
    )
    def create(self, route: str, kind: str, share: float, max_seconds: float, start: bool) -> None:
        self.names += 1
        draft = from_suggestion(
            _suggestion(route, kind),
            name=f"e{self.names}",
            now=self.now,
            share=share,
            max_seconds=max_seconds,
            min_units=12,
        )
        self.store.experiments.create(draft)
        if start:
            self._add(draft, IntentAction.START, {})
            self.controller.step()

    def _add(self, experiment: Experiment, action: IntentAction, params: dict[str, Any]) -> int:
        return self.store.experiments.add_intent(
            Intent(
                id=None, experiment=experiment.id, action=action, actor="person", at=self.now, params=params
            )
        )

    def _some(self, data: st.DataObject) -> Experiment:
        return data.draw(st.sampled_from(self.store.experiments.list()))

    @precondition(lambda self: self.names)
    @rule(data=st.data(), intents=st.lists(_INTENTS, min_size=1, max_size=3))
    def ask(self, data: st.DataObject, intents: list[tuple[IntentAction, dict[str, Any]]]) -> None:
        numbers = [self._add(self._some(data), action, params) for action, params in intents]
        self.now += 1
        self.controller.step()
        for number in numbers:
            outcome = self.store.experiments.intent(number).outcome
            assert outcome is not None
            assert outcome.startswith(("done: ", "refused: "))

    def _running(self) -> list[Experiment]:
        return [e for e in self.store.experiments.list() if e.state is ExperimentState.RUNNING]

    @precondition(lambda self: self._running())
    @rule(data=st.data(), world=st.sampled_from(sorted(_WORLDS)), count=st.sampled_from([10, 200, 200]))
    def serve(self, data: st.DataObject, world: str, count: int) -> None:
        route = data.draw(st.sampled_from(self._running())).route
        parts = []
        for _ in range(count):
            self.number += 1
            self.now += 0.1
            session = f"s{self.rng.randrange(90)}"
            decision = self.policy.decide(
                route=route, session=session, request_id=f"q{self.number}", at=self.now
            )
            fares = _WORLDS[world if decision.arm == "treatment" else "same"]
            values = {
                "session": session,
                "route": route,
                "arrived_at": self.now,
                "status": Status.ERROR if self.rng.random() < fares.error_rate else Status.OK,
                "prompt_tokens": 1000,
                "cached_tokens": fares.cached_tokens + self.rng.randrange(32),
                "ttft_seconds": self.rng.lognormvariate(-2, 0.3),
                "experiment": decision.experiment,
                "arm": decision.arm,
                "warmup": decision.warmup,
            }
            parts.append(RequestPart(request_id=f"q{self.number}", source=Source.GATEWAY, values=values))
        self.store.batches.write([Batch(parts=parts)])
        self.now += 10
        self.controller.step()

    @rule(seconds=st.sampled_from([1.0, 200.0]), restart=st.booleans())
    def wait(self, seconds: float, restart: bool) -> None:
        self.now += seconds
        if restart:
            self.begin()
        else:
            self.controller.step()

    @invariant()
    def no_illegal_transition(self) -> None:
        for experiment in self.store.experiments.list():
            state = ExperimentState.DRAFT
            for row in self.store.experiments.history(experiment.id):
                assert row.state in _LEGAL[state], f"{state} -> {row.state}: {row.reason}"
                assert row.reason
                state = row.state
            assert experiment.state is state
            assert (experiment.started_at is not None) == any(
                row.state is ExperimentState.RUNNING for row in self.store.experiments.history(experiment.id)
            )
            if experiment.started_at is not None:
                kept = self.started_at.setdefault(experiment.id, experiment.started_at)
                assert experiment.started_at == kept
            if state is ExperimentState.DECIDED:
                assert experiment.verdict is not None
            if state in (ExperimentState.DRAFT, ExperimentState.RUNNING):
                assert experiment.verdict is None

    @invariant()
    def one_experiment_a_route_and_the_traffic_obeys(self) -> None:
        policies = {policy.route: policy for policy in self.store.advice.policies()}
        for route in _ROUTES:
            running = [
                experiment
                for experiment in self.store.experiments.list()
                if experiment.route == route and experiment.state is ExperimentState.RUNNING
            ]
            assert len(running) <= 1
            decision = self.policy.decide(route=route, session="probe", request_id="probe", at=self.now)
            in_force = policies[route].transforms if route in policies else ()
            if not running:
                assert decision == Decision(transforms=in_force)
                continue
            (experiment,) = running
            assert decision.experiment == experiment.id
            assert experiment.baseline.transforms == in_force
            arm = next(arm for arm in experiment.arms if arm.name == decision.arm)
            assert decision.transforms == arm.transforms

    @invariant()
    def only_a_promoted_treatment_is_in_force(self) -> None:
        experiments = {experiment.id: experiment for experiment in self.store.experiments.list()}
        for policy in self.store.advice.policies():
            if policy.experiment is not None:
                promoted = experiments[policy.experiment]
                assert policy.transforms == promoted.treatment.transforms
                assert promoted.started_at is not None
                assert promoted.verdict is not Verdict.DROP or policy.actor == "person"
            assert policy.actor == "person"

    @override
    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


TestExperiments = Experiments.TestCase
TestExperiments.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
