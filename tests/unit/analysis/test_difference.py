"""The place where two prompts differ, and the kind of value there."""

import json
from typing import Any

import pytest

from kvscope.analysis.difference import Place, common_prefix, first_difference
from kvscope.prompts.segments import segments


def chat(*texts: str, tools: list[dict[str, Any]] | None = None, system: bool = True) -> Any:
    roles = ["system" if system else "user", "user", "assistant", "user"]
    body: dict[str, Any] = {
        "messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    }
    return segments("chat", body | ({"tools": tools} if tools else {}))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ("Now: 2026-11-29 17:31:05.\nHelp.", "Now: 2026-11-29 17:31:09.\nHelp.", (5, 24, "timestamp")),
        (
            "id 3f2b8a10-1111-4222-8333-444455556666 x",
            "id 9f2b8a10-1111-4222-8333-444455556666 x",
            (3, 39, "uuid"),
        ),
        ("You have 17 items.", "You have 23 items.", (9, 11, "number")),
        ("Dear Ann, hello\nBye", "Dear Bob, hello\nBye", (5, 15, "text")),
        ("one  two\nthree", "one two\nthree", (4, 5, "whitespace")),
        ("A: 1\nB: 2\nC: 3", "B: 2\nA: 1\nC: 3", (0, 9, "line_order")),
        ("short", "short and more", (5, 5, "text")),
    ],
)
def test_kind_and_range(ours: Any, theirs: Any, expected: Any) -> None:
    place = first_difference(chat("same", ours), chat("same", theirs))
    assert place is not None
    assert (place.role, place.message_index) == ("user", 1)
    assert (place.char_start, place.char_end, place.value_kind) == expected


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_tools() -> None:
    first, second = tool("a", x=1, y=2), tool("b", z=3)
    known = chat("s", tools=[first, second])
    shuffled = first_difference(chat("s", tools=[second, first]), known)
    assert shuffled is not None
    assert (shuffled.role, shuffled.message_index, shuffled.value_kind) == ("tools", None, "tool_order")
    keys = first_difference(chat("s", tools=[tool("a", y=2, x=1), second]), known)
    assert keys is not None
    assert keys.value_kind == "json_key_order"
    other = first_difference(chat("s", tools=[first, tool("c", z=3)]), known)
    assert other is not None
    assert other.value_kind == "text"
    text = chat("s", tools=[first, tool("c", z=3)])[0].text
    assert text[: other.char_start] == json.dumps(first) + '\n{"type": "function", "function": {"name": "'


def test_appended_and_dropped_messages() -> None:
    known = chat("s", "one")
    place = first_difference(chat("s", "one", "two"), known)
    assert place == Place(role="assistant", message_index=2, char_start=0, char_end=3, value_kind=None)
    assert first_difference(chat("s"), known) is None
    assert first_difference(known, known) is None
    assert first_difference(chat("s"), ()) is not None
    roles = first_difference(chat("s"), chat("s", system=False))
    assert roles is not None
    assert roles.value_kind is None


@pytest.mark.parametrize(
    ("one", "other", "length"),
    [
        ("", "", 0),
        ("a", "", 0),
        ("a", "a", 1),
        ("ab", "ac", 1),
        ("b", "c", 0),
        ("abc", "ab", 2),
        ("xbc", "abc", 0),
    ],
)
def test_common_prefix(one: Any, other: Any, length: Any) -> None:
    assert common_prefix(one, other) == length
    assert common_prefix(other, one) == length
    assert common_prefix("z" * 1000 + "p" + one, "z" * 1000 + "p" + other) == 1001 + length
