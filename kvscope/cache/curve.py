"""Hit rate over capacity in one pass: stack distances of an LRU cache that frees as vLLM does.

A block's distance is the number of blocks that were used later than it, itself included, when a lookup asks
for it (Mattson et al., "Evaluation techniques for storage hierarchies", 1970): a cache of that many blocks
just holds it. vLLM frees a request's blocks from the last to the first, so a block is never younger than the
one before it in a prompt. Two things follow, and make the pass fast: what a request finds are runs of blocks
that one earlier request used last, and the blocks which that request used last are the end of its prompt. So
a Fenwick tree over requests, not over blocks, counts what is younger, once for each run.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvscope.cache.traces import BlockTrace, Ints
from kvscope.errors import UsageError

_STEPS = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)  # a decade's round numbers of blocks
_CHUNK_BLOCKS = 1 << 18
NEVER = 0  # the distance of a block that was not used before


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Runs of blocks that one earlier request used last: whose they are now, where they begin, how many.

    A run's first block has the distance ``younger`` + 1, each further one 1 more.
    """

    request: Ints
    position: Ints
    length: Ints
    younger: Ints

    def within(self, most: Ints) -> "Reuse":
        """Return what of the runs lies in the first ``most`` blocks of each request."""
        length = np.clip(most[self.request] - self.position, 0, self.length)
        return dataclasses.replace(self, length=length)


def reuse(trace: BlockTrace) -> Reuse:
    """Return the runs in the order of the trace.

    All blocks of a request are asked for before any of them counts as used again, as in an engine, which
    holds what it found while it makes room for the rest.
    """
    chunks = list(_runs(trace))
    request, position, length, user, alive = (
        np.concatenate([chunk[column] for chunk in chunks]) if chunks else np.zeros(0, np.int64)
        for column in range(5)
    )
    older = _older(trace, request, length, user)
    return Reuse(request=request, position=position, length=length, younger=alive - older)


def _runs(trace: BlockTrace) -> Iterator[tuple[Ints, ...]]:
    """Yield request, position, length, last user of runs, and the different blocks before their requests.

    Goes in chunks of requests, so that memory does not grow with how often blocks are used.
    """
    last = np.full(trace.distinct, -1, dtype=np.int32)
    seen = 0
    first = 0
    while first < len(trace):
        end = int(np.searchsorted(trace.starts, trace.starts[first] + _CHUNK_BLOCKS, side="right")) - 1
        end = max(end, first + 1)
        starts = trace.starts[first : end + 1] - trace.starts[first]
        mine = trace.blocks[trace.starts[first] : trace.starts[end]]
        request = np.repeat(np.arange(first, end, dtype=np.int32), np.diff(starts))
        user = last[mine]
        order = np.argsort(mine, kind="stable")
        again = mine[order][1:] == mine[order][:-1]
        user[order[1:][again]] = request[order[:-1][again]]
        last[mine] = request
        begins = np.ones(len(mine), dtype=np.bool_)
        begins[1:] = (user[1:] != user[:-1]) | (request[1:] != request[:-1])
        edges = np.flatnonzero(begins)
        lengths = np.diff(edges, append=len(mine))
        edges, lengths = edges[user[edges] >= 0], lengths[user[edges] >= 0]
        fresh = np.concatenate([[0], np.cumsum(user < 0)])
        of = request[edges].astype(np.int64)
        begin = starts[of - first]
        yield of, edges - begin, lengths, user[edges].astype(np.int64), seen + fresh[begin]
        seen += int(fresh[-1])
        first = end


def _older(trace: BlockTrace, request: Ints, length: Ints, user: Ints) -> Ints:
    """Return for each run how many blocks were used last by its last user or by requests before that one."""
    tree = [0]  # a Fenwick tree of how many blocks each request used last; it grows request by request
    sizes = trace.lengths.tolist()
    older: list[int] = []
    for now, count, last in zip(request.tolist(), length.tolist(), user.tolist(), strict=True):
        while len(tree) <= now:
            node = len(tree)
            total, below = sizes[node - 1], node - 1
            while below > node - (node & -node):
                total += tree[below]
                below &= below - 1
            tree.append(total)
        total, node = 0, last + 1
        while node:
            total += tree[node]
            node &= node - 1
        older.append(total)
        node = last + 1
        while node <= now:
            tree[node] -= count
            node += node & -node
    return np.array(older, dtype=np.int64)


def stack_distances(trace: BlockTrace) -> NDArray[np.int32]:
    """Return each block's distance when its request arrives; ``NEVER`` for one that is new."""
    runs = reuse(trace)
    distances = np.zeros(len(trace.blocks), dtype=np.int32)
    within = np.arange(runs.length.sum()) - np.repeat(np.cumsum(runs.length) - runs.length, runs.length)
    places = np.repeat(trace.starts[runs.request] + runs.position, runs.length) + within
    distances[places] = np.repeat(runs.younger, runs.length) + within + 1
    return distances


def lru_hits(trace: BlockTrace, num_blocks: int) -> Ints:
    """Return the hit blocks of each request in a cache of ``num_blocks``."""
    runs = reuse(trace).within(trace.lookups)
    found = np.clip(num_blocks - runs.younger, 0, runs.length)
    per_request = np.bincount(runs.request, weights=found, minlength=len(trace))
    return per_request.astype(np.int64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The hit rates of a cache of ``blocks`` blocks; None where nothing was looked up."""

    blocks: int
    hit_rate: float | None
    block_hit_rate: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Hits for every capacity from ``smallest`` on, in blocks, of which ``reserved`` are never used.

    ``blocks[n]`` and ``tokens[n]`` are what n usable blocks find. ``exact`` says that no block was cached
    twice at a time: an engine does that when it computes again what it has (a prompt's last token, generated
    tokens), and then what a lookup touches depends on capacity.
    """

    smallest: int
    distinct: int
    reserved: int
    queried_tokens: int
    queried_blocks: int
    exact: bool
    blocks: Ints
    tokens: Ints

    def hits(self, num_blocks: int) -> tuple[int, int]:
        """Return hit blocks and hit tokens; raises ``UsageError`` where the largest request does not fit."""
        if num_blocks < self.smallest:
            raise UsageError(f"the largest request needs {self.smallest} blocks; {num_blocks} do not hold it")
        usable = min(num_blocks - self.reserved, len(self.blocks) - 1)
        return int(self.blocks[usable]), int(self.tokens[usable])

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
        most = int(np.searchsorted(self.blocks, self.blocks[-1])) + self.reserved
        steps = (step * 10**power // 10 for power in range(12) for step in _STEPS)
        chosen = {self.smallest, max(most, self.smallest), max(self.distinct + self.reserved, self.smallest)}
        chosen.update(step for step in steps if self.smallest < step < most)
        return [self.point(blocks) for blocks in sorted(chosen)]


def capacity_curve(trace: BlockTrace, *, reserved: int = 0) -> Curve:
    """Return the whole curve; ``reserved`` blocks of each capacity are never used (vLLM's null block).

    A request's partial last block keeps a block from the cache until the next one comes (``uncached``).
    """
    runs = reuse(trace)
    found = runs.within(trace.lookups)
    exact = bool((found.length == runs.length).all())
    before = np.concatenate([[0], trace.uncached[:-1]])[: len(trace)]
    nearest = found.younger + before[found.request] + 1
    size = trace.distinct + 3  # distances to distinct, one more for an uncached block, one past the end
    gained = np.bincount(nearest, minlength=size) - np.bincount(nearest + found.length, minlength=size)
    blocks = np.cumsum(np.cumsum(gained))
    ends = (found.position + found.length) * trace.block_size
    missing = np.maximum(ends - trace.prompt_tokens[found.request], 0) * (found.length > 0)
    short = np.bincount(nearest + np.maximum(found.length - 1, 0), weights=missing, minlength=size)
    return Curve(
        smallest=max(trace.largest + reserved, 1),
        distinct=trace.distinct,
        reserved=reserved,
        queried_tokens=trace.queried_tokens,
        queried_blocks=trace.queried_blocks,
        exact=exact,
        blocks=blocks,
        tokens=blocks * trace.block_size - np.cumsum(short).astype(np.int64),
    )
