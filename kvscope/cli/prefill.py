"""How long prefill takes, for the commands that read logs: a rate that is told, or the store's models."""

from collections.abc import Callable
from typing import Any

import click

from kvscope.agent.advising import ttft_predictor
from kvscope.cli.common import PositiveNumber, opened

Prefill = Callable[[int, int], float | None]
"""Prompt and cached tokens to seconds; None where the model cannot tell."""


def prefill_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--prefill-rate``."""
    return click.option(
        "--prefill-rate",
        type=PositiveNumber(),
        help="Tokens a second in prefill. Default: by the store's latency model, if --db names one with it.",
    )(command)


def prefill_of(rate: float | None, db: str | None) -> Prefill | None:
    """Return seconds by ``rate`` in tokens a second, else by the models of the store ``db``, else None."""
    if rate is not None:
        return lambda prompt_tokens, cached_tokens: (prompt_tokens - cached_tokens) / rate
    if db is None:
        return None
    with opened(db) as store:
        return ttft_predictor(store.advice.models())
