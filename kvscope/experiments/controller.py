"""The one that acts on experiments: carries out intents, looks, rolls back, decides."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from kvscope.clock import Clock
from kvscope.experiments.intents import IntentHandler
from kvscope.experiments.looks import breaches, make_look
from kvscope.experiments.policy import LivePolicy
from kvscope.model.advice import Experiment, ExperimentState, Intent, Look, Transition, Verdict
from kvscope.model.request import RequestRecord
from kvscope.store.advice import AdviceStore
from kvscope.store.experiments import ExperimentStore
from kvscope.store.reader import Reader

ACTOR = "controller"

_T = TypeVar("_T", Intent, Experiment)

_COST_FACTOR = 20.0  # a look may take a twentieth of the time, however many records there are


@dataclasses.dataclass(slots=True)
class _Watch:
    """When an experiment was looked at last, what that cost, and what there was to see."""

    at: float = float("-inf")
    cost_seconds: float = 0.0
    seen: tuple[int, ...] = (0, 0, 0, 0)


class Controller:
    """Brings what runs in line with what the store says, once each ``step``.

    Everything is worked out from the store, so a restart loses nothing and a second controller on the
    same store would come to the same decisions. ``step`` is called from one thread at a time.
    """

    def __init__(
        self,
        *,
        experiments: ExperimentStore,
        reader: Reader,
        advice: AdviceStore,
        policy: LivePolicy,
        clock: Clock,
        look_seconds: float = 5.0,
    ) -> None:
        self._experiments = experiments
        self._reader = reader
        self._advice = advice
        self._policy = policy
        self._clock = clock
        self._look_seconds = look_seconds
        self._intents = IntentHandler(experiments, advice)
        self._watches: dict[str, _Watch] = {}
        self._rolled_back: set[str] = set()

    def step(self) -> None:
        """Carry out pending intents, put the store's state in force, look at what runs and act on it.

        A fault with one intent or experiment does not keep the others from their turn: the first fault is
        raised at the end, and what failed is tried again with the next step. Raises ``UnreachableError``
        when the store is away; traffic then goes on as it was last told.
        """
        faults: list[Exception] = []
        for intent in self._experiments.pending_intents():
            self._guarded(faults, self._carry_out, intent)
        running = self._refresh()
        acted = [self._guarded(faults, self._watch, experiment) for experiment in running]
        if any(acted):
            self._refresh()
        if faults:
            raise faults[0]

    def _guarded(self, faults: list[Exception], act: Callable[[_T], bool], what: _T) -> bool:
        try:
            return act(what)
        except Exception as fault:  # noqa: BLE001 - raised by step, when all others have had their turn
            faults.append(fault)
            return False

    def _carry_out(self, intent: Intent) -> bool:
        outcome = self._intents.act(intent, now=self._clock())
        if intent.id is not None:
            self._experiments.close_intent(intent.id, outcome)
        return True

    def _refresh(self) -> list[Experiment]:
        """Put running experiments and policies in force and return the former."""
        running = [
            experiment
            for experiment in self._experiments.list()
            if experiment.state is ExperimentState.RUNNING
        ]
        served: dict[tuple[str, str], int] = {}
        for experiment in running:
            if experiment.id not in self._watches:
                records = self._reader.requests(experiment=experiment.id)
                counts = Counter(record.arm for record in records if record.arm is not None)
                served |= {(experiment.id, arm): count for arm, count in counts.items()}
        self._policy.replace(
            (experiment for experiment in running if experiment.id not in self._rolled_back),
            self._advice.policies(),
            served=served,
        )
        self._watches = {
            experiment.id: self._watches.get(experiment.id) or _Watch() for experiment in running
        }
        self._rolled_back &= self._watches.keys()
        return running

    def _watch(self, experiment: Experiment) -> bool:
        """Look at a running experiment if it is time; return whether its state has changed."""
        watch, now = self._watches[experiment.id], self._clock()
        expired = now - (experiment.started_at or now) >= experiment.max_seconds
        pause = max(self._look_seconds, _COST_FACTOR * watch.cost_seconds)
        if now - watch.at < pause and not expired:
            return False
        began = time.perf_counter()
        records = self._reader.requests(experiment=experiment.id)
        seen = _what_is_there(records)
        if seen == watch.seen and not expired:
            watch.at = now
            return False
        since_at = self._shares_set_at(experiment)
        look = make_look(experiment, records, now=now, since_at=since_at)
        acted = self._act(experiment, look, expired=expired)
        watch.at, watch.seen, watch.cost_seconds = now, seen, time.perf_counter() - began
        return acted

    def _act(self, experiment: Experiment, look: Look, *, expired: bool) -> bool:
        if breached := breaches(look):
            # traffic first, the store after: a rollback must not wait for a slow database
            self._rolled_back.add(experiment.id)
            self._policy.withdraw(experiment.id)
            self._experiments.add_look(look)
            self._move(experiment, ExperimentState.STOPPED, look, "; ".join(breached), None)
            return True
        self._experiments.add_look(look)
        if look.verdict is not Verdict.UNDECIDED:
            self._move(experiment, ExperimentState.DECIDED, look, look.reasons[0], look.verdict)
            return True
        if expired:
            reason = f"{experiment.max_seconds:g} s have passed without a verdict"
            self._move(experiment, ExperimentState.DECIDED, look, reason, Verdict.UNDECIDED)
            return True
        return False

    def _move(
        self, experiment: Experiment, state: ExperimentState, look: Look, reason: str, verdict: Verdict | None
    ) -> None:
        self._experiments.transition(
            Transition(experiment=experiment.id, at=look.at, state=state, actor=ACTOR, reason=reason),
            verdict=verdict,
        )

    def _shares_set_at(self, experiment: Experiment) -> float | None:
        """Return when the experiment was started or last ramped."""
        running = [
            row.at for row in self._experiments.history(experiment.id) if row.state is ExperimentState.RUNNING
        ]
        return running[-1] if running else None


def _what_is_there(records: Sequence[RequestRecord]) -> tuple[int, ...]:
    """Return counts that change when requests come or their late parts do."""
    return (
        len(records),
        sum(record.status is not None for record in records),
        sum(record.cached_tokens is not None for record in records),
        sum(record.ttft_seconds is not None for record in records),
    )
