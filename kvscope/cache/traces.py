"""Many requests as columns of block ids: what capacity curves and what-if policies run on."""

import dataclasses
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvscope.cache.numbering import Numbering
from kvscope.errors import UsageError

Ints = NDArray[np.int64]
_BATCH_BLOCKS = 1 << 18


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
    """Takes requests one by one, about 4 bytes a block, and puts them in order at the end."""

    def __init__(self, block_size: int) -> None:
        if block_size < 1:
            raise UsageError(f"a block holds at least one token, not {block_size}")
        self.block_size = block_size
        self._waiting = array("Q")  # ids of the scope at hand that have no numbers yet
        self._scope = ""
        self._numberings: dict[str, Numbering] = {}
        self._distinct = 0
        self._blocks = array("i")
        self._ends = array("q")
        self._lookups = array("q")
        self._prompt_tokens = array("q")
        self._uncached = array("q")
        self._at = array("d")

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
        """Add a request by its block ids; ids of a named scope equal those of no other.

        ``lookup_blocks``: how many of them a lookup may find; None for all. Requests with the same ``at``
        stay in the order in which they came.
        """
        if scope != self._scope or len(self._waiting) >= _BATCH_BLOCKS:
            self._give_numbers()
            self._scope = scope
        self._waiting.extend(ids)
        self._ends.append(len(self._blocks) + len(self._waiting))
        self._lookups.append(len(ids) if lookup_blocks is None else min(lookup_blocks, len(ids)))
        self._prompt_tokens.append(prompt_tokens)
        self._uncached.append(uncached)
        self._at.append(at)

    def build(self) -> tuple[BlockTrace, Ints]:
        """Return the trace in order of time, and the places at which its requests were added."""
        self._give_numbers()
        order = np.argsort(np.frombuffer(self._at) if self._at else np.zeros(0), kind="stable")
        ends = _column(self._ends)
        lengths = np.diff(ends, prepend=0)
        blocks = np.frombuffer(self._blocks, dtype=np.int32) if self._blocks else np.zeros(0, np.int32)
        if (order[1:] < order[:-1]).any():
            begins = (ends - lengths)[order].tolist()
            parts = zip(begins, ends[order].tolist(), strict=True)
            blocks = np.concatenate([blocks[begin:end] for begin, end in parts])
        starts = np.concatenate([[0], np.cumsum(lengths[order])])
        distinct = self._distinct
        rechained = not _one_parent_each(blocks, starts, distinct)
        if rechained:
            blocks, distinct = _chained(blocks, starts)
        trace = BlockTrace(
            block_size=self.block_size,
            blocks=blocks,
            starts=starts,
            lookups=_column(self._lookups)[order],
            prompt_tokens=_column(self._prompt_tokens)[order],
            uncached=_column(self._uncached)[order],
            distinct=distinct,
            rechained=rechained,
        )
        return trace, order

    def _give_numbers(self) -> None:
        if not self._waiting:
            return
        numbering = self._numberings.setdefault(self._scope, Numbering())
        ids = np.frombuffer(self._waiting, dtype=np.uint64)
        numbers, self._distinct = numbering.number(ids, self._distinct)
        self._blocks.frombytes(numbers.tobytes())
        self._waiting = array("Q")


def _column(values: "array[int]") -> Ints:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, np.int64)


def _one_parent_each(blocks: NDArray[np.int32], starts: Ints, distinct: int) -> bool:
    """Whether each block follows the same one wherever it stands, so that it names its whole prefix."""
    unknown, none = -2, -1
    parents = np.full(distinct, unknown, dtype=np.int32)
    firsts = starts[:-1][starts[:-1] < starts[1:]]
    for start in range(0, len(blocks), _BATCH_BLOCKS):
        mine = blocks[start : start + _BATCH_BLOCKS]
        before = np.empty_like(mine)
        before[1:] = mine[:-1]
        before[0] = blocks[start - 1]  # at the very start the next line writes over it
        here = slice(*np.searchsorted(firsts, [start, start + len(mine)]))
        before[firsts[here] - start] = none
        known = parents[mine]
        if ((known != unknown) & (known != before)).any():
            return False
        parents[mine] = before
        if (parents[mine] != before).any():
            return False
    return True


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
