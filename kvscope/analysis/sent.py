"""What stays of a prompt that was sent until its causes are recorded."""

import dataclasses

from kvscope.model.prompt import Prompt
from kvscope.prompts.segments import prompts_in, sequences_asked


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """``sequences`` counts the answers asked for, over all ``prompts``."""

    engine: str
    arrived_at: float
    looked_up: bool
    prompts: int
    sequences: int


def sent_of(prompt: Prompt) -> Sent:
    """Return what stays of ``prompt``."""
    return Sent(
        engine=prompt.engine,
        arrived_at=prompt.arrived_at,
        looked_up=_looked_up(prompt),
        prompts=prompts_in(prompt.api, prompt.sent_body),
        sequences=sequences_asked(prompt.api, prompt.sent_body),
    )


def _looked_up(prompt: Prompt) -> bool:
    """Whether the engine looks for the prompt in its cache.

    It does not when log-probabilities of the prompt are asked: then all of it is computed (vLLM 0.32, read).
    """
    body = prompt.sent_body
    echoed = prompt.api == "completion" and bool(body.get("echo")) and body.get("logprobs") is not None
    return body.get("prompt_logprobs") is None and not echoed
