"""Runs the advisor in a process of its own, so that its work never delays the traffic."""

import dataclasses
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from kvscope.analysis.predicting import predict_seconds
from kvscope.model.advice import FittedModel
from kvscope.model.prompt import Prompt, TransformSpec
from kvscope.prompts.tokenizing import PromptTokenizer, ServerTokenizer, load_tokenizer
from kvscope.tuning.advisor import Advice, advise

_NICENESS = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdviceTask:
    """All that the advisor needs, in a form that travels to another process."""

    prompts: Sequence[Prompt]
    models: Sequence[FittedModel]
    tokenizer: Path | str  # a folder, or a server's base URL
    block_size: int
    num_blocks: int | None
    now: float
    min_gain: float
    in_force: Mapping[str, Sequence[TransformSpec]]  # by route


def tokenizer_of(place: Path | str) -> PromptTokenizer:
    """Return the tokenizer in a folder, or the one of the server at a base URL."""
    return load_tokenizer(place) if isinstance(place, Path) else ServerTokenizer(place)


def ttft_predictor(models: Sequence[FittedModel]) -> Callable[[int, int], float | None] | None:
    """Return a function from prompt and cached tokens to seconds, by the best model there is."""
    for name in ("ttft_linear", "prefill_linear"):
        model = next((model for model in models if model.name == name), None)
        if model is not None:
            break
    else:
        return None

    def seconds(prompt_tokens: int, cached_tokens: int) -> float | None:
        answer = predict_seconds(model, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
        return getattr(answer, "seconds", None)

    return seconds


def run_task(task: AdviceTask) -> Advice:
    """Return the advice for one window of traffic."""
    return advise(
        task.prompts,
        tokenizer=tokenizer_of(task.tokenizer),
        block_size=task.block_size,
        num_blocks=task.num_blocks,
        ttft=ttft_predictor(task.models),
        now=task.now,
        min_gain=task.min_gain,
        in_force=task.in_force,
    )


def _lower_priority() -> None:
    os.nice(_NICENESS)


def advice_pool() -> ProcessPoolExecutor:
    """Return a pool of one low-priority process; it starts with the first task."""
    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_lower_priority,
    )
