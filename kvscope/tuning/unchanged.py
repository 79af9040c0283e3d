"""Why nothing is suggested for a route: the honest "leave it as it is"."""

from collections.abc import Sequence

import numpy as np

from kvscope.analysis.shingles import Hashes, WindowSet, window_hashes
from kvscope.tuning.judge import Judge
from kvscope.tuning.structure import RouteStructure
from kvscope.tuning.window import RouteWindow

_KEPT = 128  # newest prompts that a token may have been seen in
_FULL = 0.98  # of the tokens that could be hits: the rest are the ends of prompts


def reason(
    judge: Judge, route: RouteWindow, structure: RouteStructure, *, tried: bool, min_gain: float
) -> str:
    """Return in one line why no change is suggested for ``route``.

    ``tried``: something varies that a change could move or order, and the replay found too little gain.
    """
    newer = route.newer_half
    tokens = sum(judge.now.prompt_tokens[at] for at in newer)
    if not tokens:
        why = judge.refused[0] if judge.refused else "the cache is smaller than every prompt"
        return f"no prompt could be replayed: {why}"
    hit = judge.now.hit_rate(newer)
    seen = seen_before(judge, route.positions, newer) / tokens
    rates = f"{hit:.0%} of the newer half's tokens hit, {seen:.0%} were seen before"
    if hit >= _FULL * seen:
        if seen < min_gain:
            return f"no reuse to be had: {rates}"
        return f"already at its ceiling: {rates}"
    if tried:
        return f"the cache holds what repeats: no change would raise the hit rate by {min_gain:.1%}; {rates}"
    if any(line.repeated for line in structure.lines):
        return f"what varies are items of lists (examples, documents), which belong together; {rates}"
    return (
        "nothing varies before the stable part: no line of a system message changes its value, "
        f"and tools, their keys and spaces stand in one order and form; {rates}"
    )


def seen_before(judge: Judge, positions: Sequence[int], counted: Sequence[int]) -> int:
    """Return the tokens at ``counted`` that lie in a run of 16 tokens of an earlier prompt, anywhere in it.

    ``positions`` are the route's requests; the newest of the earlier ones are known.
    """
    known = WindowSet()
    kept: list[Hashes] = []
    wanted = frozenset(counted)
    total = 0
    for at in positions:
        tokens = np.frombuffer(judge.tokens(at), np.int64).astype(np.uint32)
        if at in wanted and len(tokens) == judge.now.prompt_tokens[at]:
            total += int(known.known(tokens, 0).sum())
        kept = [*kept[1 - _KEPT :], np.sort(window_hashes(tokens))]
        known.add(kept[-1], kept)
    return total
