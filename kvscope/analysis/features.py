"""What a latency model may know of a request."""

import math

from kvscope.analysis.loads import Load
from kvscope.model.request import RequestRecord

IN_FLIGHT = "requests_in_flight"
PREFILLING = "prefilling_requests"
PREFILLING_TOKENS = "prefilling_tokens"
ENTROPY = "prompt_entropy"

GROUPS = {
    "length": ("log_prompt_tokens", "prompt_tokens"),
    "work": ("uncached_tokens", "attention_work"),
    "context": ("context_tokens",),
    "load": (IN_FLIGHT, PREFILLING, PREFILLING_TOKENS),
    "entropy": (ENTROPY, "entropy_x_log_prompt_tokens"),
}
"""Features that say one thing; how much each group adds is told of every model."""


def features_of(record: RequestRecord, load: Load | None) -> dict[str, float]:
    """Return the features of a request that are known; the gateway's own count of others goes first."""
    found: dict[str, float] = {}
    if load is not None:
        found = load_features(load)
    if record.requests_in_flight is not None:
        found[IN_FLIGHT] = float(record.requests_in_flight)
    if record.prompt_tokens:
        found |= text_features(record.prompt_tokens, record.prompt_entropy)
        if record.cached_tokens is not None:
            found |= work_features(record.prompt_tokens, record.cached_tokens)
        if record.output_tokens is not None:
            found["context_tokens"] = record.prompt_tokens + record.output_tokens / 2
    return found


def load_features(load: Load) -> dict[str, float]:
    """Return the features of a load."""
    return {
        IN_FLIGHT: float(load.in_flight),
        PREFILLING: float(load.prefilling),
        PREFILLING_TOKENS: float(load.prefilling_tokens),
    }


def work_features(prompt_tokens: int, cached_tokens: int) -> dict[str, float]:
    """Return the work of linear layers, in tokens, and of attention, in pairs of tokens.

    Each uncached token attends to all before it: uncached × (cached + uncached / 2).
    """
    uncached = prompt_tokens - cached_tokens
    return {
        "uncached_tokens": float(uncached),
        "attention_work": uncached * (cached_tokens + uncached / 2),
    }


def text_features(prompt_tokens: int, entropy: float | None) -> dict[str, float]:
    """Return length and, where known, entropy: the published model's features."""
    length = math.log(prompt_tokens)
    found = {"prompt_tokens": float(prompt_tokens), "log_prompt_tokens": length}
    if entropy is None:
        return found
    return found | {ENTROPY: entropy, "entropy_x_log_prompt_tokens": entropy * length}
