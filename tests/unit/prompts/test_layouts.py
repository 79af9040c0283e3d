"""Prompt layouts: what a file may say, what a request may give, and what the engine reads."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.prompts.layouts.book import LayoutBook
from kvscope.prompts.layouts.measure import measured
from kvscope.prompts.layouts.order import broken_prefixes
from kvscope.prompts.layouts.plan import Plan, compile_layout
from kvscope.prompts.layouts.schema import parse_layout
from kvscope.prompts.layouts.variables import VariableError

EXAMPLES = Path(__file__).parents[3] / "examples" / "layouts"
SEGMENTS = """
segments:
  - {name: rules, role: system, scope: global, text: Be brief.}
  - {name: who, role: system, scope: session, text: "For {{ who }}."}
  - {role: messages}
  - {name: clock, role: user, scope: dynamic, after: [messages], text: "Now: {{ now }}"}
variables: {who: {max_chars: 9}, now: {default: noon}}
"""
ASK = {"model": "m", "messages": [{"role": "user", "content": "q"}], "temperature": 0.5}


def plan(text: str) -> Plan:
    return compile_layout(parse_layout(text, name="support"))


def rendered(
    text: str, given: dict[str, Any], body: dict[str, Any] | None = None, variant: str = "default"
) -> Any:
    return plan(text).render(ASK if body is None else body, given, variant)["messages"]


def test_a_layout_stands_around_the_requests_messages() -> None:
    body = {**ASK, "kvscope": {"layout": "support"}}
    made = plan(SEGMENTS).render(body, {"who": "Ann"})
    assert made == {
        "model": "m",
        "temperature": 0.5,
        "messages": [
            {"role": "system", "content": "Be brief.\n\nFor Ann."},
            {"role": "user", "content": "q\n\nNow: noon"},
        ],
    }
    assert body["messages"] == [{"role": "user", "content": "q"}]  # the client's own is never changed


def test_turns_of_other_roles_and_images_keep_their_place() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    turns = [{"role": "user", "content": [image]}, {"role": "assistant", "content": "a"}]
    made = rendered(SEGMENTS, {"who": "Ann"}, {"messages": turns})
    assert made[1:] == [*turns, {"role": "user", "content": "Now: noon"}]
    turns = [{"role": "user", "content": [image], "name": "x"}]
    made = rendered(SEGMENTS, {"who": "Ann"}, {"messages": turns})
    assert made[1:] == [
        {"role": "user", "content": [image, {"type": "text", "text": "Now: noon"}], "name": "x"}
    ]
    assert rendered(SEGMENTS, {"who": "Ann"}, {})[1:] == [{"role": "user", "content": "Now: noon"}]


def test_variants_leave_out_replace_and_reorder() -> None:
    variants = """
variants:
  late: {without: [who], texts: {clock: "{{ who }} at {{ now }}"}}
  turned: {order: [who, rules, messages, clock]}
  stable: {order: stable_first}
"""
    given = {"who": "Ann"}
    assert rendered(SEGMENTS + variants, given, variant="late") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "q\n\nAnn at noon"},
    ]
    assert rendered(SEGMENTS + variants, given, variant="turned")[0]["content"] == "For Ann.\n\nBe brief."
    made = plan(SEGMENTS + variants)
    assert [broken.segment for broken in broken_prefixes(made.variants["turned"].segments)] == ["who"]
    assert broken_prefixes(made.variants["stable"].segments) == []
    with pytest.raises(UsageError, match="no variant 'x'; known: default, late, turned, stable"):
        made.render(ASK, given, "x")


def test_stable_first_keeps_order_constraints_pins_and_the_conversations_place() -> None:
    text = """
segments:
  - {name: a, role: system, scope: dynamic, text: a}
  - {name: b, role: system, scope: global, text: b, after: [a]}
  - {name: c, role: system, scope: global, text: c}
  - {name: d, role: system, scope: dynamic, text: d, pinned: true}
  - {name: e, role: system, scope: session, text: e}
  - {name: f, role: system, scope: project, text: f}
  - {role: messages}
  - {name: g, role: user, scope: global, text: g}
variants: {best: {order: stable_first}}
"""
    names = [segment.name for segment in plan(text).variants["best"].segments]
    assert names == ["c", "a", "b", "d", "f", "e", "messages", "g"]


def test_templates_are_sandboxed_and_values_are_never_templates() -> None:
    text = "segments: [{name: s, role: system, text: '{% if x %}{{ x|upper }}{% endif %} end'}]"
    text += "\nvariables: {x: {}}"
    assert rendered(text, {"x": "{{ 7*7 }}{% for %}"})[0]["content"] == "{{ 7*7 }}{% FOR %} end"
    for evil in ("{{ x.__class__.__mro__ }}", "{{ x.format.__globals__ }}", "{{ ''.__class__ }}{{ x }}"):
        made = plan(f'segments: [{{name: s, role: system, text: "{evil}"}}]\nvariables: {{x: {{}}}}')
        with pytest.raises(VariableError, match="segment s cannot be rendered"):
            made.render(ASK, {"x": "y"})


@pytest.mark.parametrize(
    ("constraint", "good", "bad", "told"),
    [
        ("{}", "x", 1, "must be a string, not an integer"),
        ("{max_chars: 3}", "äöü", "abcd", "must have 3 characters at most, not 4"),
        ("{}", "x" * 32_768, "x" * 32_769, "must have 32768 characters at most"),
        ("{regex: '[a-z]{1,3}'}", "abc", "abc\n", "must match"),
        ("{enum: [a, b]}", "a", "c", 'must be one of "a", "b", not "c"'),
        ("{type: integer, minimum: 1, maximum: 5}", 5, 6, "must be 5 or less"),
        ("{type: integer}", 2**70, True, "must be an integer, not a boolean"),
        ("{type: integer, enum: [0, 1]}", 1, True, "must be an integer"),
        ("{type: number}", 1.5, "1.5", "must be a number, not a string"),
        ("{type: number}", 1, float("nan"), "must be a finite number"),
        ("{type: boolean}", False, 0, "must be true or false"),
        ("{type: list, max_items: 2, max_chars: 1}", ["a", "b"], ["a", "bc"], r"\[1\] must have 1"),
        ("{type: list, max_items: 2}", [], ["a", "b", "c"], "must have 2 items at most"),
        ("{type: list}", ["a"], "a", "must be a list of strings"),
        ("{}", "x", None, "must be a string, not null"),
    ],
)
def test_constraints(constraint: str, good: Any, bad: Any, told: str) -> None:
    made = plan(f"segments: [{{name: s, role: user, text: '{{{{ v }}}}.'}}]\nvariables: {{v: {constraint}}}")
    made.render(ASK, {"v": good})
    with pytest.raises(VariableError, match=told) as error:
        made.render(ASK, {"v": bad})
    assert error.value.variable == "v"
    assert "\n" not in str(error.value)


def test_missing_and_unknown_variables_are_named() -> None:
    with pytest.raises(VariableError, match="missing variable: who"):
        rendered(SEGMENTS, {})
    with pytest.raises(VariableError, match='unknown variable "why"; the layout has: now, who'):
        rendered(SEGMENTS, {"who": "Ann", "why": ""})


def test_a_regex_that_other_engines_hang_on_takes_no_time() -> None:
    # (a+)+b on 32,000 a: Python's own engine would need 2^32000 steps
    made = plan("segments: [{name: s, role: user, text: '{{ v }}'}]\nvariables: {v: {regex: '(a+)+b'}}")
    with pytest.raises(VariableError, match="must match"):
        made.render(ASK, {"v": "a" * 32_000})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"messages": [{"role": "system", "content": "x"}]}, "the layout brings the system message"),
        ({"messages": "x"}, "messages must be a list"),
        ({"messages": [], "tools": [{}]}, "has tools of its own"),
    ],
)
def test_bodies_that_do_not_go_with_a_layout(body: dict[str, Any], told: str) -> None:
    tools = "tools: [{type: function, function: {name: f}}]\n"
    with pytest.raises(UsageError, match=told):
        plan(tools + SEGMENTS).render(body, {"who": "Ann"})


ONE = "segments: [{name: s, role: system, text: x}]\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "not YAML"),
        ("a", "is a mapping"),
        ("segments: 1", "segments: expected `array`"),
        ("layout: x", "missing required field `segments`"),
        ("segments: [{role: systm}]", r"segments\[0\]\.role: invalid enum value 'systm'"),
        ("segments: [{role: system, txt: x}]", r"segments\[0\]: object contains unknown field `txt`"),
        ("segments: [{role: system, text: x}]", r"segments\[0\] needs a name"),
        ("segments: [{name: a, role: system}]", "segment a needs a text"),
        ("segments: [{role: messages, text: x}]", "the request's messages stand there"),
        ("segments: [{role: messages}, {name: n, role: messages}]", "only one segment"),
        ("segments: [{name: a, role: user, text: x}, {name: a, role: user, text: x}]", "used twice"),
        ("segments: [{name: a, role: user, text: x}, {name: b, role: system, text: x}]", "stands after a"),
        ("segments: [{name: a, role: user, text: x, after: [z]}]", "after names z"),
        ("segments: [{name: a, role: user, text: x, after: [messages]}]", "must stand after messages"),
        ("segments: [{name: a, role: user, text: '{{ x }}'}]", "uses x, not declared"),
        ("segments: [{name: a, role: user, text: '{{ now() }}'}]", "uses now"),
        ("segments: [{name: a, role: user, text: '{% if %}'}]", "segment a, line 1"),
        ("segments: [{name: a, role: user, text: '{% include \"x\" %}'}]", "no include"),
        ("segments: [{name: a, role: user, text: '{{ [1]|random }}'}]", "segment a"),
        (ONE + "variables: {x: {regex: '(a'}}", r"variables.x: the regex '\(a' cannot be used"),
        (ONE + "variables: {x: {regex: '(?=a)b'}}", "no look-around"),
        (ONE + "variables: {x: {regex: a, type: integer}}", "regex does not go with type integer"),
        (ONE + "variables: {x: {enum: []}}", "an empty enum"),
        (ONE + "variables: {x: {enum: [1]}}", "the enum's value 1 must be a string"),
        (ONE + "variables: {x: {max_chars: 1, default: ab}}", "the default must have 1"),
        (ONE + "variables: {x: {max_chars: 0}}", "max_chars must be 1 or more"),
        (ONE + "variables: {'x y': {}}", "'x y' is no name"),
        (ONE + "variants: {default: {}}", "default is the name"),
        (ONE + "variants: {v: {order: [z, s]}}", "variant v names z"),
        (ONE + "variants: {v: {order: [messages]}}", "its order lacks s"),
        (ONE + "variants: {v: {order: [s, s]}}", "names a segment twice"),
        (ONE + "variants: {v: {without: [messages]}}", "cannot be left out"),
        (ONE + "variants: {v: {texts: {messages: x}}}", "have no text here"),
        (ONE + "tools: [{type: function}]", r"tools\[0\] must have"),
        (ONE + "layout: a\nlayout: b", "given twice"),
        ("segments: &a [*a]", "aliases"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as error:
        plan(text)
    assert "\n" not in str(error.value)


def test_pinned_segments_do_not_move() -> None:
    text = """
segments:
  - {name: a, role: system, text: a}
  - {name: b, role: system, text: b, pinned: true}
  - {name: c, role: system, text: c}
variants: {v: {order: [b, a, c]}}
"""
    with pytest.raises(UsageError, match="variant v: b is pinned"):
        plan(text)


def test_the_examples_are_right() -> None:
    book = LayoutBook(EXAMPLES)
    book.load()
    assert book.faults == ()
    assert list(book.plans) == ["support"]


def test_measures_tell_the_static_prefix() -> None:
    form = parse_layout(SEGMENTS, name="support")
    (measure,) = measured(
        compile_layout(form), form, encode=lambda _, body: list(map(ord, json.dumps(body))), block_size=16
    )
    assert measure.static_chars == len("Be brief.\n\nFor ")
    assert measure.static_tokens == len('{"messages": [{"role": "system", "content": "Be brief.\\n\\nFor ')
    assert measure.static_blocks == measure.static_tokens // 16
    assert measure.padding_tokens == 16 * (measure.static_blocks + 1) - measure.static_tokens


class Folder:
    """A folder of layouts whose files change at times that differ."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = time.time_ns() - 10**12

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.write_text(text)
        self._at += 10**9
        os.utime(path, ns=(self._at, self._at))


def test_a_change_counts_once_two_looks_agree_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    folder, book = Folder(tmp_path), LayoutBook(tmp_path)
    folder.write("support.yaml", ONE)
    folder.write("notes.txt", "[")
    book.load()
    first = book.plans
    assert list(first) == ["support"]
    assert book.refresh() == (0, 0)
    assert book.plans is first

    folder.write("support.yaml", ONE + "description: new")
    assert book.refresh() == (0, 0)  # it may be half written
    assert book.plans is first
    assert book.refresh() == (1, 0)
    second = book.plans["support"]
    assert second is not first["support"]

    folder.write("support.yaml", "segments: [")
    assert (book.refresh(), book.refresh()) == ((0, 0), (0, 1))
    assert book.plans["support"] is second
    assert book.faults[0].startswith("support.yaml: not YAML")
    folder.write("support.yaml", ONE)
    assert (book.refresh(), book.refresh()) == ((0, 0), (1, 0))
    assert not book.faults


def test_a_file_that_is_away_for_a_moment_stays_in_force(tmp_path: Path) -> None:
    folder, book = Folder(tmp_path), LayoutBook(tmp_path)
    folder.write("a.yaml", ONE)
    book.load()
    (tmp_path / "a.yaml").rename(tmp_path / "a.gone")
    book.refresh()
    assert list(book.plans) == ["a"]
    (tmp_path / "a.gone").rename(tmp_path / "a.yaml")
    book.refresh()
    book.refresh()
    assert list(book.plans) == ["a"]
    (tmp_path / "a.yaml").unlink()
    book.refresh()
    book.refresh()
    assert list(book.plans) == []


def test_two_files_with_one_name_are_told(tmp_path: Path) -> None:
    folder, book = Folder(tmp_path), LayoutBook(tmp_path)
    folder.write("a.yaml", ONE)
    folder.write("b.yaml", ONE + "layout: a")
    book.load()
    assert book.faults == ("b.yaml: layout a is in another file already; rename one",)
    (tmp_path / "b.yaml").unlink()
    assert (book.refresh(), book.refresh()) == ((0, 0), (0, 0))
    assert not book.faults
    with pytest.raises(UsageError, match="not a folder"):
        LayoutBook(tmp_path / "none").load()
