"""Hit rate over capacity in one pass: stack distances of an LRU cache that frees as vLLM does.

A block's distance is the number of blocks that were used later than it, itself included, when a lookup asks
for it (Mattson et al., "Evaluation techniques for storage hierarchies", 1970): a cache of that many blocks
just holds it. vLLM frees a request's blocks from the last to the first, so a block is never younger than the
one before it in a prompt. Two things follow, and make the pass fast: what a request finds are runs of blocks
that one earlier request used last, and the blocks which that request used last are the end of its prompt. So
blocks are never looked at one by one: runs come from stretches of consecutive blocks, and what is younger is
counted over runs. Nothing loops over requests either; each step is one over columns.
"""

import dataclasses

import numpy as np

from kvscope.cache.traces import BlockTrace, Ints
from kvscope.errors import UsageError

_STEPS = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)  # a decade's round numbers of blocks
_NONE = -1


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
    request, position, length, user = _runs(trace)
    found = np.bincount(request, weights=length, minlength=len(trace)).astype(np.int64)
    fresh = np.cumsum(trace.lengths - found) - (trace.lengths - found)  # different blocks before each request
    used_until = np.cumsum(trace.lengths)[user]  # by the last user and all before it ...
    taken_over = _sums_before(user, length)  # ... of which later requests have used so many since
    younger = fresh[request] - (used_until - taken_over)
    return Reuse(request=request, position=position, length=length, younger=younger)


def _runs(trace: BlockTrace) -> tuple[Ints, Ints, Ints, Ints]:
    """Return request, position, length and last user of the runs.

    A stretch holds, from its beginning on, what the last use of the same stretch reached, then what a
    longer one before that reached, and so on.
    """
    requests = np.repeat(np.arange(len(trace)), np.diff(trace.begins))
    ends = np.cumsum(trace.counts, dtype=np.int64)
    positions = ends - trace.counts - (np.cumsum(trace.lengths) - trace.lengths)[requests]
    order = np.argsort(trace.firsts, kind="stable")
    same = trace.firsts[order][1:] == trace.firsts[order][:-1]
    counts = trace.counts[order].astype(np.int64)
    last = np.arange(-1, len(order) - 1)
    last[:1] = _NONE
    last[1:][~same] = _NONE
    longer = _longer(counts, last)
    asking = np.flatnonzero(last != _NONE)
    user, low = last[asking], np.zeros(len(asking), dtype=np.int64)
    places, lows, highs, users = [], [], [], []
    while len(asking):
        high = np.minimum(counts[user], counts[asking])
        places.append(asking)
        lows.append(low)
        highs.append(high)
        users.append(user)
        on = (counts[user] < counts[asking]) & (longer[user] != _NONE)
        asking, low, user = asking[on], high[on], longer[user[on]]
    if not places:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty, empty
    place, low, high = order[np.concatenate(places)], np.concatenate(lows), np.concatenate(highs)
    user = requests[order[np.concatenate(users)]]
    return _joined(requests[place], positions[place] + low, high - low, user)


def _longer(counts: Ints, last: Ints) -> Ints:
    """Return for each use of a stretch the last one before it that reached further.

    All between a use and the one that it points to are no longer than it; so from one that is no longer the
    pointer may go on to where that one points.
    """
    longer = last.copy()
    open_ = np.flatnonzero(longer != _NONE)
    while len(open_):
        target = longer[open_]
        open_ = open_[counts[target] <= counts[open_]]
        longer[open_] = longer[longer[open_]]
        open_ = open_[longer[open_] != _NONE]
    return longer


def _joined(request: Ints, position: Ints, length: Ints, user: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return runs in the order of the trace; neighbours of one user are one run."""
    order = np.lexsort((position, request))
    request, position, length, user = request[order], position[order], length[order], user[order]
    begins = np.ones(len(request), dtype=np.bool_)
    begins[1:] = (request[1:] != request[:-1]) | (user[1:] != user[:-1])
    edges = np.flatnonzero(begins)
    return request[edges], position[edges], np.add.reduceat(length, edges), user[edges]


def _sums_before(values: Ints, weights: Ints) -> Ints:
    """Return for each place the sum of the weights at earlier places with no larger value.

    A merge sort from the top down: all places stand in the order of their values, in groups of twice a power
    of two neighbouring places; those of a group's first half count for those of its second half.
    """
    sums = np.zeros(len(values), dtype=np.int64)
    places = np.argsort(values, kind="stable")
    here = np.arange(len(values))
    for bit in reversed(range((len(values) - 1).bit_length() if len(values) else 0)):
        half = 1 << bit
        second = (places & half) != 0
        group = here >> (bit + 1) << bit  # places in first halves of the groups before
        counted = np.cumsum(np.where(second, 0, weights[places]))
        before = np.concatenate([[0], counted])[group << 1]
        sums[places[second]] += (counted - before)[second]
        firsts = np.cumsum(~second)
        moved = np.empty_like(places)
        first = ~second
        moved[(firsts - 1 + group)[first]] = places[first]
        moved[(here - firsts + group + half)[second]] = places[second]
        places = moved
    return sums


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
    blocks = np.bincount(nearest, minlength=size)
    blocks -= np.bincount(nearest + found.length, minlength=size)
    for _ in range(2):  # what each capacity gains over the next smaller one, then what it finds
        np.cumsum(blocks, out=blocks)
    ends = (found.position + found.length) * trace.block_size
    missing = np.maximum(ends - trace.prompt_tokens[found.request], 0) * (found.length > 0)
    short = np.bincount(nearest + np.maximum(found.length - 1, 0), weights=missing, minlength=size)
    np.cumsum(short, out=short)
    return Curve(
        smallest=max(trace.largest + reserved, 1),
        distinct=trace.distinct,
        reserved=reserved,
        queried_tokens=trace.queried_tokens,
        queried_blocks=trace.queried_blocks,
        exact=exact,
        blocks=blocks,
        tokens=blocks * trace.block_size - short.astype(np.int64),
    )
