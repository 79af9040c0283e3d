"""What several replicas, each with a cache of its own, would have hit under different ways to route.

- ``round_robin``: each replica in its turn.
- ``session``: a conversation stays on the replica that its first request was given, in turn.
- ``prefix``: to the replica that has most of the prompt; of equals to the one with the fewest tokens so far.
  One that has more than ``MOST_LOAD`` times its share of the tokens takes none, as in consistent hashing
  with bounded loads (Mirrokni et al., 2018): without it all prompts that begin alike go to one replica.
"""

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from kvscope.cache.traces import BlockTrace, Ints
from kvscope.errors import UsageError

MOST_LOAD = 1.25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Hit blocks of each request, and the prompt tokens that were routed to and computed by each replica."""

    hits: Ints
    tokens: Ints
    computed_tokens: Ints

    @property
    def imbalance(self) -> float:
        """Computed tokens of the busiest replica ÷ the mean: 1 is even; the number of replicas most."""
        mean = float(self.computed_tokens.mean())
        return float(self.computed_tokens.max()) / mean if mean else 1.0


class _Replica:
    """A least-recently-used cache of blocks, and what it was given to do."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.tokens = 0
        self.computed_tokens = 0

    def found(self, blocks: Sequence[int]) -> int:
        return sum(1 for _ in itertools.takewhile(self._blocks.__contains__, blocks))

    def use(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
            if len(self._blocks) > self._capacity:
                self._blocks.popitem(last=False)


@dataclasses.dataclass(frozen=True, slots=True)
class _Choice:
    """What a way to route may look at."""

    number: int  # of the request
    session: int
    blocks: Sequence[int]  # that a lookup may find


Route = Callable[[_Choice, Sequence[_Replica]], int]


def _round_robin(choice: _Choice, replicas: Sequence[_Replica]) -> int:
    return choice.number % len(replicas)


def _session(choice: _Choice, replicas: Sequence[_Replica]) -> int:
    return choice.session % len(replicas)


def _prefix(choice: _Choice, replicas: Sequence[_Replica]) -> int:
    most = MOST_LOAD * sum(each.tokens for each in replicas) / len(replicas)
    open_to = [place for place, each in enumerate(replicas) if each.tokens <= most]
    return max(
        open_to, key=lambda place: (replicas[place].found(choice.blocks), -replicas[place].tokens, -place)
    )


ROUTINGS: dict[str, Route] = {"round_robin": _round_robin, "session": _session, "prefix": _prefix}


def routed(
    trace: BlockTrace,
    replicas: int,
    num_blocks: int | None,
    routing: str,
    sessions: Sequence[int] | None = None,
) -> Routed:
    """Return what ``replicas`` caches of ``num_blocks`` each would have hit, requests one after the other.

    ``num_blocks`` None is without limit. ``sessions`` numbers each request's conversation; None takes
    ``conversations``. Raises ``UsageError`` for a routing that is not known, no replica, and a cache that
    does not hold the largest request.
    """
    if routing not in ROUTINGS:
        raise UsageError(f"no routing {routing!r}; known are {', '.join(ROUTINGS)}")
    if replicas < 1:
        raise UsageError(f"traffic needs at least one replica, not {replicas}")
    if num_blocks is not None and num_blocks < max(trace.largest, 1):
        raise UsageError(
            f"the largest request needs {trace.largest} blocks, but a replica has only {num_blocks}"
        )
    capacity = max(trace.distinct, 1) if num_blocks is None else num_blocks
    each = [_Replica(capacity) for _ in range(replicas)]
    choose = ROUTINGS[routing]
    numbers = conversations(trace) if sessions is None else sessions
    blocks, lookups = trace.blocks.tolist(), trace.lookups.tolist()
    prompts = trace.prompt_tokens.tolist()
    hits = np.zeros(len(trace), dtype=np.int64)
    for number, (start, end) in enumerate(itertools.pairwise(trace.starts.tolist())):
        looked_up = blocks[start : start + lookups[number]]
        replica = each[choose(_Choice(number, numbers[number], looked_up), each)]
        hits[number] = found = replica.found(looked_up)
        replica.tokens += prompts[number]
        replica.computed_tokens += max(prompts[number] - found * trace.block_size, 0)
        replica.use(blocks[start:end])
    return Routed(
        hits=hits,
        tokens=np.array([replica.tokens for replica in each]),
        computed_tokens=np.array([replica.computed_tokens for replica in each]),
    )


def conversations(trace: BlockTrace) -> list[int]:
    """Number the conversations: a request goes on with the one whose whole prompt is all that it has known.

    That is, the last block that an earlier request had too is the last full one of a prompt which no other
    request has gone on with. Requests that share a system prompt alone are conversations of their own.
    """
    numbers: list[int] = []
    seen: set[int] = set()
    ended: dict[int, int] = {}  # last full block of a prompt -> its conversation
    blocks = trace.blocks.tolist()
    new = itertools.count()
    full = (trace.prompt_tokens // trace.block_size).tolist()
    for (start, end), whole in zip(itertools.pairwise(trace.starts.tolist()), full, strict=True):
        mine = blocks[start:end]
        known = sum(1 for _ in itertools.takewhile(seen.__contains__, mine))
        goes_on = ended.pop(mine[known - 1], None) if known else None
        number = next(new) if goes_on is None else goes_on
        numbers.append(number)
        seen.update(mine)
        if whole and mine:
            ended[mine[min(whole, len(mine)) - 1]] = number
    return numbers
