"""Identical prompts sent at once, and prefixes that are evicted before reuse: by replay, and clean cases."""

import dataclasses
import random

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Prompt, Risk
from kvscope.prompts.tokenizing import LocalTokenizer
from kvscope.reports.changes import steps_of
from kvscope.tuning.advisor import advise
from tests.support import faults

BLOCK_SIZE = 16


def advised(
    prompts: list[Prompt], tokenizer: LocalTokenizer, num_blocks: int | None = None
) -> dict[str, Suggestion]:
    found = advise(
        prompts, tokenizer=tokenizer, block_size=BLOCK_SIZE, num_blocks=num_blocks, ttft=None, now=7.0
    )
    return {each.kind: each for each in found.suggestions}


def _bursts(size: int, apart: float) -> list[Prompt]:
    """Return bursts of ``size`` equal documents with questions of their own, ``apart`` seconds in a burst."""
    made = []
    for number, each in enumerate(faults.window(requests=40)):
        burst = number // size
        text = " ".join(random.Random(burst).choices(faults._WORDS, k=300))
        messages = [{"role": "system", "content": text}, each.body["messages"][1]]
        at = faults.START_AT + burst * 60 + number % size * apart
        made.append(faults.prompt(number, {**each.body, "messages": messages}, route="burst", at=at))
    return made


def test_equal_prefixes_at_once_are_staggered(tool_tokenizer: LocalTokenizer) -> None:
    window = _bursts(8, 0.0001)
    found = advised(window, tool_tokenizer)["stagger_identical"]
    tokens = [tool_tokenizer.encode("chat", each.body) for each in window]
    one_by_one = replay(
        [ReplayRequest(request_id=str(at), tokens=each) for at, each in enumerate(tokens)],
        block_size=BLOCK_SIZE,
    )
    # without waiting only the template's own first words, cached by an earlier burst, can be a hit
    assert found.hit_rate_before < 0.05
    assert found.hit_rate_after == one_by_one.hit_rate
    assert (found.risk, found.ttft_change_seconds) == (Risk.SAFE, None)
    assert found.evidence["requests_held"] == 35
    assert found.evidence["mean_wait_seconds"] < max(map(len, tokens)) * 1e-4
    assert "first token" in steps_of(found)[0]


def test_requests_that_come_later_need_not_wait(tool_tokenizer: LocalTokenizer) -> None:
    assert advised(_bursts(8, 1.0), tool_tokenizer) == {}
    timeless = [dataclasses.replace(each, arrived_at=0.0) for each in _bursts(8, 0.0)]
    assert advised(timeless, tool_tokenizer) == {}


def _rare_and_busy(every: float) -> list[Prompt]:
    """Return a route that comes ``every`` seconds, while another one fills the cache with what differs."""
    rare = [
        dataclasses.replace(each, arrived_at=faults.START_AT + number * every)
        for number, each in enumerate(faults.window(requests=20, route="rare"))
    ]
    busy = [
        dataclasses.replace(each, arrived_at=faults.START_AT + number * every / 12)
        for number, each in enumerate(faults.all_different(requests=240))
    ]
    return [*rare, *busy]


def test_a_prefix_that_is_evicted_is_kept_warm(tool_tokenizer: LocalTokenizer) -> None:
    window = _rare_and_busy(60.0)
    found = advised(window, tool_tokenizer, 120)["keep_warm"]
    assert (found.route, found.risk) == ("rare", Risk.SAFE)
    assert 0 < found.change["keep_warm"]["every_seconds"] < 60
    assert found.hit_rate_after > found.hit_rate_before + 0.5
    evidence = found.evidence
    assert 0 < evidence["tokens_computed_by_touches"] < evidence["tokens_lost"]
    assert evidence["tokens_saved_all_routes"] > 0
    assert "Touch" in steps_of(found)[0]


def test_what_stays_by_itself_needs_no_touch(tool_tokenizer: LocalTokenizer) -> None:
    assert advised(_rare_and_busy(60.0), tool_tokenizer) == {}
    assert "keep_warm" not in advised(_rare_and_busy(60.0), tool_tokenizer, 4000)
