"""What a cache of blocks would have hit under several policies: request by request, one after the other.

A request finds its longest cached prefix. Its blocks are then used from the last to the first, as vLLM frees
them, and a cache that is full gives up a block for each one that comes in. These are what-ifs of a plain
cache of blocks; ``cache.pool`` is the engine itself.
"""

import dataclasses
import heapq
import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from typing_extensions import override

from kvscope.cache.curve import lru_hits
from kvscope.cache.traces import BlockTrace, Ints
from kvscope.errors import UsageError


class Policy(Protocol):
    """The blocks of a cache of fixed capacity."""

    def __contains__(self, block: int) -> bool: ...

    def use(self, block: int, place: int) -> None:
        """Use a block, taking it in if need be; ``place`` is where it stands in the trace."""
        ...


class Fifo:
    """Gives up the block that came in first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def use(self, block: int, place: int) -> None:  # noqa: ARG002 - the order of coming counts
        """Take a new block in."""
        if block not in self._blocks:
            if len(self._blocks) >= self._capacity:
                self._blocks.popitem(last=False)
            self._blocks[block] = None


class _Ranked(ABC):
    """Gives up the block of the lowest rank; of equals the one that was used first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._rank: dict[int, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, int]] = []  # ranks that no longer hold are passed over
        self._uses = itertools.count()
        self._given_up = 0.0  # the rank of the block that went last

    def __contains__(self, block: int) -> bool:
        return block in self._rank

    def use(self, block: int, place: int) -> None:
        """Use a block and rank it anew; it may be the one that goes."""
        rank = self._rank[block] = (self.rank(block, place), next(self._uses))
        heapq.heappush(self._heap, (*rank, block))
        while len(self._rank) > self._capacity:
            first, second, lowest = heapq.heappop(self._heap)
            if self._rank.get(lowest) == (first, second):
                del self._rank[lowest]
                self._given_up = first

    @abstractmethod
    def rank(self, block: int, place: int) -> float:
        """Return where the block stands now: the one with the lowest rank goes first."""


class Lfu(_Ranked):
    """Gives up the block with the fewest uses since it came in."""

    @override
    def rank(self, block: int, place: int) -> float:
        known = self._rank.get(block)
        return 1 if known is None else known[0] + 1


class Size(_Ranked):
    """Gives up blocks of large requests first, with ageing: GreedyDual-Size (Cao and Irani, 1997).

    A block is worth 1 ÷ the blocks of the request that used it last, above what the last block to go was
    worth; so a large prompt does not push out many small ones.
    """

    def __init__(self, capacity: int, request_blocks: Sequence[int]) -> None:
        super().__init__(capacity)
        self._request_blocks = request_blocks  # by place in the trace

    @override
    def rank(self, block: int, place: int) -> float:
        return self._given_up + 1 / self._request_blocks[place]


class Segmented:
    """Gives up blocks that were used once before those that were found again: segmented LRU.

    What is found again is protected, up to four fifths of the cache; from there the oldest goes back among
    the others (Karedla, Love and Wherry, 1994).
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._most_protected = capacity * 4 // 5
        self._protected: OrderedDict[int, None] = OrderedDict()
        self._others: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._protected or block in self._others

    def use(self, block: int, place: int) -> None:  # noqa: ARG002 - what was used before counts
        """Use a block; a second time it is protected."""
        known = block in self
        self._others.pop(block, None)
        self._protected.pop(block, None)
        (self._protected if known else self._others)[block] = None
        if len(self._protected) > self._most_protected:
            oldest, _ = self._protected.popitem(last=False)
            self._others[oldest] = None
        if len(self._protected) + len(self._others) > self._capacity:
            self._others.popitem(last=False)


class Optimal(_Ranked):
    """Gives up the block that is used again last (Belady, 1966): a ceiling, as it knows the future."""

    def __init__(self, capacity: int, next_place: Sequence[int]) -> None:
        super().__init__(capacity)
        self._next_place = next_place

    @override
    def rank(self, block: int, place: int) -> float:
        return -self._next_place[place]


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy by name."""

    hits: Callable[[BlockTrace, int], Ints]
    help: str


def hit_blocks(trace: BlockTrace, policy: str, num_blocks: int | None) -> Ints:
    """Return the hit blocks of each request; ``num_blocks`` None is a cache without limit.

    Raises ``UsageError`` for a policy that is not known, and for a cache that does not hold the largest
    request.
    """
    if policy not in POLICIES:
        raise UsageError(f"no policy {policy!r}; known are {', '.join(POLICIES)}")
    if num_blocks is not None and num_blocks < max(trace.largest, 1):
        raise UsageError(
            f"the largest request needs {trace.largest} blocks of {trace.block_size} tokens, but the cache "
            f"has only {num_blocks}; name more blocks"
        )
    if num_blocks is None or policy == "infinite":
        return lru_hits(trace, trace.distinct)
    return POLICIES[policy].hits(trace, num_blocks)


def _simulated(make: Callable[[BlockTrace, int], Policy]) -> Callable[[BlockTrace, int], Ints]:
    def hits(trace: BlockTrace, num_blocks: int) -> Ints:
        cache = make(trace, num_blocks)
        blocks, lookups = trace.blocks.tolist(), trace.lookups.tolist()
        found = []
        for (start, end), most in zip(itertools.pairwise(trace.starts.tolist()), lookups, strict=True):
            at = start
            while at < start + most and blocks[at] in cache:
                at += 1
            found.append(at - start)
            for place in range(end - 1, start - 1, -1):
                cache.use(blocks[place], place)
        return np.array(found, dtype=np.int64)

    return hits


def _next_places(trace: BlockTrace) -> list[int]:
    """Return for each place of the trace where its block stands next.

    Of one request's blocks the last one is needed last: without those before it, it would not be found.
    """
    order = np.argsort(trace.blocks, kind="stable")
    following = np.full(len(order), np.iinfo(np.int64).max)
    same = trace.blocks[order][1:] == trace.blocks[order][:-1]
    following[order[:-1][same]] = order[1:][same]
    places: list[int] = following.tolist()
    return places


POLICIES = {
    "lru": PolicyInfo(lru_hits, "least recently used first, as vLLM"),
    "lfu": PolicyInfo(_simulated(lambda _, blocks: Lfu(blocks)), "least often used first"),
    "fifo": PolicyInfo(_simulated(lambda _, blocks: Fifo(blocks)), "oldest first"),
    "size": PolicyInfo(
        _simulated(lambda trace, blocks: Size(blocks, np.repeat(trace.lengths, trace.lengths).tolist())),
        "blocks of large requests first, with ageing (GreedyDual-Size)",
    ),
    "priority": PolicyInfo(
        _simulated(lambda _, blocks: Segmented(blocks)),
        "blocks used once before those found again (segmented LRU)",
    ),
    "optimal": PolicyInfo(
        _simulated(lambda trace, blocks: Optimal(blocks, _next_places(trace))),
        "used again last first (Belady): a ceiling",
    ),
    "infinite": PolicyInfo(lru_hits, "nothing is given up: the other ceiling"),
}
