"""Segments, routes and entropy."""

import pytest

from kvscope.prompts.entropy import character_entropy
from kvscope.prompts.routes import RouteMiner
from kvscope.prompts.segments import prompt_text, segments

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CLOCK = {"type": "function", "function": {"name": "clock"}}


def test_chat_segments_stand_in_template_order() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    body = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url"},
                    {"type": "text", "text": "b"},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
            "nonsense",
            {"role": "tool", "content": "5 pm"},
        ],
        "tools": [WEATHER, CLOCK],
    }
    found = [(part.role, part.message_index, part.text) for part in segments("chat", body)]
    assert [row[:2] for row in found] == [
        ("tools", None), ("system", 0), ("user", 1), ("assistant", 2), ("assistant", 2), ("tool", 4),
    ]  # fmt: skip
    assert found[0][2].startswith('{"type": "function", "function": {"name": "weather"')
    assert found[0][2].count("\n") == 1
    assert [row[2] for row in found[1:4]] == ["Be brief.", "a\nb", ""]
    assert '"arguments": "{}"' in found[4][2]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"prompt": "x"}, [("prompt", None, "x")]),
        ({"prompt": ["x", "y"]}, [("prompt", 0, "x"), ("prompt", 1, "y")]),
        ({"prompt": [1, 2, 3]}, []),
        ({}, []),
    ],
)
def test_completion_segments(body: dict[str, object], found: list[tuple[str, int | None, str]]) -> None:
    assert [(part.role, part.message_index, part.text) for part in segments("completion", body)] == found
    assert prompt_text(segments("completion", body)) == "\n".join(row[2] for row in found)


@pytest.mark.parametrize(
    "body", [{}, {"messages": None}, {"messages": "x", "tools": {}}, {"messages": [None, 1, []]}]
)
def test_bodies_that_are_not_understood_have_no_text(body: dict[str, object]) -> None:
    assert segments("chat", body) == ()
    assert prompt_text(segments("chat", body)) == ""
    assert RouteMiner().route("chat", body, None).startswith("auto-")


def _chat(system: str, tools: list[object] | None = None, model: str = "m") -> dict[str, object]:
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": "q"}],
    }
    return body if tools is None else {**body, "tools": tools}


def test_mined_route_ignores_values_and_order() -> None:
    miner = RouteMiner()
    one = miner.route("chat", _chat("Time: 2026-11-29 17:31:05\nYou help.", [WEATHER, CLOCK]), None)
    other = miner.route("chat", _chat("You help.\nTime: 2027-01-01 00:00:00", [CLOCK, WEATHER]), None)
    assert one == other
    assert len(one) == len("auto-") + 8
    different = {
        miner.route("chat", body, None)
        for body in (
            _chat("Never say a word.", [WEATHER, CLOCK]),
            _chat("Time: 2026-11-29 17:31:05\nYou help.", [CLOCK]),
            _chat("Time: 2026-11-29 17:31:05\nYou help.", [WEATHER, CLOCK], model="n"),
            {"prompt": "x", "model": "m"},
        )
    }
    assert len(different | {one}) == 5


def test_declared_route_wins() -> None:
    assert RouteMiner().route("chat", _chat("x"), " support ") == "support"
    assert len(RouteMiner().route("chat", _chat("x"), "r" * 500)) == 128
    assert RouteMiner().route("chat", _chat("x"), "a\x00b").startswith("auto-")
    assert RouteMiner().route("chat", _chat("x"), "  ") == RouteMiner().route("chat", _chat("x"), None)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("", 0.0),
        ("aaaa", 0.0),
        ("abab", 1.0),
        ("abcd", 2.0),
        ("aab", 0.9182958340544896),
        ("你好你好", 1.0),
        ("a\ud800", 1.0),
    ],
)
def test_character_entropy(text: str, bits: float) -> None:
    assert character_entropy(text) == pytest.approx(bits, abs=1e-12)
