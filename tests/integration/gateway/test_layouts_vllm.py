"""Layouts and arms in front of a real vLLM: the prompt that it counts, and the blocks that it shares."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.demo.engines import Engine
from kvscope.pipeline.contracts import Decision
from kvscope.prompts.salts import arm_salt
from tests.support.gateway import FixedPolicy, Running, running_gateway

pytestmark = pytest.mark.vllm

RULES = "\n".join(f"{number}. Answer in the language of the customer." for number in range(40))
LAYOUT = json.dumps(  # JSON is YAML
    {
        "layout": "support",
        "variables": {"now": {}},
        "segments": [
            {"name": "rules", "role": "system", "scope": "global", "text": RULES},
            {"role": "messages"},
            {"name": "clock", "role": "user", "text": "Now: {{ now }}"},
        ],
    }
)


async def asked(gateway: Running, body: dict[str, Any]) -> dict[str, Any]:
    answer = await gateway.ask({"max_tokens": 1, "temperature": 0, **body})
    assert answer.status == 200, answer.body
    return dict(answer.json["usage"])


async def name_of(gateway: Running) -> str:
    return str((await gateway.ask(method="GET", target="/v1/models")).json["data"][0]["id"])


def cached(usage: dict[str, Any]) -> int:
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


async def test_a_rendered_layout_is_the_prompt_that_was_meant(vllm_server: Engine, tmp_path: Path) -> None:
    (tmp_path / "support.yaml").write_text(LAYOUT)
    question = {"role": "user", "content": "Where is my order?"}
    async with running_gateway(vllm_server.url, settings={"layouts": str(tmp_path)}) as gateway:
        model = await name_of(gateway)
        named = {"layout": "support", "variables": {"now": "12:00"}}
        by_layout = await asked(gateway, {"model": model, "messages": [question], "kvscope": named})
        meant = [
            {"role": "system", "content": RULES},
            {"role": "user", "content": "Where is my order?\n\nNow: 12:00"},
        ]
        by_hand = await asked(gateway, {"model": model, "messages": meant})
        again = {"layout": "support", "variables": {"now": "12:01"}}
        later = await asked(gateway, {"model": model, "messages": [question], "kvscope": again})
    assert by_layout["prompt_tokens"] == by_hand["prompt_tokens"]
    # the same tokens: all full blocks are hits, but for the last token, which is always computed
    size = vllm_server.options.block_size
    assert cached(by_hand) == (by_hand["prompt_tokens"] - 1) // size * size
    # the clock stands last, so the rules are still hits
    assert cached(later) > later["prompt_tokens"] * 0.8


async def test_isolated_arms_share_no_block_and_clients_salts_stay_apart(vllm_server: Engine) -> None:
    policy = FixedPolicy()
    prompt = [{"role": "user", "content": f"Isolated arms. {RULES}"}]
    hits: dict[tuple[str, str | None], list[int]] = {}
    async with running_gateway(vllm_server.url, policy=policy) as gateway:
        model = await name_of(gateway)
        for salt in (None, "tenant-a"):
            for arm in ("baseline", "treatment"):
                policy.decision = Decision(experiment="e9", arm=arm, salt=arm_salt("e9", arm))
                body = {"model": model, "messages": prompt, **({} if salt is None else {"cache_salt": salt})}
                hits[arm, salt] = [cached(await asked(gateway, body)) for _ in range(2)]
    assert all(first == 0 and second > 0 for first, second in hits.values()), hits
