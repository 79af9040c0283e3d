"""Many requests as columns of block ids: what capacity curves and what-if policies run on."""

import dataclasses
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvscope.cache.numbering import Numbering
from kvscope.errors import UsageError

Ints = NDArray[np.int64]
Numbers = NDArray[np.int32]
_BATCH_BLOCKS = 1 << 16
_NO_PARENT = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockTrace:
    """Requests in the order in which they are replayed.

    Blocks have numbers from 0 to ``distinct`` - 1: each names a block with the whole prefix before it, so
    each has one parent. A request's blocks are kept as stretches of consecutive numbers: request i has the
    stretches from ``begins[i]`` to ``begins[i + 1]``, the first numbers of which are ``firsts`` and their
    blocks ``counts``. Within a stretch each block is the parent of the next, and a stretch begins where no
    other goes through: of two that meet, one is the beginning of the other.

    ``lengths`` are the requests' blocks. A lookup finds at most the first ``lookups[i]`` of them.
    ``uncached[i]`` blocks more cache nothing while it runs and are the first to be taken after (vLLM 0.32's
    partial last block).
    """

    block_size: int
    firsts: Numbers
    counts: Numbers
    begins: Ints
    lengths: Ints
    lookups: Ints
    prompt_tokens: Ints
    uncached: Ints
    distinct: int
    rechained: bool = False

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def blocks(self) -> Numbers:
        """All requests' blocks, one after the other; made anew each time."""
        return _expanded(self.firsts, self.counts)

    @property
    def starts(self) -> Ints:
        """Where each request's blocks start among ``blocks``, and where the last one's end."""
        return _starts(self.lengths)

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


class TraceBuilder:
    """Takes requests, a few bytes for each different block and stretch, and puts them in order at the end."""

    def __init__(self, block_size: int) -> None:
        if block_size < 1:
            raise UsageError(f"a block holds at least one token, not {block_size}")
        self.block_size = block_size
        self._scope = ""
        self._numberings: dict[str, Numbering] = {}
        self._waiting = array("Q")  # ids of the scope at hand that have no numbers yet
        self._numbered = 0  # requests whose ids have numbers
        self._distinct = 0
        self._parents = array("i")  # of each block, until one is seen behind two different ones
        self._tangled = False
        self._firsts = array("i")
        self._counts = array("i")
        self._stretches = array("i")  # of each request
        self._lengths = array("q")
        self._lookups = array("q")
        self._prompt_tokens = array("q")
        self._uncached = array("q")
        self._at = array("d")

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def seconds(self) -> float:
        """Time from the first request to the last."""
        return max(self._at) - min(self._at) if self._at else 0.0

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
        self._enter(scope)
        self._waiting.extend(ids)
        self._lengths.append(len(ids))
        self._lookups.append(len(ids) if lookup_blocks is None else min(lookup_blocks, len(ids)))
        self._prompt_tokens.append(prompt_tokens)
        self._uncached.append(uncached)
        self._at.append(at)

    def add_many(
        self,
        ids: NDArray[np.uint64],
        lengths: Ints,
        *,
        prompt_tokens: Ints,
        at: NDArray[np.float64],
        scope: str = "",
    ) -> None:
        """Add requests as ``add`` does one: ``ids`` are all of theirs, ``lengths`` how many each has."""
        self._enter(scope)
        self._waiting.frombytes(ids.tobytes())
        for column, values in (
            (self._lengths, lengths),
            (self._lookups, lengths),
            (self._prompt_tokens, prompt_tokens),
            (self._uncached, np.zeros(len(lengths), np.int64)),
            (self._at, at),
        ):
            column.frombytes(values.tobytes())

    def build(self) -> tuple[BlockTrace, Ints]:
        """Return the trace in order of time, and the places at which its requests were added."""
        self._give_numbers()
        order = np.argsort(np.frombuffer(self._at) if self._at else np.zeros(0), kind="stable")
        firsts, counts, stretches = map(_narrow, (self._firsts, self._counts, self._stretches))
        if (order[1:] < order[:-1]).any():
            places = _ranges(_starts(stretches)[:-1][order], stretches[order])
            firsts, counts, stretches = firsts[places], counts[places], stretches[order]
        lengths = _column(self._lengths)[order]
        distinct = self._distinct
        if self._tangled:
            blocks, distinct = _chained(_expanded(firsts, counts), lengths)
            firsts, counts, stretches = _cut(blocks, _before(blocks, lengths), lengths)
        trace = BlockTrace(
            block_size=self.block_size,
            firsts=firsts,
            counts=counts,
            begins=_starts(stretches),
            lengths=lengths,
            lookups=_column(self._lookups)[order],
            prompt_tokens=_column(self._prompt_tokens)[order],
            uncached=_column(self._uncached)[order],
            distinct=distinct,
            rechained=self._tangled,
        )
        return trace, order

    def _enter(self, scope: str) -> None:
        if scope != self._scope or len(self._waiting) >= _BATCH_BLOCKS:
            self._give_numbers()
            self._scope = scope

    def _give_numbers(self) -> None:
        """Give the waiting ids their numbers, see to it that each has one parent, and keep the stretches."""
        lengths = _column(self._lengths)[self._numbered :]
        self._numbered = len(self._lengths)
        numbering = self._numberings.setdefault(self._scope, Numbering())
        ids = np.frombuffer(self._waiting, dtype=np.uint64) if self._waiting else np.zeros(0, np.uint64)
        known = self._distinct
        numbers, self._distinct = numbering.number(ids, known)
        before = _before(numbers, lengths)
        if not self._tangled:
            self._tangled = not self._one_parent_each(numbers, before, known)
        firsts, counts, stretches = _cut(numbers, before, lengths)
        self._firsts.frombytes(firsts.tobytes())
        self._counts.frombytes(counts.tobytes())
        self._stretches.frombytes(stretches.tobytes())
        self._waiting = array("Q")

    def _one_parent_each(self, numbers: Numbers, before: Numbers, known: int) -> bool:
        """Whether each block follows the same one wherever it stands, so that it names its whole prefix."""
        new = numbers >= known
        parents = np.empty(self._distinct - known, dtype=np.int32)
        parents[numbers[new] - known] = before[new]
        self._parents.frombytes(parents.tobytes())
        return bool((_narrow(self._parents)[numbers] == before).all())


def _column(values: "array[int]") -> Ints:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, np.int64)


def _narrow(values: "array[int]") -> Numbers:
    return np.frombuffer(values, dtype=np.int32) if values else np.zeros(0, np.int32)


def _starts(lengths: NDArray[np.integer]) -> Ints:
    """Return where each of so long parts starts, and where the last one ends."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _ranges(begins: NDArray[np.integer], counts: NDArray[np.integer]) -> Ints:
    """Return the numbers from each of ``begins`` on, so many as ``counts`` say."""
    starts = _starts(counts)
    return np.arange(starts[-1]) + np.repeat(begins - starts[:-1], counts)


def _expanded(firsts: Numbers, counts: Numbers) -> Numbers:
    return _ranges(firsts, counts).astype(np.int32)


def _before(numbers: Numbers, lengths: Ints) -> Numbers:
    """Return what stands before each number in its request."""
    before = np.empty_like(numbers)
    before[1:] = numbers[:-1]
    before[_starts(lengths)[:-1][lengths > 0]] = _NO_PARENT
    return before


def _cut(numbers: Numbers, before: Numbers, lengths: Ints) -> tuple[Numbers, Numbers, Numbers]:
    """Return numbers as stretches: their first ones, how many each holds, and how many each request has."""
    breaks = numbers != before + 1
    starts = _starts(lengths)
    breaks[starts[:-1][lengths > 0]] = True
    edges = np.flatnonzero(breaks)
    counts = np.diff(edges, append=len(numbers)).astype(np.int32)
    stretches = np.diff(np.searchsorted(edges, starts)).astype(np.int32)
    return numbers[edges], counts, stretches


def _chained(blocks: Numbers, lengths: Ints) -> tuple[Numbers, int]:
    """Return numbers that name blocks with all before them."""
    numbers: dict[int, int] = {}
    chained = array("i")
    given = blocks.tolist()
    kinds = max(given, default=0) + 1
    start = 0
    for length in lengths.tolist():
        parent = _NO_PARENT
        for block in given[start : start + length]:
            parent = numbers.setdefault((parent + 1) * kinds + block, len(numbers))
            chained.append(parent)
        start += length
    return _narrow(chained), len(numbers)
