"""Hit rate over capacity in one pass: stack distances of an LRU cache that frees as vLLM does.

A block's distance is the number of blocks that were used later than it, itself included, when a lookup asks
for it (Mattson et al., "Evaluation techniques for storage hierarchies", 1970): a cache of that many blocks
just holds it. vLLM frees a request's blocks from the last to the first, so a block is never younger than the
one before it in a prompt. Two things follow, and make the pass fast: what a request finds are runs of blocks
that one earlier request used last, and the blocks which that request used last are the end of its prompt. So
a Fenwick tree over requests, not over blocks, counts what is younger, once for each run.
"""

import dataclasses
import itertools

import numpy as np
from numpy.typing import NDArray

from kvscope.cache.traces import BlockTrace, Ints
from kvscope.errors import UsageError

_STEPS = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)  # a decade's round numbers of blocks
NEVER = 0  # the distance of a block that was not used before


def stack_distances(trace: BlockTrace) -> NDArray[np.int32]:
    """Return each block's distance when its request arrives; ``NEVER`` for one that is new.

    All blocks of a request are asked for before any of them counts as used again, as in an engine, which
    holds what it found while it makes room for the rest.
    """
    runs = _runs(trace)
    distances = np.zeros(len(trace.blocks), dtype=np.int32)
    if not len(runs):
        return distances
    first, length, younger = runs.T
    places = np.repeat(first - np.concatenate([[0], np.cumsum(length)[:-1]]), length) + np.arange(
        length.sum()
    )
    distances[places] = np.repeat(younger, length) + (places - np.repeat(first, length)) + 1
    return distances


def _runs(trace: BlockTrace) -> Ints:
    """Return place, length and number of younger blocks of each run of blocks last used by one request."""
    last = np.full(trace.distinct, -1, dtype=np.int32)
    tree = [0] * (len(trace) + 1)
    size = len(tree)
    alive = 0  # different blocks so far
    rows: list[int] = []
    starts = trace.starts.tolist()
    for request, (start, end) in enumerate(itertools.pairwise(starts)):
        mine = trace.blocks[start:end]
        users = last[mine]
        last[mine] = request
        moved = 0
        for place, length, user in _equal_runs(users):
            # blocks that were used last by requests up to `user`; longer runs before this one were younger
            older, node = 0, user + 1
            while node:
                older += tree[node]
                node &= node - 1
            rows += (start + place, length, alive - older)
            node = user + 1
            while node < size:
                tree[node] -= length
                node += node & -node
            moved += length
        alive += end - start - moved
        node = request + 1
        while node < size:
            tree[node] += end - start
            node += node & -node
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _equal_runs(users: NDArray[np.int32]) -> list[tuple[int, int, int]]:
    """Return place, length and user of each run of one earlier user; new blocks end the list."""
    count = len(users)
    if not count or users[0] < 0:
        return []
    if users[-1] == users[0]:
        return [(0, count, int(users[0]))]
    edges = [0, *(np.flatnonzero(users[1:] != users[:-1]) + 1).tolist(), count]
    found = [(edge, following - edge, int(users[edge])) for edge, following in itertools.pairwise(edges)]
    return found if found[-1][2] >= 0 else found[:-1]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The hit rates of a cache of ``blocks`` blocks; None where nothing was looked up."""

    blocks: int
    hit_rate: float | None
    block_hit_rate: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Hits for every capacity from ``smallest`` on, in blocks, of which ``reserved`` are never used.

    ``exact`` says that no block was cached twice at a time: an engine does that when it computes again what
    it has (a prompt's last token, generated tokens), and then what a lookup touches depends on capacity.
    """

    smallest: int
    distinct: int
    reserved: int
    queried_tokens: int
    queried_blocks: int
    exact: bool
    needed: Ints
    tokens: Ints

    def hits(self, num_blocks: int) -> tuple[int, int]:
        """Return hit blocks and hit tokens; raises ``UsageError`` where the largest request does not fit."""
        if num_blocks < self.smallest:
            raise UsageError(f"the largest request needs {self.smallest} blocks; {num_blocks} do not hold it")
        found = int(np.searchsorted(self.needed, num_blocks - self.reserved, side="right"))
        return found, int(self.tokens[found])

    def point(self, num_blocks: int) -> CurvePoint:
        """Return the rates of one capacity; raises as ``hits``."""
        blocks, tokens = self.hits(num_blocks)
        return CurvePoint(
            blocks=num_blocks,
            hit_rate=tokens / self.queried_tokens if self.queried_tokens else None,
            block_hit_rate=blocks / self.queried_blocks if self.queried_blocks else None,
        )

    def points(self) -> list[CurvePoint]:
        """Return the curve at round numbers of blocks, from the smallest to where nothing more is gained."""
        most = int(self.needed[-1]) + self.reserved if len(self.needed) else 0
        last = max(self.distinct + self.reserved, self.smallest)
        steps = (step * 10**power // 10 for power in range(12) for step in _STEPS)
        chosen = {self.smallest, max(most, self.smallest), last}
        chosen.update(step for step in steps if self.smallest < step < most)
        return [self.point(blocks) for blocks in sorted(chosen)]


def capacity_curve(trace: BlockTrace, *, reserved: int = 0) -> Curve:
    """Return the whole curve; ``reserved`` blocks of each capacity are never used (vLLM's null block)."""
    distances = stack_distances(trace)
    looked_up = trace.looked_up()
    seen = distances != NEVER
    found = seen & looked_up
    before = np.concatenate([[0], trace.uncached[:-1]]) if len(trace) else trace.uncached
    needed = (distances + np.repeat(before, trace.lengths))[found]
    position = trace.position()
    tokens = np.minimum(
        np.repeat(trace.prompt_tokens, trace.lengths) - position * trace.block_size, trace.block_size
    )[found]
    order = np.argsort(needed, kind="stable")
    return Curve(
        smallest=max(trace.largest + reserved, 1),
        distinct=trace.distinct,
        reserved=reserved,
        queried_tokens=trace.queried_tokens,
        queried_blocks=trace.queried_blocks,
        exact=not bool((seen & ~looked_up).any()),
        needed=needed[order],
        tokens=np.concatenate([[0], np.cumsum(tokens[order])]),
    )
