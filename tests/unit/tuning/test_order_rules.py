"""Lists in changing order, JSON keys in texts, tenants' lines: found, predicted exactly; clean ones stay."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Prompt, Risk
from kvscope.prompts.tokenizing import LocalTokenizer
from kvscope.prompts.transforms import apply_transforms
from kvscope.tuning.advisor import advise
from kvscope.tuning.structure import learn
from tests.support import faults

BLOCK_SIZE = 16


def advised(prompts: Sequence[Prompt], tokenizer: LocalTokenizer) -> list[Suggestion]:
    found = advise(prompts, tokenizer=tokenizer, block_size=BLOCK_SIZE, num_blocks=None, ttft=None, now=7.0)
    return list(found.suggestions)


def rate(prompts: Sequence[Prompt], tokenizer: LocalTokenizer, change: Suggestion | None = None) -> float:
    """Replay by hand, changed or not."""
    bodies = [
        apply_transforms(change.transforms, each.api, dict(each.body)) if change else each.body
        for each in prompts
    ]
    result = replay(
        [
            ReplayRequest(request_id=str(number), tokens=tokenizer.encode("chat", body))
            for number, body in enumerate(bodies)
        ],
        block_size=BLOCK_SIZE,
    )
    return result.hit_tokens / result.queried_tokens


def changed(edit: Callable[[random.Random, int, Any], None], **more: Any) -> list[Prompt]:
    """Return clean requests after ``edit(rng, number, body)`` of each."""
    rng = random.Random(7)
    made = faults.window(requests=24, **more)
    for number, each in enumerate(made):
        edit(rng, number, each.body)
    return made


def _listed(tag: str, shuffled: bool, numbered: bool = False) -> Callable[[random.Random, int, Any], None]:
    items = [" ".join(random.Random(n).choices(faults._WORDS, k=20)) for n in range(8)]

    def edit(rng: random.Random, _number: int, body: Any) -> None:
        order = rng.sample(items, len(items)) if shuffled else items
        texts = [
            f"<{tag}{f' index={at!r}' if numbered else ''}>\n{item}\n</{tag}>"
            for at, item in enumerate(order)
        ]
        body["messages"][0]["content"] += "\n" + "\n".join(texts) + "\nAnswer by these."

    return edit


def _json_text(shuffled: bool) -> Callable[[random.Random, int, Any], None]:
    fields = {f"field_{n}": " ".join(random.Random(n).choices(faults._WORDS, k=6)) for n in range(9)}

    def edit(rng: random.Random, _number: int, body: Any) -> None:
        keys = rng.sample(list(fields), len(fields)) if shuffled else list(fields)
        text = json.dumps({key: fields[key] for key in keys}, indent=2)
        body["messages"][0]["content"] = f"```json\n{text}\n```\n" + body["messages"][0]["content"]

    return edit


def _schema_lists(shuffled: bool) -> Callable[[random.Random, int, Any], None]:
    def edit(rng: random.Random, _number: int, body: Any) -> None:
        words = ["late", "broken", "other", "unknown", "lost"]
        if shuffled:
            rng.shuffle(words)
        for tool in body["tools"]:
            properties = tool["function"]["parameters"]["properties"]
            properties["reason"] = {**properties["reason"], "enum": list(words)}

    return edit


@pytest.mark.parametrize(
    ("edit", "kind", "value_kind", "more"),
    [
        (_listed("example", True), "fix_example_order", "example_order", {}),
        (_listed("document", True), "sort_documents", "document_order", {}),
        (_json_text(True), "canonical_json", "json_key_order", {}),
        (_schema_lists(True), "canonical_json", "list_order", {"with_tools": True}),
    ],
)
def test_changing_order_is_found(
    edit: Any, kind: str, value_kind: str, more: dict[str, Any], tool_tokenizer: LocalTokenizer
) -> None:
    window = changed(edit, **more)
    (found,) = advised(window, tool_tokenizer)
    assert (found.kind, found.evidence["value_kind"]) == (kind, value_kind)
    assert found.risk is (Risk.SAFE if kind == "canonical_json" else Risk.REVIEW)
    assert found.hit_rate_before == rate(window, tool_tokenizer)
    assert found.hit_rate_after == rate(window, tool_tokenizer, found)
    assert found.hit_rate_after > found.hit_rate_before + 0.1


@pytest.mark.parametrize(
    ("edit", "more"),
    [
        (_listed("example", False), {}),
        (_listed("document", False), {}),
        (_listed("document", True, numbered=True), {}),
        (_json_text(False), {}),
        (_schema_lists(False), {"with_tools": True}),
    ],
)
def test_a_fixed_or_numbered_order_is_left_alone(
    edit: Any, more: dict[str, Any], tool_tokenizer: LocalTokenizer
) -> None:
    assert advised(changed(edit, **more), tool_tokenizer) == []


def _tenants(*, first: bool, named: bool = True) -> list[Prompt]:
    """Return requests of 15 tenants, one tenant after the other: each begins cold."""
    made = []
    for number, each in enumerate(faults.window(requests=45)):
        tenant = f"tenant-{number // 3}"
        rng = random.Random(number // 3)
        own = f"Tenant: {tenant}\nOnly for {tenant}: {' '.join(rng.choices(faults._WORDS, k=60))}."
        system = each.body["messages"][0]["content"]
        text = f"{own}\n{system}" if first else f"{system}\n{own}"
        messages = [{"role": "system", "content": text}, each.body["messages"][1]]
        made.append(
            faults.prompt(
                number,
                {**each.body, "messages": messages},
                route="shop",
                at=each.arrived_at,
                tenant=tenant if named else None,
            )
        )
    return made


def test_a_tenants_text_before_what_all_share(tool_tokenizer: LocalTokenizer) -> None:
    window = _tenants(first=True)
    (found,) = advised(window, tool_tokenizer)
    assert (found.kind, found.risk) == ("split_tenant", Risk.REVIEW)
    assert found.evidence["parts"][0]["lines"] == 16  # the named line, and a line of each tenant's own
    assert found.hit_rate_before == rate(window, tool_tokenizer)
    assert found.hit_rate_after == rate(window, tool_tokenizer, found)
    body = apply_transforms(found.transforms, "chat", dict(window[0].body))
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert "tenant-0" in body["messages"][0]["content"].splitlines()[-1]


def test_a_tenants_text_that_stands_last_stays(tool_tokenizer: LocalTokenizer) -> None:
    assert advised(_tenants(first=False), tool_tokenizer) == []


def test_tenants_that_the_log_does_not_name_are_known_by_the_label() -> None:
    lines = learn(_tenants(first=True, named=False)).lines
    assert [line.of_tenant for line in lines if line.distinct > 1] == [True]


def test_a_number_that_goes_up_is_a_counter() -> None:
    (line,) = learn(faults.window("counter_first")).lines
    assert line.counting
    (line,) = learn(faults.window("clock_first")).lines
    assert not line.counting
