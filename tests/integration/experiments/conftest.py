"""A loop without engines: a policy, a controller, and traffic that obeys the policy, on a real store."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from kvscope.experiments.controller import Controller
from kvscope.experiments.design import from_suggestion
from kvscope.experiments.policy import LivePolicy
from kvscope.model.advice import Experiment, Intent, IntentAction, Suggestion
from kvscope.model.prompt import Risk
from kvscope.model.request import RequestPart, Source, Status
from kvscope.pipeline.contracts import Batch
from kvscope.store.database import Store

Values = Callable[[str | None], dict[str, Any]]


def suggestion(route: str = "agent", kind: str = "sort_tools") -> Suggestion:
    return Suggestion(
        id=f"{kind}-{route}",
        kind=kind,
        route=route,
        risk=Risk.SAFE,
        evidence={},
        hit_rate_before=0.1,
        hit_rate_after=0.9,
        ttft_change_seconds=None,
        tokens_saved_per_day=1e6,
        change={"transforms": [{"kind": kind, "params": {}}]},
        created_at=1.0,
    )


@dataclasses.dataclass
class Loop:
    """What the agent has, with a clock that the test moves."""

    store: Store
    now: float = 1_000.0
    number: int = 0
    rng: random.Random = dataclasses.field(default_factory=lambda: random.Random(3))

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin anew with nothing but the store."""
        self.policy = LivePolicy()
        self.controller = Controller(
            experiments=self.store.experiments,
            reader=self.store.reader,
            advice=self.store.advice,
            policy=self.policy,
            clock=lambda: self.now,
        )

    def plan(self, name: str = "sorted", *, route: str = "agent", **choices: Any) -> Experiment:
        kind = choices.pop("kind", "sort_tools")
        draft = from_suggestion(suggestion(route, kind), name=name, now=self.now, **choices)
        self.store.experiments.create(draft)
        return draft

    def ask(self, experiment: Experiment, action: IntentAction, **params: Any) -> str:
        """Write an intent, let the controller act, return the outcome."""
        number = self.store.experiments.add_intent(
            Intent(
                id=None, experiment=experiment.id, action=action, actor="tester", at=self.now, params=params
            )
        )
        self.controller.step()
        outcome = self.store.experiments.intent(number).outcome
        assert outcome is not None
        return outcome

    def serve(self, count: int, values: Values, *, route: str = "agent", sessions: int = 60) -> None:
        """Send requests, one in half a second, from so many sessions; ``values`` by arm."""
        parts = []
        for _ in range(count):
            self.number += 1
            self.now += 0.5
            session, request = f"s{self.rng.randrange(sessions)}", f"q{self.number}"
            decision = self.policy.decide(route=route, session=session, request_id=request, at=self.now)
            told = {
                "session": session,
                "route": route,
                "arrived_at": self.now,
                "status": Status.OK,
                "prompt_tokens": 1000,
                "cached_tokens": self.rng.randrange(100, 132),
                "output_tokens": 16,
                "ttft_seconds": 0.2 * self.rng.lognormvariate(0, 0.3),
                "experiment": decision.experiment,
                "arm": decision.arm,
                "warmup": decision.warmup,
            }
            parts.append(
                RequestPart(
                    request_id=request, source=Source.GATEWAY, values={**told, **values(decision.arm)}
                )
            )
        self.store.batches.write([Batch(parts=parts)])

    def get(self, experiment: Experiment) -> Experiment:
        return self.store.experiments.get(experiment.id)


@pytest.fixture
def loop(store: Store) -> Loop:
    """The loop, on each dialect in turn."""
    return Loop(store)


@pytest.fixture
def sqlite_loop(sqlite_store: Store) -> Loop:
    return Loop(sqlite_store)
