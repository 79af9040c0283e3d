"""Transforms are pure and idempotent; recognised values lie in order and within the text."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvscope.model.prompt import TransformSpec
from kvscope.prompts.entropy import character_entropy
from kvscope.prompts.routes import RouteMiner
from kvscope.prompts.segments import prompt_text, segments
from kvscope.prompts.transforms import apply_transforms
from kvscope.prompts.values import find_values, kind_at, line_key, line_key_hash

LINES = st.sampled_from(
    [
        "",
        " ",
        "Time: 2026-11-29 17:31:05",
        "Time: 17",
        "id=req_8f3a\r",
        "You help.  ",
        "\tB",
        "it is 5 PM now",
        "\x85",
        "x\u2028",
        '{"b": 1, "a": {"d": [2], "c": 1.50}}',
        '{"b": 1, "a": 2}  ',
        "```json",
        "```",
        "<doc>",
        "</doc>",
        "<doc>z</doc> <doc>a</doc>",
        "<example>b</example><example>a <doc>2</doc></example>",
        "Example: b",
        "Example: a",
    ]
)
TEXTS = st.lists(LINES, max_size=10).map("\n".join) | st.text(max_size=40)
PARTS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
    st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}),
    TEXTS,
    st.none(),
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": ROLES, "content": TEXTS | st.lists(PARTS, max_size=3) | st.none()}),
    st.fixed_dictionaries({"role": ROLES}),
    st.integers(),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "b", "a", "enum", "default"]), inner, max_size=4
        )
    ),
    max_leaves=10,
)
TOOLS = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"parameters": JSON, "name": st.sampled_from("abc")}),
        }
    ),
    JSON,
)
BODIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGES, max_size=6) | JSON,
        "tools": st.lists(TOOLS, max_size=4) | JSON,
        "prompt": TEXTS | st.lists(TEXTS, max_size=3) | JSON,
        "cache_salt": st.text(max_size=4),
        "extra": JSON,
    },
)
MOVES = st.builds(
    lambda role, lines: TransformSpec(
        kind="move_volatile", params={"role": role, "line_keys": [line_key_hash(line) for line in lines]}
    ),
    ROLES,
    st.lists(LINES, max_size=4),
)
LINE_KEYS = st.lists(LINES, max_size=4).map(lambda lines: [line_key_hash(line) for line in lines])
INSTRUCTIONS = st.sampled_from(["system", "developer"])
AT_SYSTEM_END = st.builds(
    lambda kind, role, keys: TransformSpec(
        kind=kind,
        params={"role": role, "line_keys": keys} | ({"to": "system_end"} if kind == "move_volatile" else {}),
    ),
    st.sampled_from(["move_volatile", "split_tenant"]),
    INSTRUCTIONS,
    LINE_KEYS,
)
ALIGNED = st.builds(
    lambda role, keys, padding: TransformSpec(
        kind="align_block", params={"role": role, "line_keys": keys, "padding": padding + "\n"}
    ),
    ROLES,
    LINE_KEYS,
    st.text(" \n", max_size=3),
)
KEEPING = (
    MOVES
    | AT_SYSTEM_END
    | ALIGNED
    | st.sampled_from(
        ["sort_tools", "canonical_json", "normalize_whitespace", "sort_documents", "fix_example_order"]
    ).map(lambda kind: TransformSpec(kind=kind))
)
"""Transforms that keep every word."""
CHANGING = st.just(TransformSpec(kind="canonical_json", params={"texts": True})) | st.builds(
    lambda kind, role, keys, to: TransformSpec(
        kind=kind,
        params={"role": role, "line_keys": keys} | ({"to": to} if kind == "coarsen_volatile" else {}),
    ),
    st.sampled_from(["drop_volatile", "coarsen_volatile"]),
    ROLES,
    LINE_KEYS,
    st.sampled_from(["minute", "hour", "day"]),
)
SPECS = st.lists(KEEPING | CHANGING, max_size=5)
APIS = st.sampled_from(["chat", "completion"])


@given(SPECS, APIS, BODIES)
def test_transforms_are_pure_and_idempotent(
    specs: list[TransformSpec], api: str, body: dict[str, Any]
) -> None:
    before = copy.deepcopy(body)
    once = apply_transforms(specs, api, body)
    assert json.dumps(body) == json.dumps(before)
    assert apply_transforms(specs, api, once) is once
    assert once.keys() == body.keys()
    assert once.get("cache_salt") == body.get("cache_salt")
    assert once.get("extra") == body.get("extra")
    if json.dumps(once) == json.dumps(body):
        assert once is body


@given(st.lists(KEEPING, max_size=5), BODIES)
def test_transforms_lose_no_word_and_no_image(specs: list[TransformSpec], body: dict[str, Any]) -> None:
    once = apply_transforms(specs, "chat", body)
    words = sorted(prompt_text(segments("chat", {**body, "tools": None})).split())
    assert sorted(prompt_text(segments("chat", {**once, "tools": None})).split()) == words
    assert json.dumps(once).count("image_url") == json.dumps(body).count("image_url")


@given(APIS, BODIES, st.none() | st.text(max_size=10))
def test_any_body_has_segments_a_route_and_an_entropy(
    api: str, body: dict[str, Any], header: str | None
) -> None:
    text = prompt_text(segments(api, body))
    assert 0 <= character_entropy(text) <= 21
    assert RouteMiner().route(api, body, header) == RouteMiner().route(api, copy.deepcopy(body), header)


VALUE_TEXTS = st.text() | st.text(alphabet="0123456789abcdefTZ:-/. @_年月日\n", max_size=80) | TEXTS


@given(VALUE_TEXTS)
def test_values_lie_in_order_and_are_found_at_their_places(text: str) -> None:
    end = 0
    for span in find_values(text):
        assert end <= span.start < span.end <= len(text)
        end = span.end
        found = kind_at(text, span.start)
        assert found is not None
        assert found.end - found.start > 0


@given(VALUE_TEXTS)
def test_line_keys_ignore_outer_whitespace(text: str) -> None:
    line = text.replace("\n", " ")
    assert line_key(f"  {line}\t") == line_key(line)
    assert line_key_hash(line) == line_key_hash(f" {line} ")
