"""The made-up traffic: the same for a seed, of the same mix in every phase, with its two planted faults."""

import collections
import re

from kvscope.demo.workload import (
    REQUESTS_PER_ROUND,
    ROUTE_HEADER,
    SESSION_HEADER,
    SESSIONS_PER_ROUND,
    TUNED_ROUTE,
    Call,
    Workload,
)


def _calls(seed: int, phase: str, rounds: int = 2) -> list[tuple[str, Call]]:
    workload = Workload(seed=seed, phase=phase)
    calls: list[tuple[str, Call]] = []
    for session in workload.sessions(rounds):
        for turn in range(len(session.turns)):
            calls.append((session.route, workload.call(session, turn, ["yes"] * turn, sent=len(calls))))
    return calls


def test_a_seed_and_a_phase_give_the_same_traffic() -> None:
    assert _calls(1, "before") == _calls(1, "before")
    assert _calls(1, "before") != _calls(1, "after")
    assert _calls(1, "before") != _calls(2, "before")


def test_every_phase_has_the_same_mix() -> None:
    def mix(phase: str) -> collections.Counter[tuple[str, int]]:
        return collections.Counter(
            (session.route, len(session.turns)) for session in Workload(seed=1, phase=phase).sessions(3)
        )

    assert mix("before") == mix("after")
    assert mix("before").total() == 3 * SESSIONS_PER_ROUND
    assert len(_calls(1, "before", rounds=3)) == 3 * REQUESTS_PER_ROUND


def test_no_session_is_seen_in_two_phases() -> None:
    ids = [{session.id for session in Workload(seed=1, phase=p).sessions(4)} for p in ("before", "after")]
    assert not ids[0] & ids[1]


def test_support_differs_in_its_first_two_lines_alone() -> None:
    systems = [call.body["messages"][0]["content"] for route, call in _calls(1, "x") if route == TUNED_ROUTE]
    heads = {tuple(text.split("\n", 2)[:2]) for text in systems}
    assert len(heads) == len(systems)
    assert len({text.split("\n", 2)[2] for text in systems}) == 1
    for clock, request in heads:
        assert re.fullmatch(r"Current time: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", clock)
        assert re.fullmatch(r"Request id: [0-9a-f-]{36}", request)


def test_agent_has_the_same_tools_in_other_orders() -> None:
    orders = [
        tuple(tool["function"]["name"] for tool in call.body["tools"])
        for route, call in _calls(1, "x")
        if route == "agent"
    ]
    assert len(set(orders)) == len(orders)
    assert len({frozenset(order) for order in orders}) == 1
    assert 8 <= len(orders[0]) <= 12


def test_most_name_their_route_and_all_their_session() -> None:
    for route, call in _calls(1, "x"):
        assert call.headers.get(ROUTE_HEADER) == (None if route == "search" else route)
        assert call.headers[SESSION_HEADER]


def test_a_conversation_repeats_its_past_word_for_word() -> None:
    workload = Workload(seed=1, phase="x")
    session = next(session for session in workload.sessions(1) if session.route == "chat")
    first = workload.call(session, 0, [], sent=0).body["messages"]
    second = workload.call(session, 1, ["the answer"], sent=9).body["messages"]
    assert second[: len(first)] == first
    assert second[len(first)] == {"role": "assistant", "content": "the answer"}
