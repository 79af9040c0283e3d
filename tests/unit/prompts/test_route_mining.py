"""Mined routes on real prompts whose routes are known, a tenth of it noise."""

import gzip
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvscope.prompts.routes import RouteMiner

DATA = Path(__file__).parents[2] / "data" / "prompts" / "routes.json.gz"
NOISE = 0.1

Labelled = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def texts() -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(DATA.read_bytes())))


def _chat(*messages: tuple[str, str]) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": role, "content": text} for role, text in messages]}


def _noisy(rng: random.Random, text: str, words: list[str]) -> str:
    return " ".join(rng.choice(words) if rng.random() < NOISE else word for word in text.split(" "))


def _traffic(rng: random.Random, texts: dict[str, Any]) -> list[Labelled]:
    """Return requests in random order: one of ten is no route's, one of ten words of each is wrong."""
    words = [word for text in texts["talk"] for word in text.split()]
    requests: list[Labelled] = []
    for name, doc in texts["apis"].items():
        for minute in range(30):
            notes = rng.choice(texts["talk"])[: rng.randint(40, 600)]
            system = (
                f"You are the assistant of an application.\nIt is 2026-11-29T10:{minute:02}:00Z\n"
                f"Notes on the customer: {notes}\nFunctions:\n{doc}"
            )
            question = ("user", rng.choice(texts["talk"]))
            requests.append((name, _chat(("system", _noisy(rng, system, words)), question)))
    requests += [("task", _chat(("user", _noisy(rng, text, words)))) for text in texts["tasks"] * 3]
    requests += [("talk", _chat(("user", text))) for text in texts["talk"]]
    for _ in range(len(requests) // 10):
        junk = " ".join(rng.choices(words, k=200))
        requests.append(("noise", _chat(("system", junk), ("user", "Hi"))))
    rng.shuffle(requests)
    return requests


def _routes(requests: list[Labelled]) -> Iterator[tuple[str, str]]:
    miner = RouteMiner()
    for label, body in requests:
        yield label, miner.route("chat", body, None)


@pytest.mark.parametrize("seed", range(3))
def test_routes_are_pure_and_complete_under_noise(texts: dict[str, Any], seed: int) -> None:
    found = list(_routes(_traffic(random.Random(seed), texts)))
    learned = found[len(found) // 4 :]
    by_route: defaultdict[str, Counter[str]] = defaultdict(Counter)
    by_label: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for label, route in learned:
        by_route[route][label] += 1
        by_label[label][route] += 1
    pure = sum(labels.most_common(1)[0][1] for labels in by_route.values())
    assert pure / len(learned) >= 0.97
    for label in texts["apis"]:
        routes = by_label[label]
        assert routes.most_common(1)[0][1] / routes.total() >= 0.9, (label, routes)
    assert by_label["task"].most_common(1)[0][1] / by_label["task"].total() >= 0.8
    # what people type without a template is no route of its own for each of them
    assert by_label["talk"].most_common(1)[0][1] / by_label["talk"].total() >= 0.9


def test_the_same_traffic_in_another_order_gives_the_same_names(texts: dict[str, Any]) -> None:
    """So that experiments and policies find their routes again after a restart and in a replica."""
    bodies = {
        name: _chat(("system", f"You help with {name}.\nCustomer: {who}\n{doc}"), ("user", "Hi"))
        for name, doc in texts["apis"].items()
        for who in ("Ann", "Bob")
    }
    forward, backward = RouteMiner(), RouteMiner()
    names = {name: forward.route("chat", body, None) for name, body in bodies.items()}
    for name, body in reversed(bodies.items()):
        assert backward.route("chat", body, None) == names[name]
    assert len(set(names.values())) == len(bodies)


def test_free_text_in_the_system_message_splits_no_route(texts: dict[str, Any]) -> None:
    miner = RouteMiner()
    doc = texts["apis"]["message_api"]
    routes = {
        miner.route("chat", _chat(("system", f"You help.\n{talk[:800]}\n{doc}"), ("user", "Hi")), None)
        for talk in texts["talk"]
    }
    assert len(routes) == 1


def test_memory_is_bounded_and_holds_no_text(texts: dict[str, Any]) -> None:
    miner = RouteMiner()
    rng = random.Random(1)
    words = [word for text in texts["talk"] for word in text.split()]
    for number in range(600):
        system = " ".join(rng.choices(words, k=40)) + f" secret-{number}"
        miner.route("chat", {**_chat(("system", system)), "model": f"m{number % 80}"}, None)
    assert len(miner._groups) == 64
    assert all(len(group._instructed) <= 256 for group in miner._groups.values())
    assert "secret" not in repr(list(_reachable(miner)))


def test_prompts_that_are_all_different_leave_room_for_a_route_that_comes_later(
    texts: dict[str, Any],
) -> None:
    miner = RouteMiner()
    rng = random.Random(2)
    words = [word for text in texts["talk"] for word in text.split()]
    for _ in range(400):
        miner.route("chat", _chat(("system", " ".join(rng.choices(words, k=30)))), None)
    later = [
        _chat(("system", f"Notes: {talk[:200]}\n{texts['apis']['ticket_api']}")) for talk in texts["talk"]
    ]
    assert len({miner.route("chat", body, None) for body in later}) == 1
    assert len(miner._groups["chat", "m"]._instructed) == 256


def _reachable(start: object) -> Iterator[object]:
    """Yield everything that the miner holds, but for its class and code."""
    todo, seen = [start], set()
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, str | int | float):
            yield value
        elif isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            todo += value
        elif type(value).__module__.startswith("kvscope."):
            slots = getattr(type(value), "__slots__", ())
            todo += [getattr(value, name) for name in (*slots, *getattr(value, "__dict__", ()))]
