"""Mined routes, live: what real prompts with noise in them share is found from hashes alone."""

import gzip
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from kvscope.prompts.mining import live
from kvscope.prompts.mining.live import LiveText, RouteSamples, mined_routes
from kvscope.prompts.segments import Segment, segments
from kvscope.prompts.transforms import apply_transforms
from kvscope.prompts.values import ValueKind, line_key_hash

DATA = Path(__file__).parents[2] / "data" / "prompts" / "routes.json.gz"
NOISE = 0.1
HEAD = "You are the assistant of an application.\nIt is "


@pytest.fixture(scope="module")
def texts() -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(DATA.read_bytes())))


def _body(system: str, user: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]}


def _parts(system: str, user: str = "Hi") -> tuple[Segment, ...]:
    return segments("chat", _body(system, user))


def test_a_tenth_of_noise_hides_neither_what_stays_nor_what_varies(texts: dict[str, Any]) -> None:
    rng = random.Random(3)
    words = [word for text in texts["talk"] for word in text.split()]
    doc = texts["apis"]["math_api"]
    samples = RouteSamples()
    for minute in range(40):
        system = f"{HEAD}2026-11-29T10:{minute:02}:00Z\nFunctions:\n{doc}"
        noisy = " ".join(rng.choice(words) if rng.random() < NOISE else word for word in system.split(" "))
        samples.add("math", _parts(noisy, rng.choice(texts["talk"])))
    (route,) = mined_routes(samples.samples())
    system_text, user_text = route.texts
    assert (route.requests, system_text.role, user_text.role) == (40, "system", "user")
    clock = "It is 2026-11-29T10:00:00Z"  # the label of its line
    assert [piece.static for piece in system_text.pieces] == [True, False, True]
    assert system_text.prefix_chars == len(HEAD)
    assert system_text.static_chars == len(f"{HEAD}\nFunctions:\n{doc}")
    place = system_text.pieces[1]
    assert (place.value_kind, place.line_keys) == (ValueKind.TIMESTAMP, (line_key_hash(clock),))
    assert user_text.static_chars < 100
    assert user_text.change is None


def test_the_change_moves_what_varies_behind_what_stays() -> None:
    samples = RouteSamples()
    systems = [f"Rules:\nBe kind.\nRequest id: {number * 7919:08x}\nNever lie.\n" for number in range(8)]
    for system in systems:
        samples.add("r", _parts(system))
    (route,) = mined_routes(samples.samples())
    change = route.texts[0].change
    assert change is not None
    changed = [apply_transforms([change], "chat", _body(system, "Hi")) for system in systems]
    assert {body["messages"][0]["content"] for body in changed} == {"Rules:\nBe kind.\nNever lie.\n"}
    assert changed[1]["messages"][1]["content"] == "Hi\n\nRequest id: 00001eef"
    # where it has been made, nothing is left to move
    again = RouteSamples()
    for body in changed:
        again.add("r", segments("chat", body))
    (after,) = mined_routes(again.samples())
    assert [text.change for text in after.texts] == [None, None]


def test_a_static_line_next_to_one_that_varies_is_not_moved() -> None:
    samples = RouteSamples()
    for number in range(8):
        samples.add("r", _parts(f"User: {'a b ' * number}\nFunctions:\nlook up\n"))
    (route,) = mined_routes(samples.samples())
    assert {key for piece in route.texts[0].pieces for key in piece.line_keys} == {line_key_hash("User: x")}


def test_memory_is_bounded_and_holds_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_MOST_BYTES", 40_000)
    samples = RouteSamples()
    for number in range(400):
        samples.add(f"route {number % 20}", _parts("secretword " * 100, f"\n{number}" * 50))
    kept = samples.samples()
    assert samples._kept <= 40_000
    assert 0 < len(kept) < 20
    assert b"secretword" not in pickle.dumps(kept)


def test_texts_of_roles_that_change_places_are_not_mixed() -> None:
    samples = RouteSamples()
    for number in range(12):
        head = ({"role": "system", "content": "Be kind to all."},) if number % 3 else ()
        body = {"messages": [*head, {"role": "user", "content": f"What is {number}?"}]}
        samples.add("r", segments("chat", body))
    (route,) = mined_routes(samples.samples())
    found: list[LiveText] = list(route.texts)
    assert [(text.role, text.prompts) for text in found] == [("system", 8), ("user", 8)]
    assert found[0].static_chars == len("Be kind to all.")


def test_routes_with_too_few_requests_are_not_told() -> None:
    samples = RouteSamples()
    for _ in range(live.FEWEST_SAMPLES - 1):
        samples.add("r", _parts("Be kind."))
    assert mined_routes(samples.samples()) == []
