"""Positional entropy: how uncertain the next token of a route's prompts is, given all before it.

The prompts of a route are a prefix tree; where it does not branch, nothing is uncertain and the cache can
serve all. With X_i the token at position i and n(v) prompts through a node v at depth i that go on,

    H_i = H(X_i | X_0 … X_{i-1}) = sum over v of n(v) / N_i · H(counts of v's children)

over the N_i prompts that are longer than i (chain rule of Shannon 1948). For prompts of one length the sum
of all H_i is the entropy of the whole prompt.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvscope.prompts.entropy import counted_entropy

_Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position at which prompts with one prefix differ.

    ``entropy_bits`` is H_i, ``prompts`` is N_i, ``branches`` how many ways lead on, over all prefixes that
    branch here.
    """

    position: int
    entropy_bits: float
    prompts: int
    branches: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where a route's prompts turn from stable to varying.

    ``shared_mean`` and ``shared_median`` are of the common prefix of two different prompts, in tokens, over
    all pairs; None for fewer than two prompts. Positions that are not listed have no entropy.
    """

    prompts: int
    positions: tuple[Position, ...]
    shared_mean: float | None
    shared_median: int | None

    @property
    def entropy_bits(self) -> float:
        """The sum over all positions."""
        return sum(position.entropy_bits for position in self.positions)


def profile(prompts: Sequence[Sequence[int]]) -> Profile:
    """Return the profile of ``prompts``, each a sequence of tokens from 0 to 2**32 - 1.

    Time grows with the number of tokens, and with n log n in prompts.
    """
    # big-endian bytes sort as the tokens do, a prefix before what it begins
    packed = sorted(np.asarray(prompt, dtype=">u4").tobytes() for prompt in prompts)
    arrays = [np.frombuffer(each, dtype=">u4") for each in packed]
    lengths = np.array([len(each) for each in arrays], dtype=np.int64)
    common = np.array(
        [_common(first, second) for first, second in itertools.pairwise(arrays)], dtype=np.int64
    )
    forks = _forks(lengths, common)
    longer = np.sort(lengths)
    positions = []
    for depth in sorted(forks):
        counts = [branches for branches in forks[depth] if len(branches) > 1]
        if not counts:
            continue
        prompts_here = int(len(longer) - np.searchsorted(longer, depth, side="right"))
        bits = sum(counted_entropy(branches) * sum(branches) for branches in counts) / prompts_here
        positions.append(
            Position(position=depth, entropy_bits=bits, prompts=prompts_here, branches=sum(map(len, counts)))
        )
    mean, median = _shared(len(arrays), common)
    return Profile(prompts=len(arrays), positions=tuple(positions), shared_mean=mean, shared_median=median)


def _common(first: npt.NDArray[np.uint32], second: npt.NDArray[np.uint32]) -> int:
    shorter = min(len(first), len(second))
    differs = first[:shorter] != second[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


def _forks(lengths: _Ints, common: _Ints) -> dict[int, list[list[int]]]:
    """Return for each depth the nodes at which sorted prompts part, as sizes of their children.

    Prompts ``i`` and ``i + 1`` part at depth ``common[i]``. Those that part at one node are the neighbours
    at its depth with no lesser depth between them; prompts that end at the node are none of its children.
    """
    forks: dict[int, list[list[int]]] = defaultdict(list)
    open_nodes: list[tuple[int, list[int]]] = []  # (depth, where each child begins)
    for right in range(1, len(lengths) + 1):
        depth = int(common[right - 1]) if right < len(lengths) else -1
        begin = right - 1
        while open_nodes and open_nodes[-1][0] > depth:
            closed, starts = open_nodes.pop()
            begin = starts[0]
            edges = [*starts, right]
            forks[closed].append(
                [end - start for start, end in itertools.pairwise(edges) if lengths[start] > closed]
            )
        if depth >= 0:
            if not open_nodes or open_nodes[-1][0] < depth:
                open_nodes.append((depth, [begin]))
            open_nodes[-1][1].append(right)
    return forks


def _shared(count: int, common: _Ints) -> tuple[float | None, int | None]:
    """Return mean and median over all pairs of the length of their common prefix.

    The common prefix of a pair in sorted order is the least of the neighbours' between them: joining
    neighbours from the longest common prefix down tells of each pair once.
    """
    if count < 2:  # noqa: PLR2004 - a pair
        return None, None
    sizes = np.ones(count, dtype=np.int64)
    heads = np.arange(count)

    def head(place: int) -> int:
        while heads[place] != place:
            heads[place] = heads[heads[place]]
            place = int(heads[place])
        return place

    pairs = 0
    half = (count * (count - 1) // 2 + 1) // 2
    total = 0
    median = None
    for place in np.argsort(-common, kind="stable").tolist():
        left, right = head(place), head(place + 1)
        made = int(sizes[left] * sizes[right])
        sizes[left] += sizes[right]
        heads[right] = left
        pairs += made
        total += made * int(common[place])
        if median is None and pairs >= half:
            median = int(common[place])
    return total / pairs, median
