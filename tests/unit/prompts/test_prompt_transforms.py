"""What each transform changes, exactly, and what it leaves alone."""

import copy
import json

import pytest

from kvscope.errors import UsageError
from kvscope.model.prompt import Risk, TransformSpec
from kvscope.prompts.transforms import TRANSFORMS, apply_transforms, describe, layout_name, risk_of
from kvscope.prompts.transforms.variant import use_variant
from kvscope.prompts.values import line_key_hash

SORT, CANONICAL, WHITESPACE = (
    TransformSpec(kind=kind) for kind in ("sort_tools", "canonical_json", "normalize_whitespace")
)


def move(*lines: str, role: str = "system") -> TransformSpec:
    return TransformSpec(
        kind="move_volatile", params={"role": role, "line_keys": [line_key_hash(line) for line in lines]}
    )


def tool(name: str, **schema: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def changed(specs: list[TransformSpec], body: dict[str, object], api: str = "chat") -> dict[str, object]:
    """Apply, and hold that the input stays as it was."""
    before = copy.deepcopy(body)
    result = apply_transforms(specs, api, body)
    assert json.dumps(body) == json.dumps(before)
    return result


def test_sort_tools_by_function_name() -> None:
    body: dict[str, object] = {
        "tools": [tool("b"), tool("a", x=2), tool("a", x=1)],
        "cache_salt": "s",
        "n": 1,
    }
    result = changed([SORT], body)
    assert result["tools"] == [tool("a", x=1), tool("a", x=2), tool("b")]
    assert {key: result[key] for key in ("cache_salt", "n")} == {"cache_salt": "s", "n": 1}
    assert list(result) == list(body)


@pytest.mark.parametrize(
    "tools",
    [None, [], {}, [{"type": "web_search"}], [tool("b"), {"type": "x"}], ["b", "a"], [tool("a"), tool("b")]],
)
def test_sort_tools_leaves_what_is_in_order_or_unknown(tools: object) -> None:
    body: dict[str, object] = {"tools": tools, "messages": []}
    assert changed([SORT], body) is body


def test_canonical_json_orders_keys_and_keeps_lists() -> None:
    schema = {
        "required": ["b", "a"],
        "properties": {
            "type": {"description": "d", "type": "string"},
            "b": {"enum": [2, 1], "type": "integer"},
        },
        "type": "object",
        "default": {"z": 1, "type": 2},
        "$defs": {"Z": {"title": "t", "type": "null"}, "A": True},
    }
    body: dict[str, object] = {
        "tools": [{"function": {"parameters": schema, "name": "f"}, "type": "function"}]
    }
    result = changed([CANONICAL], body)
    assert result == body  # the same data
    ordered = {
        "type": "object",
        "default": {"type": 2, "z": 1},
        "properties": {
            "b": {"type": "integer", "enum": [2, 1]},
            "type": {"type": "string", "description": "d"},
        },
        "required": ["b", "a"],
        "$defs": {"A": True, "Z": {"type": "null", "title": "t"}},
    }
    function = {"name": "f", "parameters": ordered}
    assert json.dumps(result["tools"]) == json.dumps([{"type": "function", "function": function}])
    assert changed([CANONICAL], result) is result


def test_canonical_json_leaves_absurd_depth() -> None:
    deep: dict[str, object] = {}
    for _ in range(200):
        deep = {"z": deep, "a": 1}
    body: dict[str, object] = {"tools": [tool("f", **deep)]}
    assert changed([CANONICAL, SORT], body) is body


def test_normalize_whitespace() -> None:
    body: dict[str, object] = {
        "messages": [
            {"role": "system", "content": "a  \nb\t\r\n\n \n\nc  "},
            {"role": "assistant", "content": "as  \n\n\nwritten"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "x \ny"}, {"type": "image_url", "image_url": {}}],
            },
        ]
    }
    result = changed([WHITESPACE], body)
    assert result["messages"] == [
        {"role": "system", "content": "a\nb\n\nc  "},
        {"role": "assistant", "content": "as  \n\n\nwritten"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "x\ny"}, {"type": "image_url", "image_url": {}}],
        },
    ]


@pytest.mark.parametrize(
    ("prompt", "result"),
    [("a \n\n\n\nb ", "a\n\nb "), (["a \nb", "c"], ["a\nb", "c"]), ([1, 2], [1, 2]), (None, None)],
)
def test_normalize_whitespace_of_completions(prompt: object, result: object) -> None:
    body = {"prompt": prompt}
    assert changed([WHITESPACE], body, "completion") == {"prompt": result}


SYSTEM = "Current time: 2026-11-29 17:31:05\nYou help.\nRequest: req_8f3a\nBe brief."


def test_move_volatile_to_the_end_of_the_last_user_turn() -> None:
    body: dict[str, object] = {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "second\n"},
            {"role": "assistant", "content": "pre"},
        ],
        "cache_salt": "s",
    }
    spec = move("Request: x", "Current time: y")
    result = changed([spec], body)
    assert result == {
        "messages": [
            {"role": "system", "content": "You help.\nBe brief."},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "second\n\nCurrent time: 2026-11-29 17:31:05\nRequest: req_8f3a"},
            {"role": "assistant", "content": "pre"},
        ],
        "cache_salt": "s",
    }
    assert changed([spec], result) is result


def test_move_volatile_with_parts_keeps_images_in_place() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    body: dict[str, object] = {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": SYSTEM}]},
            {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
        ]
    }
    result = changed([move("Current time: y")], body)
    assert result["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "You help.\nRequest: req_8f3a\nBe brief."}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "see\n\nCurrent time: 2026-11-29 17:31:05"}, image],
        },
    ]
    only_image: dict[str, object] = {
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": [image]}]
    }
    messages = changed([move("Current time: y")], only_image)["messages"]
    assert messages[1]["content"] == [image, {"type": "text", "text": "Current time: 2026-11-29 17:31:05"}]  # type: ignore[index]


def test_move_volatile_within_the_user_message() -> None:
    body: dict[str, object] = {"messages": [{"role": "user", "content": "Time: 1\nWhat now?"}]}
    spec = move("Time: 2", role="user")
    result = changed([spec], body)
    assert result["messages"] == [{"role": "user", "content": "What now?\n\nTime: 1"}]
    assert changed([spec], result) is result


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": SYSTEM}],
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": None}],
        [{"role": "user", "content": SYSTEM}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}],
        [{"role": "user", "content": "q"}, {"role": "system", "content": SYSTEM}],
        "not a list",
        [None, 3, {"role": "user", "content": "q"}],
    ],
)
def test_move_volatile_leaves_other_bodies(messages: object) -> None:
    body: dict[str, object] = {"messages": messages}
    assert changed([move("Current time: y")], body) is body
    assert changed([move("Current time: y")], {"prompt": SYSTEM}, "completion") == {"prompt": SYSTEM}


def test_order_of_specs_does_not_matter() -> None:
    body: dict[str, object] = {
        "messages": [{"role": "system", "content": "a\n\nTime: 1\n\nb"}, {"role": "user", "content": "q"}],
        "tools": [tool("b"), tool("a")],
    }
    specs = [WHITESPACE, CANONICAL, move("Time: 1"), SORT]
    assert changed(specs, body) == changed(specs[::-1], body)
    assert layout_name(specs) == "move_volatile+normalize_whitespace+sort_tools+canonical_json"
    assert layout_name([]) == "as_sent"


def test_every_kind_has_a_risk_and_one_line() -> None:
    lines = {"role": "system", "line_keys": [line_key_hash("Time: 1")]}
    safe = [SORT, CANONICAL, WHITESPACE, TransformSpec(kind="canonical_json", params={"texts": True})]
    review = [
        move("Time: 1"),
        TransformSpec(kind="split_tenant", params=lines),
        TransformSpec(kind="align_block", params={**lines, "padding": "\n\n"}),
        TransformSpec(kind="sort_documents"),
        TransformSpec(kind="fix_example_order"),
        use_variant("short"),
    ]
    quality = [
        TransformSpec(kind="drop_volatile", params=lines),
        TransformSpec(kind="coarsen_volatile", params={**lines, "to": "hour"}),
    ]
    specs = [*safe, *review, *quality]
    assert {spec.kind for spec in specs} == TRANSFORMS.keys()
    assert {risk_of(spec) for spec in safe} == {Risk.SAFE}
    assert {risk_of(spec) for spec in review} == {Risk.REVIEW}
    assert {risk_of(spec) for spec in quality} == {Risk.QUALITY}
    for spec in specs:
        assert describe(spec).endswith(".")
        assert "\n" not in describe(spec)


@pytest.mark.parametrize(
    "spec",
    [
        TransformSpec(kind="nonsense"),
        TransformSpec(kind="sort_tools", params={"by": "size"}),
        TransformSpec(kind="move_volatile"),
        TransformSpec(kind="move_volatile", params={"role": "system", "line_keys": ["short"]}),
        TransformSpec(kind="move_volatile", params={"role": "system", "line_keys": [], "to": "end"}),
        TransformSpec(kind="move_volatile", params={"role": "user", "line_keys": [], "to": "system_end"}),
        TransformSpec(kind="split_tenant", params={"role": "user", "line_keys": []}),
        TransformSpec(kind="coarsen_volatile", params={"role": "system", "line_keys": []}),
        TransformSpec(kind="coarsen_volatile", params={"role": "system", "line_keys": [], "to": "year"}),
        TransformSpec(kind="drop_volatile", params={"role": "system", "line_keys": [], "to": "hour"}),
        TransformSpec(kind="canonical_json", params={"texts": 1}),
        TransformSpec(kind="align_block", params={"role": "system", "line_keys": [], "padding": "x\n"}),
        TransformSpec(kind="align_block", params={"role": "system", "line_keys": [], "padding": " "}),
        TransformSpec(kind="use_variant"),
    ],
)
def test_wrong_specs_are_usage_errors(spec: TransformSpec) -> None:
    with pytest.raises(UsageError):
        apply_transforms([spec], "chat", {})
