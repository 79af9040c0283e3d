"""Arms: the same by ids and clock in every process; salts that keep blocks apart and can be undone."""

import dataclasses
import hashlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvscope.experiments.assignment import arm_for, slice_at
from kvscope.experiments.design import from_transforms
from kvscope.experiments.policy import LivePolicy
from kvscope.model.advice import Experiment, Unit
from kvscope.model.prompt import TransformSpec
from kvscope.prompts.salts import ArmSalt, arm_salt, taken_apart, with_arm_salt

IDS = st.text(max_size=20)
TIMES = st.floats(0, 1e6)
UNITS = st.sampled_from(Unit)


def _experiment(unit: Unit, share: float = 0.5, *, isolated: bool = False) -> Experiment:
    planned = from_transforms(
        (TransformSpec(kind="sort_tools"),),
        route="agent",
        name="e",
        now=5.0,
        unit=unit,
        share=share,
        isolated=isolated,
        slice_seconds=10.0,
    )
    return dataclasses.replace(planned, started_at=100.0)


@given(UNITS, IDS, IDS, st.tuples(IDS, IDS), TIMES)
def test_replicas_and_restarts_agree_on_the_arm(
    unit: Unit, session: str, tenant: str, requests: tuple[str, str], at: float
) -> None:
    experiment = _experiment(unit)
    named = [
        arm_for(experiment, session=session, tenant=tenant, request_id=request, at=at) for request in requests
    ]
    assert named[0] == named[1]
    for _ in range(2):
        policy = LivePolicy()
        policy.replace([experiment], [])
        decided = policy.decide(route="agent", session=session, tenant=tenant, request_id="r", at=at)
        assert decided.arm == named[0].name


@given(IDS, st.lists(IDS, min_size=2, max_size=5), TIMES)
def test_a_tenant_has_one_arm_whatever_its_sessions(tenant: str, sessions: list[str], at: float) -> None:
    experiment = _experiment(Unit.TENANT)
    arms = {
        arm_for(experiment, session=session, tenant=tenant, request_id=session, at=at).name
        for session in sessions
    }
    assert len(arms) == 1


@given(TIMES, st.floats(0, 1, exclude_max=True), IDS)
def test_one_slice_of_time_has_one_arm_and_its_pair_the_other(at: float, within: float, session: str) -> None:
    experiment = _experiment(Unit.TIME_SLICE)
    number = slice_at(experiment, at)
    start = 100.0 + number * 10.0
    inside = start + within * 9.99
    first = arm_for(experiment, session=session, request_id="r", at=start + 0.001)
    assert arm_for(experiment, session="other", request_id="s", at=inside + 0.001) == first
    partner = start + (10.001 if number % 2 == 0 else -9.999)
    assert arm_for(experiment, session=session, request_id="r", at=partner) != first


SALTS = st.none() | st.text(min_size=1, max_size=12) | st.text("ab:", min_size=60, max_size=128)
NAMES = st.text("ab:/%@é\\", min_size=1, max_size=4)  # each letter of these takes six characters at most


@given(NAMES, NAMES, SALTS)
def test_what_a_salt_was_made_of_can_be_told_from_it(experiment: str, arm: str, client: str | None) -> None:
    body: dict[str, Any] = {"messages": []} if client is None else {"messages": [], "cache_salt": client}
    salted = with_arm_salt(body, arm_salt(experiment, arm))
    apart = taken_apart(salted["cache_salt"])
    assert apart is not None
    if apart.shortened:
        assert client is not None
        client = hashlib.sha256(client.encode()).hexdigest()
        assert len(arm_salt(experiment, arm)) + len(client) > 64
    assert apart == ArmSalt(experiment, arm, client, apart.shortened)
    assert len(salted["cache_salt"]) <= 128
    assert {key: value for key, value in salted.items() if key != "cache_salt"} == {"messages": []}


@given(st.tuples(NAMES, NAMES, SALTS), st.tuples(NAMES, NAMES, SALTS))
def test_blocks_are_shared_where_arm_and_own_salt_are_the_same_and_nowhere_else(
    one: tuple[str, str, str | None], other: tuple[str, str, str | None]
) -> None:
    salts = [
        with_arm_salt({} if client is None else {"cache_salt": client}, arm_salt(experiment, arm))
        for experiment, arm, client in (one, other)
    ]
    assert (salts[0] == salts[1]) == (one == other)


@given(st.integers() | st.sampled_from(["", "x" * 129]) | st.lists(st.integers(), max_size=2))
def test_a_salt_that_the_engine_refuses_stays_as_it_is(salt: object) -> None:
    body = {"cache_salt": salt}
    assert with_arm_salt(body, "kvscope:e:a") is body


@given(st.text())
def test_a_clients_own_salt_is_no_arms(salt: str) -> None:
    apart = taken_apart(salt)
    assert apart is None or salt.startswith(("kvscope:", "kvscope-sha:"))


def test_isolated_arms_get_salts_and_others_none() -> None:
    for isolated in (False, True):
        policy = LivePolicy()
        experiment = _experiment(Unit.SESSION, isolated=isolated)
        policy.replace([experiment], [])
        decisions = [
            policy.decide(route="agent", session=f"s{number}", request_id="r", at=200.0)
            for number in range(40)
        ]
        assert {decision.arm: decision.salt for decision in decisions} == {
            name: f"kvscope:{experiment.id}:{name}" if isolated else None
            for name in ("baseline", "treatment")
        }
