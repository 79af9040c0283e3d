"""A language model as the judge of two answers; asked in both orders, because judges lean to a place.

That order sways such judges is known: Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot
Arena", section 3.3, from which the remedy is, too.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from kvscope.prompts.segments import prompt_text, segments
from kvscope.tuning.quality.endpoint import Endpoint

_WORD_TOKENS = 8
_INSTRUCTION = (
    "Two assistants answered the same request. Say which answer serves the request better. "
    "Reply with one letter: A, B, or T for a tie."
)


class Judgement(StrEnum):
    """How the changed prompt's answer stands beside the one of the prompt as it is."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    UNCLEAR = "unclear"  # the judge gave no letter, or another one when the order was turned


def judge(endpoint: Endpoint, api: str, body: Mapping[str, Any], *, before: str, after: str) -> Judgement:
    """Return what the judge says in both orders; raises as ``Endpoint.answer``."""
    request = prompt_text(segments(api, body))
    first = _letter(endpoint, request, before, after)
    second = _letter(endpoint, request, after, before)
    return {
        ("B", "A"): Judgement.BETTER,
        ("A", "B"): Judgement.WORSE,
        ("T", "T"): Judgement.SAME,
    }.get((first, second), Judgement.UNCLEAR)


def _letter(endpoint: Endpoint, request: str, a: str, b: str) -> str:
    question = f"[Request]\n{request}\n\n[Answer A]\n{a}\n\n[Answer B]\n{b}\n\n{_INSTRUCTION}"
    said = endpoint.answer(
        "chat", {"messages": [{"role": "user", "content": question}]}, max_tokens=_WORD_TOKENS
    )
    return next((word for word in said.replace(".", " ").upper().split() if word in {"A", "B", "T"}), "")
