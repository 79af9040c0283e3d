"""History that is cut turn by turn or written anew: found, predicted by replay; clean conversations stay."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Prompt, Risk
from kvscope.prompts.tokenizing import LocalTokenizer
from kvscope.reports.changes import steps_of
from kvscope.tuning.advisor import advise
from tests.support import faults

BLOCK_SIZE = 16
KEPT = 8


def advised(prompts: list[Prompt], tokenizer: LocalTokenizer) -> list[Suggestion]:
    found = advise(prompts, tokenizer=tokenizer, block_size=BLOCK_SIZE, num_blocks=None, ttft=None, now=7.0)
    return list(found.suggestions)


def rate(bodies: list[Any], tokenizer: LocalTokenizer) -> float:
    requests = [
        ReplayRequest(request_id=str(number), tokens=tokenizer.encode("chat", body))
        for number, body in enumerate(bodies)
    ]
    return replay(requests, block_size=BLOCK_SIZE).hit_rate or 0.0


def talks(edit: Callable[[list[Any]], list[Any]], *, named: bool) -> list[Prompt]:
    """Return conversations of 16 turns with a short system message, the history after ``edit``."""
    made = []
    for number, each in enumerate(faults.sessions(count=3, turns=16)):
        _, *history = json.loads(json.dumps(each.body["messages"]))
        messages = [{"role": "system", "content": "You are kind."}, *edit(history)]
        made.append(
            faults.prompt(
                number,
                {"model": "tiny", "messages": messages},
                route="talk",
                at=each.arrived_at,
                session=each.session if named else None,
            )
        )
    return made


def cut_each_turn(history: list[Any]) -> list[Any]:
    return history[-KEPT - 1 :]


def cut_in_steps(history: list[Any], step: int) -> list[Any]:
    return history[max(0, len(history) - KEPT - 1) // step * step :]


@pytest.mark.parametrize("named", [True, False])
def test_history_that_is_cut_at_every_turn(named: bool, tool_tokenizer: LocalTokenizer) -> None:
    window = talks(cut_each_turn, named=named)
    (found,) = advised(window, tool_tokenizer)
    assert (found.kind, found.risk) == ("stable_history", Risk.QUALITY)
    step = found.change["history"]["drop_messages"]
    mended = talks(lambda history: cut_in_steps(history, step), named=named)
    assert found.hit_rate_before == rate([each.body for each in window], tool_tokenizer)
    assert found.hit_rate_after == rate([each.body for each in mended], tool_tokenizer)
    assert found.hit_rate_after > found.hit_rate_before + 0.1
    assert found.evidence["history"] == "truncated"
    assert found.evidence["turns_at_fault"] == 3 * 11  # turns 1 to 5 fit in
    assert f"{step} messages at a time" in steps_of(found)[0]


@pytest.mark.parametrize("named", [True, False])
def test_history_that_is_written_anew(named: bool, tool_tokenizer: LocalTokenizer) -> None:
    def numbered_from_the_end(history: list[Any]) -> list[Any]:
        *old, new = history
        first = {**old[0], "content": f"({len(old)} messages ago) {old[0]['content']}"} if old else None
        return [*([first, *old[1:]] if first else []), new]

    window = talks(numbered_from_the_end, named=named)
    (found,) = advised(window, tool_tokenizer)
    assert (found.kind, found.change) == ("stable_history", {"history": {"append_only": True}})
    # as it was sent first: without the mark
    plain = talks(lambda history: history, named=named)
    # unless sessions are named, the first turn of a conversation is not known as one of it
    exact = rate([each.body for each in plain], tool_tokenizer)
    assert found.hit_rate_after == pytest.approx(exact, abs=1e-9 if named else 0.01)
    assert found.hit_rate_after > found.hit_rate_before + 0.3
    assert found.evidence["history"] == "rewritten"


@pytest.mark.parametrize("named", [True, False])
def test_history_that_stays_is_left_alone(named: bool, tool_tokenizer: LocalTokenizer) -> None:
    assert advised(talks(lambda history: history, named=named), tool_tokenizer) == []
    assert advised(talks(lambda history: cut_in_steps(history, 8), named=named), tool_tokenizer) == []
