"""Three planted faults on a real vLLM: each is found, its change applied by the gateway, and comes true."""

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvscope.demo.engines import Engine
from kvscope.model.prompt import Prompt
from kvscope.pipeline.contracts import UNCHANGED, Decision
from kvscope.prompts.named import named_tokenizer
from kvscope.tuning.advisor import advise
from kvscope.tuning.log_advice import LogOptions, advise_log
from kvscope.tuning.quality.checks import valid_json
from kvscope.tuning.quality.compare import Asked, compare
from kvscope.tuning.quality.endpoint import Endpoint
from tests.support import faults
from tests.support.gateway import FixedPolicy, Running, running_gateway

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(420)]

REQUESTS = 24
CLOSE = 0.03


def _tenant_first(seed: int) -> list[Prompt]:
    """Requests of many tenants, each of whom begins cold: its lines stand before what all share."""
    made = []
    for number, prompt in enumerate(faults.window(requests=REQUESTS, seed=seed)):
        tenant = f"tenant-{number // 2}"
        system, *rest = prompt.body["messages"]
        first = {"role": "system", "content": f"Tenant: {tenant}\n{system['content']}"}
        body = {**prompt.body, "messages": [first, *rest]}
        made.append(faults.prompt(number, body, route="shop", at=prompt.arrived_at, tenant=tenant))
    return made


def _planted(fault: str, seed: int) -> list[Prompt]:
    if fault == "tenant_first":
        return _tenant_first(seed)
    return faults.window(fault, requests=REQUESTS, seed=seed)


async def _sent(
    gateway: Running, model: str, prompts: Sequence[Prompt]
) -> tuple[float, list[dict[str, Any]]]:
    """Return the hit rate that the server counted, and the bodies; a salt of their own: nothing is cached."""
    salt = uuid.uuid4().hex
    bodies = [
        {**prompt.body, "model": model, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
        for prompt in prompts
    ]
    hits = tokens = 0
    for body in bodies:
        answer = await gateway.ask(body)
        assert answer.status == 200, answer.body
        usage = answer.json["usage"]
        hits += (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        tokens += usage["prompt_tokens"]
    return hits / tokens, bodies


def _log(path: Path, prompts: Sequence[Prompt], bodies: Sequence[Mapping[str, Any]]) -> Path:
    lines = [
        {"body": body, "timestamp": prompt.arrived_at, "route": "shop", "tenant": prompt.tenant}
        for prompt, body in zip(prompts, bodies, strict=True)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("clock_first", "move_volatile"), ("shuffled_tools", "sort_tools"), ("tenant_first", "split_tenant")],
)
async def test_a_planted_fault_is_found_and_its_change_comes_true(
    fault: str, kind: str, vllm_server: Engine, tmp_path: Path
) -> None:
    policy = FixedPolicy()
    prompts = _planted(fault, seed=1)
    async with running_gateway(vllm_server.url, policy=policy) as gateway:
        model = str((await gateway.ask(method="GET", target="/v1/models")).json["data"][0]["id"])
        policy.decision = UNCHANGED
        before, bodies = await _sent(gateway, model, prompts)
        found = advise_log(
            [_log(tmp_path / "log.jsonl", prompts, bodies)],
            LogOptions(
                tokenizer=named_tokenizer(str(vllm_server.options.model)),
                block_size=vllm_server.options.block_size,
                num_blocks=vllm_server.options.blocks,
            ),
            now=0.0,
        )
        best = found.advice.suggestions[0]
        assert (best.kind, best.route) == (kind, "shop")
        assert abs(best.hit_rate_before - before) < CLOSE
        # the same requests again, from an empty cache, changed by the gateway
        policy.decision = Decision(transforms=best.transforms)
        after, _ = await _sent(gateway, model, _planted(fault, seed=1))
        assert after > before + 0.1
        assert abs(best.hit_rate_after - after) < CLOSE, (fault, before, best.hit_rate_after, after)


def test_answers_of_a_real_server(vllm_server: Engine) -> None:
    window = faults.window("clock_first", requests=8)
    advice = advise(
        window,
        tokenizer=named_tokenizer(str(vllm_server.options.model)),
        block_size=vllm_server.options.block_size,
        num_blocks=None,
        ttft=None,
        now=0.0,
    )
    found = compare(
        window,
        advice.suggestions[0].transforms,
        Asked(
            server=Endpoint(url=vllm_server.url, model=vllm_server.model),
            last=4,
            max_tokens=4,
            checks=(valid_json(),),
            judge=None,
            watch=lambda _over, _all: None,
        ),
    )
    assert (found.prompts, found.untouched, found.refused) == (4, 0, ())
    assert found.noise.share is not None
    assert found.noise.low is not None
    assert found.noise.low <= found.noise.share
    assert all(pair.before for pair in found.pairs)
