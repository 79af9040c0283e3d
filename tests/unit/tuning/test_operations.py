"""What is suggested about the servers: each against replaying the traffic served that way."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import pytest

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.errors import UsageError
from kvscope.experiments.design import from_suggestion
from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Prompt, Risk
from kvscope.prompts.tokenizing import LocalTokenizer
from kvscope.prompts.transforms import apply_transforms
from kvscope.reports.changes import harms_of, in_force, steps_of
from kvscope.tuning.advisor import advise
from tests.support import faults

BLOCK_SIZE = 16


def found_in(
    prompts: Sequence[Prompt], tokenizer: LocalTokenizer, num_blocks: int | None = None
) -> list[Suggestion]:
    found = advise(
        prompts, tokenizer=tokenizer, block_size=BLOCK_SIZE, num_blocks=num_blocks, ttft=None, now=7.0
    )
    return list(found.suggestions)


def rate(
    prompts: Sequence[Prompt],
    tokenizer: LocalTokenizer,
    *,
    num_blocks: int | None = None,
    salt: Callable[[Prompt], str | None] = lambda prompt: prompt.salt,
) -> float:
    """Replay by hand, each engine by itself."""
    hits = queried = 0
    for engine in {prompt.engine for prompt in prompts}:
        result = replay(
            [
                ReplayRequest(
                    request_id=prompt.request_id,
                    tokens=tokenizer.encode(prompt.api, prompt.body),
                    salt=salt(prompt),
                )
                for prompt in prompts
                if prompt.engine == engine
            ],
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
        )
        hits += result.hit_tokens
        queried += result.queried_tokens
    return hits / queried


def test_memory_that_is_too_small_for_what_comes_back(tool_tokenizer: LocalTokenizer) -> None:
    window = faults.sessions(count=8, turns=6, text="support")
    blocks = 90
    (found,) = found_in(window, tool_tokenizer, blocks)
    assert (found.kind, found.risk) == ("more_memory", Risk.SAFE)
    wanted = found.change["blocks"]
    assert found.evidence["blocks_now"] == blocks < wanted
    assert found.hit_rate_before == rate(window, tool_tokenizer, num_blocks=blocks)
    assert found.hit_rate_after == rate(window, tool_tokenizer, num_blocks=wanted)
    assert found.evidence["hit_rate_without_limit"] == rate(window, tool_tokenizer)
    assert found.hit_rate_after > found.hit_rate_before + 0.1
    assert steps_of(found)[0].startswith(f"Give the engine {wanted:,} blocks")
    # with that much, nothing is left to be said
    assert found_in(window, tool_tokenizer, wanted * 2) == []


def test_sessions_that_are_spread_over_replicas(tool_tokenizer: LocalTokenizer) -> None:
    replicas = [f"http://engine-{number}:8000" for number in range(4)]
    spread = itertools.cycle(replicas)
    # each conversation has a system message of its own: only it can use its prefix again
    window = [
        dataclasses.replace(prompt, engine=next(spread))
        for seed in range(6)
        for prompt in faults.sessions(count=1, turns=5, seed=seed)
    ]
    window = [
        dataclasses.replace(
            prompt,
            request_id=f"chat-{number:04}",
            session=f"s{number // 5}",
            arrived_at=faults.START_AT + (number % 5) * 60 + number // 5,
        )
        for number, prompt in enumerate(window)
    ]
    (found,) = found_in(window, tool_tokenizer)
    assert (found.kind, found.evidence["replicas"]) == ("route_affinity", 4)
    together = [
        dataclasses.replace(prompt, engine=replicas[int((prompt.session or "s0")[1:]) % 4])
        for prompt in window
    ]
    assert found.change == {"routing": "session"}
    # which sessions share a replica is another choice: they have nothing but the template's first words
    assert found.hit_rate_after == pytest.approx(rate(together, tool_tokenizer), abs=0.01)
    assert found.hit_rate_before < found.hit_rate_after - 0.2
    assert found_in(together, tool_tokenizer) == []


def _salted(salts: int, tenants: int, *, named: bool = True) -> list[Prompt]:
    made = []
    for number, prompt in enumerate(faults.window(requests=32)):
        body = {**prompt.body, "cache_salt": f"salt-{number % salts}"}
        tenant = f"tenant-{number % tenants}" if named else None
        made.append(dataclasses.replace(prompt, body=body, sent_body=body, tenant=tenant))
    return made


def test_salts_that_are_finer_than_tenants(tool_tokenizer: LocalTokenizer) -> None:
    window = _salted(salts=32, tenants=2)
    (found,) = found_in(window, tool_tokenizer)
    assert (found.kind, found.change) == ("widen_salt", {"cache_salt": "tenant"})
    assert (found.evidence["salts"], found.evidence["tenants"]) == (32, 2)
    assert found.hit_rate_before == rate(window, tool_tokenizer)
    assert found.hit_rate_after == rate(window, tool_tokenizer, salt=lambda prompt: prompt.tenant)


def test_a_salt_a_tenant_is_as_wide_as_it_may_be(tool_tokenizer: LocalTokenizer) -> None:
    assert found_in(_salted(salts=4, tenants=4), tool_tokenizer) == []
    # whose salts they are is not known: nothing may be shared
    assert found_in(_salted(salts=32, tenants=2, named=False), tool_tokenizer) == []


def _clocks(salts: int, tenants: int) -> list[Prompt]:
    """Prompts whose first line is a clock, each tenant's under several salts."""
    made = []
    for number, prompt in enumerate(faults.window("clock_first", requests=32)):
        body = {**prompt.body, "cache_salt": f"salt-{number % salts}"}
        made.append(
            dataclasses.replace(prompt, body=body, sent_body=body, tenant=f"tenant-{number % tenants}")
        )
    return made


def test_fine_salts_and_a_clock_that_hide_each_other_are_named_together(
    tool_tokenizer: LocalTokenizer,
) -> None:
    window = _clocks(salts=32, tenants=2)
    (found,) = found_in(window, tool_tokenizer)
    # neither gains alone: with 32 salts nothing is shared, and behind a clock nothing is the same
    assert rate(window, tool_tokenizer, salt=lambda prompt: prompt.tenant) < 0.02
    assert (found.kind, found.risk, found.change["cache_salt"]) == ("widen_salt", Risk.REVIEW, "tenant")
    assert [spec.kind for spec in found.transforms] == ["move_volatile"]
    assert [part["kind"] for part in found.evidence["parts"]] == ["move_volatile", "widen_salt"]
    assert (found.evidence["salts"], found.evidence["tenants"]) == (32, 2)
    moved = [
        dataclasses.replace(prompt, body=apply_transforms(found.transforms, prompt.api, dict(prompt.body)))
        for prompt in window
    ]
    assert found.hit_rate_before == rate(window, tool_tokenizer)
    assert found.hit_rate_after == rate(moved, tool_tokenizer, salt=lambda prompt: prompt.tenant)
    assert found.hit_rate_after > 0.5
    salts, lines = steps_of(found)
    assert salts.startswith("First, by hand: Send one cache_salt a tenant")
    assert "move" in lines.lower()
    assert [harm[:21] for harm in harms_of(found)] == ["Requests of one tenan", "The model reads the m"]
    assert not in_force(found, [])


def test_half_of_a_plan_is_never_tried(tool_tokenizer: LocalTokenizer) -> None:
    (found,) = found_in(_clocks(salts=32, tenants=2), tool_tokenizer)
    with pytest.raises(UsageError, match=r"one cache_salt a tenant.*have the application send that first"):
        from_suggestion(found, name="half", now=7.0, approved=True)


def test_changes_of_prompts_are_not_judged_under_wider_salts_over_tenants(
    tool_tokenizer: LocalTokenizer,
) -> None:
    assert found_in(_clocks(salts=32, tenants=32), tool_tokenizer) == []
