"""What the gateway asks for each request: an immutable snapshot that is replaced as a whole."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvscope.experiments.assignment import arm_by_share, arm_of_slice, slice_at, unit_key
from kvscope.model.advice import Arm, Experiment, RoutePolicy, Unit
from kvscope.model.prompt import TransformSpec
from kvscope.pipeline.contracts import UNCHANGED, Decision
from kvscope.prompts.salts import arm_salt

_Key = tuple[str, str, int]  # experiment, arm, time slice (0 for sessions)
_KEPT_SLICES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Choices:
    """The two decisions of one arm, made ahead so that no request pays for them."""

    warming: Decision
    warm: Decision


@dataclasses.dataclass(frozen=True, slots=True)
class _Trial:
    experiment: Experiment
    choices: Mapping[str, _Choices]  # by arm


@dataclasses.dataclass(frozen=True, slots=True)
class _Snapshot:
    trials: Mapping[str, _Trial]  # by route
    in_force: Mapping[str, Decision]  # by route


class LivePolicy:
    """Decides by the running experiments and, elsewhere, by the policies in force.

    An experiment's arm wins over the route's policy. Baseline means "what is in force": on a route that
    has a policy the baseline arm keeps the policy's transforms, whatever the arm itself declares.
    The first ``warmup_requests`` of each arm (of each time slice in a switchback, where the arm before
    has left its own blocks) are marked. ``decide`` takes no lock and may run beside ``replace``.
    """

    def __init__(self) -> None:
        self._snapshot = _Snapshot({}, {})
        self._served: dict[_Key, Iterator[int]] = {}

    def replace(
        self,
        experiments: Iterable[Experiment],
        policies: Iterable[RoutePolicy],
        *,
        served: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        """Put these running experiments and policies in force, all at once.

        ``served`` tells how many requests each (experiment, arm) has had already, so that a restart
        marks no second warm-up; it counts only for arms that this policy has not served itself.
        """
        in_force = {policy.route: policy.transforms for policy in policies}
        trials = {
            experiment.route: _trial(experiment, in_force.get(experiment.route)) for experiment in experiments
        }
        for (experiment_id, arm), count in (served or {}).items():
            self._served.setdefault((experiment_id, arm, 0), itertools.count(count))
        kept = {trial.experiment.id for trial in trials.values()}
        for key in [key for key in tuple(self._served) if key[0] not in kept]:
            del self._served[key]
        self._snapshot = _Snapshot(
            trials,
            {route: Decision(transforms=transforms) for route, transforms in in_force.items()},
        )

    def withdraw(self, experiment_id: str) -> None:
        """End an experiment at once, without asking anybody: its route is back to what is in force."""
        now = self._snapshot
        kept = {route: trial for route, trial in now.trials.items() if trial.experiment.id != experiment_id}
        self._snapshot = _Snapshot(kept, now.in_force)

    def decide(
        self, *, route: str, session: str | None, request_id: str, at: float, tenant: str | None = None
    ) -> Decision:
        """Return the decision for one request of ``route``."""
        snapshot = self._snapshot
        trial = snapshot.trials.get(route)
        if trial is None:
            return snapshot.in_force.get(route, UNCHANGED)
        experiment = trial.experiment
        number = 0
        if experiment.unit is Unit.TIME_SLICE:
            number = slice_at(experiment, at)
            arm = arm_of_slice(experiment, number)
        else:
            key = unit_key(experiment.unit, session=session, tenant=tenant, request_id=request_id)
            arm = arm_by_share(experiment, key)
        choices = trial.choices[arm.name]
        if self._count((experiment.id, arm.name, number)) < experiment.warmup_requests:
            return choices.warming
        return choices.warm

    def _count(self, key: _Key) -> int:
        """Return how many requests ``key`` had before this one."""
        served = self._served.get(key)
        if served is None:
            # setdefault and next are atomic in CPython: threads that race share one counter
            served = self._served.setdefault(key, itertools.count())
            self._forget_slices(key)
        return next(served)

    def _forget_slices(self, key: _Key) -> None:
        for old in [old for old in tuple(self._served) if old[0] == key[0]]:
            if old[2] < key[2] - _KEPT_SLICES:
                self._served.pop(old, None)


def _trial(experiment: Experiment, in_force: Sequence[TransformSpec] | None) -> _Trial:
    return _Trial(experiment, {arm.name: _choices(experiment, arm, in_force) for arm in experiment.arms})


def _choices(experiment: Experiment, arm: Arm, in_force: Sequence[TransformSpec] | None) -> _Choices:
    transforms = in_force if arm.baseline and in_force is not None else arm.transforms
    warming = Decision(
        transforms=tuple(transforms),
        experiment=experiment.id,
        arm=arm.name,
        warmup=True,
        salt=arm_salt(experiment.id, arm.name) if arm.isolated else None,
        routing=arm.routing,
    )
    return _Choices(warming, dataclasses.replace(warming, warmup=False))
