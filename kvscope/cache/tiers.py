"""What a cache of two tiers would have hit: the engine's own blocks, and more of them in a larger memory.

Both tiers give up what was used least recently. A lookup takes the longest run of blocks from the start that
either tier has; what it finds below is loaded, so it is in the upper tier too from then on.

- ``inclusive``: every block is written to the lower tier as well when it is computed, as vLLM's offloading
  does. The lower tier then holds what the upper one holds, and more only as far as it is larger.
- ``exclusive``: a block moves down when the upper tier gives it up, and up again when it is found. Together
  the tiers hold as much as one cache of both sizes.
"""

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from kvscope.cache.traces import BlockTrace, Ints
from kvscope.errors import UsageError

RULES = ("inclusive", "exclusive")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierHits:
    """Hit blocks of each request, by the tier that had them. ``loaded`` went up, ``stored`` went down."""

    upper: Ints
    lower: Ints
    loaded: int
    stored: int


def tier_hits(trace: BlockTrace, upper_blocks: int, lower_blocks: int, rule: str) -> TierHits:
    """Return what each tier would have found, requests one after the other.

    Raises ``UsageError`` for a rule that is not known, sizes below zero, and an upper tier that does not
    hold the largest request.
    """
    if rule not in RULES:
        raise UsageError(f"no rule {rule!r} between tiers; known are {', '.join(RULES)}")
    if lower_blocks < 0 or upper_blocks < max(trace.largest, 1):
        raise UsageError(
            f"the largest request needs {trace.largest} blocks of the upper tier, which has {upper_blocks}; "
            f"the lower one has {lower_blocks}"
        )
    tiers = _Tiers(upper_blocks, lower_blocks, exclusive=rule == "exclusive")
    blocks = trace.blocks.tolist()
    upper, lower = [], []
    for (start, end), most in zip(
        itertools.pairwise(trace.starts.tolist()), trace.lookups.tolist(), strict=True
    ):
        above, below = tiers.found(blocks[start : start + most])
        upper.append(above)
        lower.append(below)
        tiers.use(reversed(blocks[start:end]))
    return TierHits(
        upper=np.array(upper, dtype=np.int64),
        lower=np.array(lower, dtype=np.int64),
        loaded=sum(lower),
        stored=tiers.stored,
    )


class _Tiers:
    def __init__(self, upper: int, lower: int, *, exclusive: bool) -> None:
        self._capacity = upper
        self._lower_capacity = lower
        self._exclusive = exclusive
        self._upper: OrderedDict[int, None] = OrderedDict()
        self._lower: OrderedDict[int, None] = OrderedDict()
        self.stored = 0

    def found(self, blocks: Iterable[int]) -> tuple[int, int]:
        above = below = 0
        for block in blocks:
            if block in self._upper:
                above += 1
            elif block in self._lower:
                below += 1
            else:
                break
        return above, below

    def use(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._upper[block] = None
            self._upper.move_to_end(block)
            if self._exclusive:
                self._lower.pop(block, None)
            else:
                self._put_down(block)
        while len(self._upper) > self._capacity:
            oldest, _ = self._upper.popitem(last=False)
            if self._exclusive:
                self._put_down(oldest)
        while len(self._lower) > self._lower_capacity:
            self._lower.popitem(last=False)

    def _put_down(self, block: int) -> None:
        self.stored += block not in self._lower
        self._lower[block] = None
        self._lower.move_to_end(block)
