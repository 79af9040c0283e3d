"""Transforms of single lines, of lists of documents and examples, and of JSON in texts."""

from typing import Any

import pytest

from kvscope.model.prompt import TransformSpec
from kvscope.prompts.transforms import apply_transforms
from kvscope.prompts.transforms.json_text import sort_json
from kvscope.prompts.transforms.padding import find_padding
from kvscope.prompts.values import line_key_hash


def spec(kind: str, *lines: str, role: str = "system", **more: object) -> TransformSpec:
    keys = {"line_keys": [line_key_hash(line) for line in lines], "role": role} if lines else {}
    return TransformSpec(kind=kind, params={**keys, **more})


def chat(*texts: str) -> dict[str, Any]:
    roles = ("system", "user", "assistant", "user")
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]}


def said(specs: list[TransformSpec], *texts: str) -> list[str]:
    return [message["content"] for message in apply_transforms(specs, "chat", chat(*texts))["messages"]]


def test_volatile_lines_move_to_the_end_of_system_behind_the_tenants() -> None:
    system = "Time: 9:41\nYou help.\nTenant: Acme\nBe brief.\nTenant rules:\nNo refunds.\n"
    tenant = spec("split_tenant", "Tenant: Acme", "Tenant rules:", "No refunds.")
    clock = spec("move_volatile", "Time: 9:41", to="system_end")
    wanted = "You help.\nBe brief.\n\nTenant: Acme\nTenant rules:\nNo refunds.\nTime: 9:41"
    assert said([clock, tenant], system, "q") == [wanted, "q"]
    assert said([tenant, clock], wanted, "q") == [wanted, "q"]
    # values differ, keys do not: another tenant gets its own text and nothing of this one
    other = said([clock, tenant], system.replace("Acme", "Umbra").replace("9:41", "17:05"), "q")
    assert other == [wanted.replace("Acme", "Umbra").replace("9:41", "17:05"), "q"]


def test_dropped_lines_are_gone_and_all_others_stay() -> None:
    assert said([spec("drop_volatile", "Time: 1")], "Time: 5\nYou help.", "Time: 5") == [
        "You help.",
        "Time: 5",
    ]


@pytest.mark.parametrize(
    ("line", "to", "coarse"),
    [
        ("Now: 2026-11-29T17:31:05Z", "minute", "Now: 2026-11-29T17:31:00Z"),
        ("Now: 2026-11-29T17:31:05.123+02:00", "hour", "Now: 2026-11-29T17:00:00.000+02:00"),
        ("Now: 2026-11-29 17:31", "day", "Now: 2026-11-29 00:00"),
        ("Now: 5:31 PM", "hour", "Now: 5:00 PM"),
        ("Now: 5:31 PM", "day", "Now: 5:31 PM"),
        ("Now: 1795973465", "hour", "Now: 1795971600"),
        ("Now: 1795973465123", "day", "Now: 1795910400000"),
        ("Now: 2026-11-29, order 8841, req_8f3a", "day", "Now: 2026-11-29, order 8841, req_8f3a"),
    ],
)
def test_times_are_rounded_down_and_nothing_else_is_touched(line: str, to: str, coarse: str) -> None:
    assert said([spec("coarsen_volatile", line, to=to)], f"{line}\nYou help.", line) == [
        f"{coarse}\nYou help.",
        line,
    ]


def test_documents_and_examples_get_one_order() -> None:
    documents = spec("sort_documents")
    text = 'Read:\n<doc id="b">two</doc>\n\n<doc id="a">one <example>z</example></doc>\nNow answer.'
    assert said([documents], "s", text)[1] == (
        'Read:\n<doc id="a">one <example>z</example></doc>\n\n<doc id="b">two</doc>\nNow answer.'
    )
    examples = "<example>Q: b</example><example>Q: a</example>\n<doc>z</doc>\ntext\n<doc>a</doc>"
    both = said([documents, spec("fix_example_order")], examples, "q")
    assert both[0] == "<example>Q: a</example><example>Q: b</example>\n<doc>z</doc>\ntext\n<doc>a</doc>"
    paragraphs = "Do so:\n\nExample: two plus two\nfour\n\nExample: one plus one\ntwo\n\nGo."
    assert said([spec("fix_example_order")], paragraphs, "q")[0] == (
        "Do so:\n\nExample: one plus one\ntwo\n\nExample: two plus two\nfour\n\nGo."
    )


@pytest.mark.parametrize(
    "text",
    [
        '<document index="2">b</document><document index="1">a</document>',
        "<doc>[2] b</doc><doc>[1] a</doc>",
        "Document 2: b\n\nDocument 1: a",
        "<doc>b <doc>",
        "<doc>b</doc> and <doc>a</doc>",
        "<docs>b</docs><docs>a</docs>",
    ],
)
def test_lists_with_numbers_and_what_is_no_list_stay(text: str) -> None:
    body = chat(text, text)
    assert apply_transforms([spec("sort_documents"), spec("fix_example_order")], "chat", body) is body


def test_documents_of_the_body_are_sorted_where_they_have_ids() -> None:
    body = {**chat("s", "q"), "documents": [{"doc_id": "b", "text": "x"}, {"doc_id": "a", "text": "y"}]}
    changed = apply_transforms([spec("sort_documents")], "chat", body)
    assert [document["doc_id"] for document in changed["documents"]] == ["a", "b"]
    without = {**body, "documents": [{"text": "x"}, {"text": "a"}]}
    assert apply_transforms([spec("sort_documents")], "chat", without) is without


def test_images_keep_their_place_among_texts_that_move() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {
        "cache_salt": "mine",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Time: 1\nYou help."}, image]},
            {"role": "user", "content": [image, {"type": "text", "text": "q"}, image]},
        ],
    }
    changed = apply_transforms([spec("move_volatile", "Time: 1")], "chat", body)
    assert changed["messages"][0]["content"] == [{"type": "text", "text": "You help."}, image]
    assert changed["messages"][1]["content"] == [image, {"type": "text", "text": "q\n\nTime: 1"}, image]
    assert changed["cache_salt"] == "mine"


@pytest.mark.parametrize(
    ("text", "stable"),
    [
        ('{"b": 1, "a": 2}', '{"a": 2, "b": 1}'),
        ('  {"b":1,"a":{"d":0,"c":1}}\n', '  {"a":{"c":1,"d":0},"b":1}\n'),
        ('State: x\n{"b": 1, "a": 2}\nGo.', 'State: x\n{"a": 2, "b": 1}\nGo.'),
        ('```json\n{\n  "b": [3, 1],\n  "a": "é"\n}\n```', None),
        ('```json\n{\n  "b": 1,\n  "a": "é"\n}\n```', '```json\n{\n  "a": "é",\n  "b": 1\n}\n```'),
        ('[{"b": "\\u00e9", "a": 1}]', '[{"a": 1, "b": "\\u00e9"}]'),
        # what cannot be written again just so stays: numbers, spaces, keys given twice, no JSON
        ('{"b": 1.50, "a": 2}', None),
        ('{"b": 1,  "a": 2}', None),
        ('{"b": 1, "b": 0, "a": 2}', None),
        ('{"b": 1, "a": 2', None),
        ("{b} and {a}", None),
    ],
)
def test_json_in_texts_changes_its_keys_order_alone(text: str, stable: str | None) -> None:
    assert sort_json(text) == (stable or text)
    assert sort_json(stable or text) == (stable or text)
    wanted = stable or text
    assert said([spec("canonical_json", texts=True)], text, "q", text) == [wanted, "q", text]
    assert said([spec("canonical_json")], text, "q") == [text, "q"]


def test_padding_fills_the_last_block() -> None:
    # a tokenizer that makes a token of two line breaks, as many do
    def tokens(padding: str) -> int:
        return 61 + len(padding.replace("\n\n", "x"))

    padding = find_padding(tokens, 16)
    assert padding is not None
    assert tokens(padding) == 64
    pad = spec("align_block", "Time: 1", padding=padding)
    once = said([pad], "You help.\n\nTime: 5\nrest", "q")
    assert once == [f"You help.{padding}Time: 5\nrest", "q"]
    assert said([pad], *once) == once
    assert said([pad], "Time: 5\nYou help.", "q") == ["Time: 5\nYou help.", "q"]
    assert find_padding(lambda _: 1, 16) is None
