import dataclasses
import sys
import threading
from collections.abc import Callable

from kvscope.experiments.policy import LivePolicy
from kvscope.model.advice import Experiment, RoutePolicy, Unit
from kvscope.model.prompt import TransformSpec
from kvscope.pipeline.contracts import UNCHANGED, Decision

MakeExperiment = Callable[..., Experiment]
SORT = TransformSpec(kind="sort_tools")
SPACES = TransformSpec(kind="normalize_whitespace")


def _policy(*transforms: TransformSpec, route: str = "agent") -> RoutePolicy:
    return RoutePolicy(route=route, transforms=transforms, experiment=None, actor="me", since_at=1.0)


def _decide(policy: LivePolicy, n: int = 0, *, route: str = "agent", at: float = 1000.0) -> Decision:
    return policy.decide(route=route, session=f"s{n}", request_id=f"r{n}", at=at)


def _by_arm(policy: LivePolicy, count: int = 40) -> dict[str | None, list[Decision]]:
    found: dict[str | None, list[Decision]] = {}
    for n in range(count):
        decision = _decide(policy, n)
        found.setdefault(decision.arm, []).append(decision)
    return found


def test_nothing_is_changed_where_nothing_is_said() -> None:
    assert _decide(LivePolicy()) is UNCHANGED


def test_a_policy_applies_to_its_route_alone() -> None:
    policy = LivePolicy()
    policy.replace([], [_policy(SPACES)])
    assert _decide(policy) == Decision(transforms=(SPACES,))
    assert _decide(policy, route="chat") is UNCHANGED


def test_an_experiments_arm_wins_and_its_baseline_keeps_what_is_in_force(
    make_experiment: MakeExperiment,
) -> None:
    policy, experiment = LivePolicy(), make_experiment()
    policy.replace([experiment], [_policy(SPACES)])
    arms = _by_arm(policy)
    assert all(decision.transforms == (SPACES,) for decision in arms["baseline"])
    assert all(decision.transforms == (SORT,) for decision in arms["treatment"])
    assert {decision.experiment for found in arms.values() for decision in found} == {experiment.id}


def test_the_first_requests_of_each_arm_are_marked(make_experiment: MakeExperiment) -> None:
    policy = LivePolicy()
    experiment = make_experiment(warmup_requests=3)
    policy.replace([experiment], [])
    for found in _by_arm(policy).values():
        assert [decision.warmup for decision in found] == [True] * 3 + [False] * (len(found) - 3)
    # the agent replaces once a second: an arm that is warm stays warm
    policy.replace([experiment], [])
    assert {decision.warmup for found in _by_arm(policy).values() for decision in found} == {False}


def test_a_restart_goes_on_where_the_arm_was(make_experiment: MakeExperiment) -> None:
    policy, experiment = LivePolicy(), make_experiment(warmup_requests=3)
    policy.replace([experiment], [], served={(experiment.id, "treatment"): 2})
    arms = _by_arm(policy)
    assert [decision.warmup for decision in arms["treatment"]][:3] == [True, False, False]
    assert [decision.warmup for decision in arms["baseline"]][:4] == [True, True, True, False]


def test_each_time_slice_warms_anew(make_experiment: MakeExperiment) -> None:
    experiment = dataclasses.replace(
        make_experiment(unit=Unit.TIME_SLICE, slice_seconds=10.0, warmup_requests=1), started_at=1000.0
    )
    policy = LivePolicy()
    policy.replace([experiment], [])
    marks = [_decide(policy, n, at=1000.0 + n).warmup for n in range(400)]
    assert [n for n, mark in enumerate(marks) if mark] == list(range(0, 400, 10))


def test_a_withdrawn_experiment_is_gone_at_once(make_experiment: MakeExperiment) -> None:
    policy, experiment = LivePolicy(), make_experiment()
    policy.replace([experiment], [_policy(SPACES)])
    policy.withdraw(experiment.id)
    assert [_decide(policy, n) for n in range(20)] == [Decision(transforms=(SPACES,))] * 20


def test_decisions_beside_replacements_are_of_one_snapshot_and_count_warmups_exactly(
    make_experiment: MakeExperiment,
) -> None:
    experiment = make_experiment(warmup_requests=50)
    policy = LivePolicy()
    policy.replace([experiment], [])
    found: list[Decision] = []
    done = threading.Event()

    def replace() -> None:
        while not done.is_set():
            policy.replace([experiment], [_policy(SPACES)])
            policy.replace([experiment], [])

    def decide(worker: int) -> None:
        found.extend(_decide(policy, worker * 1000 + n) for n in range(1000))

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        replacing = threading.Thread(target=replace)
        deciding = [threading.Thread(target=decide, args=(worker,)) for worker in range(3)]
        for thread in (replacing, *deciding):
            thread.start()
        for thread in deciding:
            thread.join()
        done.set()
        replacing.join()
    finally:
        sys.setswitchinterval(switch)
    assert len(found) == 3000
    assert sum(bool(decision.warmup) for decision in found) == 100
    assert all(decision.transforms in ((), (SPACES,), (SORT,)) for decision in found)
    assert {decision.arm for decision in found if decision.transforms == (SORT,)} == {"treatment"}
