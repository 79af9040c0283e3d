"""Labels every prompt token that was no prefix hit with the cause of the miss; the sums are exact.

The number of cached tokens is the engine's own and is taken as the truth. For every request

    cached tokens + sum of the causes == prompt tokens

``docs/miss-causes.md`` explains each cause.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from kvscope.analysis.difference import Place
from kvscope.model.request import Miss, MissCause


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """What was known about a prompt when it arrived, from the prompts that arrived before it.

    ``chain`` holds the ids of its full blocks. The first ``seen_blocks`` of them began an earlier prompt of
    the same engine, salt and LoRA; the first ``elsewhere_blocks`` one of another. ``difference`` is the token
    position where it leaves the nearest known prompt, None where no prompt was known; ``place`` is the same
    position in its text. ``known`` tells for each token from there on whether it lies in a run of
    ``shingles.WINDOW_TOKENS`` tokens that a known prompt of the route has too, at any position.
    """

    serial: int
    prompt_tokens: int
    block_size: int | None
    chain: tuple[int, ...]
    first_serials: tuple[int, ...]
    elsewhere_blocks: int
    difference: int | None
    known: NDArray[np.bool_]
    place: Place | None

    @property
    def seen_blocks(self) -> int:
        """Number of leading blocks that earlier prompts began with."""
        return len(self.first_serials)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Missed tokens by cause, as ``MissCause`` values without zeros, and where the prefix broke."""

    causes: Mapping[str, int]
    misses: tuple[Miss, ...]


WhyMissing = Callable[[int], MissCause | None]
"""Says why a block that had been computed before was not there; None when nothing tells."""


def attribute(
    request_id: str,
    facts: PromptFacts,
    *,
    cached_tokens: int,
    seen_blocks: int,
    why: WhyMissing,
) -> Attribution:
    """Return the causes of a prompt whose tokens are known.

    From the first token that was no hit to the last:

    - a block among the first ``seen_blocks`` was computed before: ``why(block)`` names the cause. Where it
      has none, the block was out of reach because of the block before it and shares that one's cause;
    - a block whose content began a prompt under another salt, LoRA or engine: ``isolated``;
    - in the first other block, tokens before the difference from the nearest known prompt: ``granularity``;
    - from there on, tokens in runs that known prompts of the route have at some position: ``diverged``, they
      would have been hits but for the earlier difference; all others: ``cold``;
    - tokens after the last full block that a hit may cover (the prompt's last token is always computed):
      ``granularity``.

    Raises ``ValueError`` where more tokens are cached than the prompt has.
    """
    if facts.block_size is None:
        return attribute_counts(request_id, facts.prompt_tokens, cached_tokens, None)
    size = facts.block_size
    counts, limit = _tail(facts.prompt_tokens, cached_tokens, size)
    at = cached_tokens
    before: MissCause | None = None
    while at < limit and (block := at // size) < max(seen_blocks, facts.elsewhere_blocks):
        own = why(block) if block < seen_blocks else MissCause.ISOLATED
        before = own or before or MissCause.UNKNOWN
        end = min((block + 1) * size, limit)
        counts[before] += end - at
        at = end
    if at < limit:
        same = _clamp(facts.difference or 0, at, min((at // size + 1) * size, limit))
        counts[MissCause.GRANULARITY] += same - at
        diverged = int(facts.known[same:limit].sum())
        counts[MissCause.DIVERGED] += diverged
        counts[MissCause.COLD] += limit - same - diverged
    return _attribution(request_id, counts, facts.place)


def attribute_counts(
    request_id: str, prompt_tokens: int, cached_tokens: int, block_size: int | None
) -> Attribution:
    """Return the causes where only the counts are known: ``granularity`` by arithmetic, the rest unknown."""
    if block_size is None:
        counts, limit = _tail(prompt_tokens, cached_tokens, 1)
        counts[MissCause.UNKNOWN] = counts.pop(MissCause.GRANULARITY, 0)
    else:
        counts, limit = _tail(prompt_tokens, cached_tokens, block_size)
    counts[MissCause.UNKNOWN] += limit - cached_tokens
    return _attribution(request_id, counts, None)


def attribute_disabled(request_id: str, prompt_tokens: int, cached_tokens: int) -> Attribution:
    """Return the causes of a request whose prompt was not looked up in the cache."""
    counts, limit = _tail(prompt_tokens, cached_tokens, 1)
    return _attribution(
        request_id,
        Counter({MissCause.DISABLED: limit - cached_tokens + counts[MissCause.GRANULARITY]}),
        None,
    )


def _tail(prompt_tokens: int, cached_tokens: int, block_size: int) -> tuple[Counter[MissCause], int]:
    """Return the tokens that no lookup could have hit, and the position where they begin."""
    if not 0 <= cached_tokens <= prompt_tokens:
        raise ValueError(f"{cached_tokens} of {prompt_tokens} prompt tokens cannot be cached")
    limit = max((prompt_tokens - 1) // block_size * block_size, cached_tokens)
    return Counter({MissCause.GRANULARITY: prompt_tokens - limit}), limit


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def _attribution(request_id: str, counts: Counter[MissCause], place: Place | None) -> Attribution:
    """Return the causes and a miss each; only what the difference explains has its place."""
    ordered = sorted((cause for cause in counts if counts[cause] > 0), key=lambda cause: cause.value)
    misses: list[Miss] = []
    for cause in ordered:
        shown = place if cause in {MissCause.DIVERGED, MissCause.COLD} else None
        misses.append(
            Miss(
                request_id=request_id,
                cause=cause,
                tokens=counts[cause],
                role=shown.role if shown else None,
                message_index=shown.message_index if shown else None,
                char_start=shown.char_start if shown else None,
                char_end=shown.char_end if shown else None,
                value_kind=shown.value_kind if shown else None,
            )
        )
    return Attribution(causes={cause.value: counts[cause] for cause in ordered}, misses=tuple(misses))
