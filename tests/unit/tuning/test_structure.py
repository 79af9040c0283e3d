"""What is learned of a route from its traffic alone."""

import math
import random
import time
from typing import Any

import pytest

from kvscope.prompts.values import line_key_hash
from kvscope.tuning.structure import learn
from tests.support import faults

LINE_FAULTS = [name for name, fault in faults.FAULTS.items() if fault.planted.line is not None]


@pytest.mark.parametrize("text", faults.TEXTS)
@pytest.mark.parametrize("name", LINE_FAULTS)
def test_a_volatile_line_is_found_with_its_place_and_kind(name: str, text: str) -> None:
    planted = faults.FAULTS[name].planted
    window = faults.window(name, text=text)
    (line,) = learn(window).lines
    assert planted.line is not None
    assert planted.prefix is not None
    assert line.key_hash == line_key_hash(planted.line)
    assert (line.place.role, line.place.message_index) == ("system", 0)
    assert str(line.place.value_kind) in planted.value_kinds
    starts = {each.body["messages"][0]["content"].index(planted.prefix) for each in window}
    assert line.place.char_start - len(planted.prefix) in starts
    values = {each.body["messages"][0]["content"].split(planted.prefix)[1].split("\n")[0] for each in window}
    assert line.place.char_end - line.place.char_start in {len(value) for value in values}
    assert (line.occurrences, line.distinct) == (len(window), len(values))
    assert not line.repeated


def test_entropy_of_values_is_shannons() -> None:
    (line,) = learn(faults.two_settings(requests=40)).lines
    assert (line.distinct, line.entropy_bits) == (2, 1.0)
    (clock,) = learn(faults.window("clock_first", requests=32)).lines
    assert math.isclose(clock.entropy_bits, 5.0)


@pytest.mark.parametrize(
    ("name", "varies"),
    [("shuffled_tools", "tool_order"), ("json_key_order", "tool_keys"), ("trailing_spaces", "whitespace")],
)
def test_a_changing_form_is_told_from_the_others(name: str, varies: str) -> None:
    structure = learn(faults.window(name))
    found = {form: getattr(structure, form) for form in ("tool_order", "tool_keys", "whitespace")}
    assert {form for form, variation in found.items() if variation is not None} == {varies}
    assert str(found[varies].place.value_kind) in faults.FAULTS[name].planted.value_kinds
    assert not structure.lines


def test_forms_are_found_beside_each_other() -> None:
    structure = learn(faults.window("clock_first", "shuffled_tools", "json_key_order", "trailing_spaces"))
    assert [str(line.place.value_kind) for line in structure.lines] == ["timestamp"]
    assert structure.tool_order
    assert structure.tool_order.canonical == 1
    assert structure.tool_keys
    assert structure.tool_keys.canonical == 6
    assert structure.whitespace


@pytest.mark.parametrize(
    "name", [name for name in faults.CLEAN if name not in {"two_settings", "shuffled_examples"}]
)
def test_nothing_varies_in_clean_traffic(name: str) -> None:
    structure = learn(faults.CLEAN[name]())
    assert structure.lines == ()
    assert (structure.tool_order, structure.tool_keys, structure.whitespace) == (None, None, None)


def test_items_of_a_list_are_told_from_a_line_of_its_own() -> None:
    (line,) = learn(faults.shuffled_examples()).lines
    assert line.repeated


def test_blank_lines_count_as_whitespace_and_not_as_values() -> None:
    window = faults.window(requests=10)
    for number, each in enumerate(window):
        system = each.body["messages"][0]
        system["content"] = system["content"].replace("## Rules", "## Rules" + "\n" * (1 + number % 3))
    structure = learn(window)
    assert structure.lines == ()
    assert structure.whitespace
    assert (structure.whitespace.distinct, structure.whitespace.canonical) == (3, 1)
    assert structure.whitespace.place.message_index == 0


def test_spaces_in_an_assistants_text_are_the_engines_own() -> None:
    window = faults.sessions(count=3, turns=3)
    for number, each in enumerate(window):
        for message in each.body["messages"]:
            if message["role"] == "assistant":
                message["content"] += " " * (number % 3) + "\nmore"
    assert learn(window).whitespace is None


def test_other_roles_on_request() -> None:
    window = faults.clock_in_user_turn()
    assert learn(window).lines == ()
    kinds = {str(line.place.value_kind) for line in learn(window, roles=("user",)).lines}
    assert "timestamp" in kinds


def test_unusual_bodies_are_passed_over() -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"messages": "no list"},
        {"messages": [None, {"role": "system"}, {"role": "system", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "system", "content": [{"type": "text", "text": "Time: 1"}]}]},
        {"messages": [{"role": "system", "content": "Time: 2"}], "tools": "none"},
        {"messages": [{"role": "system", "content": "Time: 2"}], "tools": [1, None, {"type": "function"}]},
    ]
    window = [faults.prompt(at, body, route="odd", at=float(at)) for at, body in enumerate(bodies)]
    (line,) = learn(window).lines
    assert (line.occurrences, line.distinct) == (3, 2)


def test_time_grows_with_the_characters_only() -> None:
    rng = random.Random(5)
    alphabet = "".join(map(chr, range(32))) + "ab1 :=\n漢字عرب\u202e🙂-T\ud800"

    def seconds(length: int) -> float:
        texts = ["".join(rng.choices(alphabet, k=length)) for _ in range(4)]
        window = [
            faults.prompt(
                number,
                {"messages": [{"role": "system", "content": f"n: {number}\n{texts[number % 4]}"}]},
                route="junk",
                at=float(number),
            )
            for number in range(12)
        ]
        begin = time.process_time()
        structure = learn(window)
        spent = time.process_time() - begin
        assert any(line.key_hash == line_key_hash("n: 1") for line in structure.lines)
        return spent

    small, large = seconds(20_000), seconds(160_000)
    assert large < 8 * small * 4 + 0.5
