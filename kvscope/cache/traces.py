"""Many requests as columns of block ids: what capacity curves and what-if policies run on."""

import dataclasses
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvscope.errors import UsageError

Ints = NDArray[np.int64]
_SCOPE_BITS = 40
_DENSE = 4  # ids are used as they are while the largest is at most so many times their number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockTrace:
    """Requests in the order in which they are replayed.

    ``blocks`` holds numbers from 0 to ``distinct`` - 1: each names a block with the whole prefix before it,
    so each has one parent. Request i's blocks are ``blocks[starts[i] : starts[i + 1]]``. A lookup finds at
    most the first ``lookups[i]`` of them. ``uncached[i]`` blocks more cache nothing while it runs and are the
    first to be taken after (vLLM 0.32's partial last block).
    """

    block_size: int
    blocks: NDArray[np.int32]
    starts: Ints
    lookups: Ints
    prompt_tokens: Ints
    uncached: Ints
    distinct: int
    rechained: bool = False

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def lengths(self) -> Ints:
        """Blocks of each request."""
        return np.diff(self.starts)

    @property
    def largest(self) -> int:
        """Blocks that the largest request holds at a time."""
        return int((self.lengths + self.uncached).max(initial=0))

    @property
    def queried_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return int(self.prompt_tokens.sum())

    @property
    def queried_blocks(self) -> int:
        """Blocks of all prompts, the last partial ones included."""
        return int((-(-self.prompt_tokens // self.block_size)).sum())

    def hit_tokens(self, hit_blocks: Ints) -> Ints:
        """Return the tokens in each request's first ``hit_blocks`` blocks."""
        return np.minimum(hit_blocks * self.block_size, self.prompt_tokens)

    def position(self) -> Ints:
        """Return each block's place in its request, from 0 on."""
        return np.arange(len(self.blocks)) - np.repeat(self.starts[:-1], self.lengths)

    def looked_up(self) -> NDArray[np.bool_]:
        """Return which blocks a lookup may find."""
        return self.position() < np.repeat(self.lookups, self.lengths)


class TraceBuilder:
    """Takes requests one by one, about 8 bytes a block, and puts them in order at the end."""

    def __init__(self, block_size: int) -> None:
        if block_size < 1:
            raise UsageError(f"a block holds at least one token, not {block_size}")
        self.block_size = block_size
        self._ids = array("Q")
        self._ends = array("q")
        self._lookups = array("q")
        self._prompt_tokens = array("q")
        self._uncached = array("b")
        self._at = array("d")
        self._scopes: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self._ends)

    def add(
        self,
        ids: Sequence[int],
        *,
        prompt_tokens: int,
        at: float = 0.0,
        lookup_blocks: int | None = None,
        uncached: int = 0,
        scope: str = "",
    ) -> None:
        """Add a request by its block ids; ids of a named scope, all below 2**40, equal those of no other.

        ``lookup_blocks``: how many of them a lookup may find; None for all. Requests with the same ``at``
        stay in the order in which they came.
        """
        offset = self._scopes.setdefault(scope, len(self._scopes)) << _SCOPE_BITS
        if offset:
            moved = np.asarray(ids, dtype=np.uint64) + np.uint64(offset)
            self._ids.frombytes(moved.tobytes())
        else:
            self._ids.extend(ids)
        self._ends.append(len(self._ids))
        self._lookups.append(len(ids) if lookup_blocks is None else min(lookup_blocks, len(ids)))
        self._prompt_tokens.append(prompt_tokens)
        self._uncached.append(uncached)
        self._at.append(at)

    def build(self) -> tuple[BlockTrace, Ints]:
        """Return the trace in order of time, and the places at which its requests were added."""
        at = np.frombuffer(self._at, dtype=np.float64) if self._at else np.zeros(0)
        order = np.argsort(at, kind="stable")
        ends = _column(self._ends)
        lengths = np.diff(ends, prepend=0)
        ids = np.frombuffer(self._ids, dtype=np.uint64) if self._ids else np.zeros(0, np.uint64)
        if (order[1:] < order[:-1]).any():
            begins = ends - lengths
            starts = np.concatenate([[0], np.cumsum(lengths[order])])
            ids = ids[np.repeat(begins[order] - starts[:-1], lengths[order]) + np.arange(len(ids))]
        else:
            starts = np.concatenate([[0], ends])
        blocks, distinct = _numbered(ids)
        rechained = not _one_parent_each(blocks, starts, distinct)
        if rechained:
            blocks, distinct = _chained(blocks, starts)
        trace = BlockTrace(
            block_size=self.block_size,
            blocks=blocks,
            starts=starts,
            lookups=_column(self._lookups)[order],
            prompt_tokens=_column(self._prompt_tokens)[order],
            uncached=np.frombuffer(self._uncached, dtype=np.int8).astype(np.int64)[order]
            if self._uncached
            else np.zeros(0, np.int64),
            distinct=distinct,
            rechained=rechained,
        )
        return trace, order


def _column(values: "array[int]") -> Ints:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, np.int64)


def _numbered(ids: NDArray[np.uint64]) -> tuple[NDArray[np.int32], int]:
    """Return the ids as numbers from 0 on without gaps, and how many there are."""
    if not len(ids):
        return np.zeros(0, np.int32), 0
    largest = int(ids.max())
    if largest < max(_DENSE * len(ids), 1024):
        present = np.zeros(largest + 1, dtype=np.bool_)
        present[ids] = True
        numbers = np.cumsum(present, dtype=np.int32) - np.int32(1)
        return numbers[ids], int(present.sum())
    unique, inverse = np.unique(ids, return_inverse=True)
    return inverse.astype(np.int32), len(unique)


def _one_parent_each(blocks: NDArray[np.int32], starts: Ints, distinct: int) -> bool:
    """Whether each block follows the same one wherever it stands, so that it names its whole prefix."""
    before = np.empty_like(blocks)
    before[1:] = blocks[:-1]
    firsts = starts[:-1]
    before[firsts[firsts < starts[1:]]] = -1
    parents = np.empty(distinct, dtype=np.int32)
    parents[blocks] = before
    return bool((parents[blocks] == before).all())


def _chained(blocks: NDArray[np.int32], starts: Ints) -> tuple[NDArray[np.int32], int]:
    """Return numbers that name blocks with all before them."""
    numbers: dict[tuple[int, int], int] = {}
    chained = array("i")
    given = blocks.tolist()
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        parent = -1
        for block in given[start:end]:
            parent = numbers.setdefault((parent, block), len(numbers))
            chained.append(parent)
    return np.frombuffer(chained, dtype=np.int32), len(numbers)
