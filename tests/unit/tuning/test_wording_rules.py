"""Templates that nearly agree, images before text, prefixes between blocks: found; clean cases stay."""

import json
import random
from typing import Any

import pytest

from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Prompt, Risk
from kvscope.prompts.tokenizing import LocalTokenizer
from kvscope.prompts.transforms import apply_transforms
from kvscope.reports.changes import steps_of
from kvscope.tuning.advisor import advise
from tests.support import faults


def advised(
    prompts: list[Prompt], tokenizer: LocalTokenizer, *, num_blocks: int | None = None, block_size: int = 16
) -> dict[str, Suggestion]:
    found = advise(
        prompts, tokenizer=tokenizer, block_size=block_size, num_blocks=num_blocks, ttft=None, now=7.0
    )
    return {each.kind: each for each in found.suggestions}


def _services(*, alike: bool, tenants: bool = False) -> list[Prompt]:
    """Return six services that take turns; their system messages differ in one sentence, or in all."""
    made = []
    for number, each in enumerate(faults.window(requests=60)):
        service = number % 6
        first, *rest = each.body["messages"][0]["content"].split("\n")
        if not alike:
            rest = faults.TEXTS["support"](random.Random(service + 50))[1:]
        text = "\n".join([f"{first} Service {chr(65 + service) * 3} speaking", *rest])
        messages = [{"role": "system", "content": text}, each.body["messages"][1]]
        made.append(
            faults.prompt(
                number,
                {**each.body, "messages": messages},
                route=f"service-{service}",
                at=each.arrived_at,
                tenant=f"tenant-{service}" if tenants else None,
            )
        )
    return made


def test_templates_that_push_each_other_out_become_one(tool_tokenizer: LocalTokenizer) -> None:
    found = advised(_services(alike=True), tool_tokenizer, num_blocks=60)["unify_prompts"]
    assert found.risk is Risk.QUALITY
    assert (found.evidence["texts"], len(found.evidence["routes"])) == (6, 6)
    assert len(found.change["system_prompt"]["replace"]) == 5
    assert found.hit_rate_after > found.hit_rate_before + 0.5
    assert "in place of 5" in steps_of(found)[0]


def test_templates_with_room_or_of_their_own_stay(tool_tokenizer: LocalTokenizer) -> None:
    assert advised(_services(alike=True), tool_tokenizer) == {}
    assert "unify_prompts" not in advised(_services(alike=False), tool_tokenizer, num_blocks=60)
    # a tenant's own text is never given to another one
    assert "unify_prompts" not in advised(_services(alike=True, tenants=True), tool_tokenizer, num_blocks=60)


def test_keys_in_a_few_orders_are_not_wordings_of_one_text(tool_tokenizer: LocalTokenizer) -> None:
    keys = ("region", "plan", "limits", "channels")
    made = []
    for number, each in enumerate(faults.window(requests=60)):
        start = number % 4
        settings = json.dumps({key: f"{key} of all" for key in (*keys[start:], *keys[:start])})
        first, *rest = each.body["messages"][0]["content"].split("\n")
        messages = [
            {"role": "system", "content": "\n".join([first, settings, *rest])},
            each.body["messages"][1],
        ]
        made.append(
            faults.prompt(number, {**each.body, "messages": messages}, route="shop", at=each.arrived_at)
        )
    # the four texts push each other out
    found = advised(made, tool_tokenizer, num_blocks=60)
    assert "canonical_json" in found
    assert "unify_prompts" not in found


def _images(*, image_first: bool) -> list[Prompt]:
    made = []
    for number, each in enumerate(faults.window(requests=20)):
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{number:060d}"}}
        text = {"type": "text", "text": each.body["messages"][0]["content"]}
        parts = [image, text] if image_first else [text, image]
        body = {"model": "tiny", "messages": [{"role": "user", "content": parts}]}
        made.append(faults.prompt(number, body, route="image", at=each.arrived_at))
    return made


def test_text_that_comes_again_goes_before_images(tool_tokenizer: LocalTokenizer) -> None:
    found = advised(_images(image_first=True), tool_tokenizer)["text_before_image"]
    assert (found.risk, found.change) == (Risk.REVIEW, {"content_order": "text_first"})
    assert (found.evidence["role"], found.evidence["message_index"]) == ("user", 0)
    assert found.hit_rate_before < 0.1
    assert found.hit_rate_after > 0.3
    assert advised(_images(image_first=False), tool_tokenizer) == {}


def _short(words: int, **more: Any) -> list[Prompt]:
    """Return requests whose shared prefix ends before a labelled line of the user's."""
    rng = random.Random(3)
    shared = " ".join(random.Random(1).choices(faults._WORDS, k=words))
    return [
        faults.prompt(
            number,
            {
                "model": "tiny",
                "messages": [
                    {
                        "role": "user",
                        "content": f"{shared}\nQuestion: {' '.join(rng.choices(faults._WORDS, k=4))}",
                    }
                ],
            },
            route="short",
            at=faults.START_AT + number,
            **more,
        )
        for number in range(30)
    ]


@pytest.mark.parametrize("block_size", [64])
def test_a_prefix_that_ends_within_a_block(block_size: int, tool_tokenizer: LocalTokenizer) -> None:
    counts = {}
    for words in range(20, 60):
        (prompt, other, *_) = _short(words)
        tokens = [tool_tokenizer.encode("chat", each.body) for each in (prompt, other)]
        counts[words] = next(at for at, (a, b) in enumerate(zip(*tokens, strict=False)) if a != b)
    short_of = next(words for words, count in counts.items() if block_size * 3 // 4 < count < block_size)
    whole = next(words for words, count in counts.items() if count in (block_size, 2 * block_size))
    window = _short(short_of)
    found = advised(window, tool_tokenizer, block_size=block_size)["align_block"]
    assert found.hit_rate_before < 0.05
    assert found.hit_rate_after > 0.5
    assert found.evidence["tokens_in_last_block"] == counts[short_of]
    (spec,) = found.transforms
    assert not spec.params["padding"].strip()
    body = apply_transforms([spec], "chat", dict(window[0].body))
    assert body["messages"][0]["content"].split() == window[0].body["messages"][0]["content"].split()
    assert advised(_short(whole), tool_tokenizer, block_size=block_size) == {}
