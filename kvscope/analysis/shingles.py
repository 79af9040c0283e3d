"""Which tokens of a prompt occur, in runs, in prompts that were seen before, wherever they stood there.

A window is a run of 16 tokens, hashed to 64 bits. A token is *known* when it lies in a window that was seen
before. So single words that occur everywhere do not count, and a moved paragraph does.
"""

import functools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

WINDOW_TOKENS = 16
_MULTIPLIER = 0xBF58_476D_1CE4_E5B9
_ADDED_BEFORE_REBUILD = 8

Tokens = NDArray[np.uint32]
Hashes = NDArray[np.uint64]


def window_hashes(tokens: Tokens) -> Hashes:
    """Return the hash of the window that starts at each token; too short a prompt has none."""
    count = len(tokens) - WINDOW_TOKENS + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    spread = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(_MULTIPLIER)
    spread ^= spread >> np.uint64(31)
    total = np.zeros(count, dtype=np.uint64)
    for place, weight in enumerate(_weights()):
        total += spread[place : place + count] * weight
    return total ^ (total >> np.uint64(29))


@functools.cache
def _weights() -> list[np.uint64]:
    """Return an odd number for each place in a window, so that order counts."""
    random = np.random.default_rng(20_240_229)  # any fixed seed: both sides must use the same numbers
    return list(random.integers(1, 1 << 63, WINDOW_TOKENS, dtype=np.uint64) * np.uint64(2) + np.uint64(1))


class WindowSet:
    """The windows of a route's known prompts; adding is cheap, old ones go when the set is rebuilt."""

    def __init__(self) -> None:
        self._base: Hashes = np.empty(0, dtype=np.uint64)
        self._added: list[Hashes] = []

    def add(self, hashes: Hashes, kept: Iterable[Hashes]) -> None:
        """Add sorted hashes of one prompt; ``kept`` are those of all prompts that are still known."""
        self._added.append(hashes)
        if len(self._added) > _ADDED_BEFORE_REBUILD:
            self._base = _unique(np.sort(np.concatenate([hashes[:0], *kept])))
            self._added.clear()

    def known(self, tokens: Tokens, start: int) -> NDArray[np.bool_]:
        """Return for each token whether it lies in a known window that begins at ``start`` or later."""
        mask = np.zeros(len(tokens), dtype=np.bool_)
        hashes = window_hashes(tokens[start:])
        if not len(hashes):
            return mask
        found = _among(hashes, self._base)
        for added in self._added:
            found |= _among(hashes, added)
        steps = np.zeros(len(tokens) + 1, dtype=np.int32)
        begins = np.flatnonzero(found) + start
        steps[begins] += 1
        steps[begins + WINDOW_TOKENS] -= 1
        return np.cumsum(steps[:-1]) > 0


def _unique(ordered: Hashes) -> Hashes:
    """Return sorted hashes without repeats; ``np.unique`` hashes them again, which is slower here."""
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def _among(hashes: Hashes, ordered: Hashes) -> NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(hashes), dtype=np.bool_)
    places = np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)
    return np.asarray(ordered[places] == hashes)
