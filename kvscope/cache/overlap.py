"""Replays requests that ran at the same time, from the times at which they came and ended."""

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Sequence

from kvscope.cache.hashing import ChainMemo
from kvscope.cache.pool import BlockPool
from kvscope.cache.replay import (
    UNKNOWN_TOKENS,
    ReplayRequest,
    ReplayResult,
    Tally,
    computed_chain,
    computed_tokens,
)
from kvscope.errors import UsageError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimedRequest:
    """A request that came at ``at`` and ended at ``finished_at``, in seconds of one clock.

    Without an end it is taken to end before the next one comes.
    """

    request: ReplayRequest
    at: float
    finished_at: float | None = None


def overlapping(requests: Sequence[TimedRequest]) -> bool:
    """Whether any request came before an earlier one had ended."""
    in_order = sorted(requests, key=lambda each: each.at)
    last = float("-inf")
    for each in in_order:
        if each.at < last:
            return True
        last = max(last, each.at if each.finished_at is None else each.finished_at)
    return False


def replay_overlapping(
    requests: Sequence[TimedRequest],
    *,
    block_size: int,
    num_blocks: int | None = None,
    uncached_first: bool = True,
    on_evict: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Replay ``requests`` in the order in which they came; each holds its blocks until its end.

    A prompt's blocks are cached when it comes, as vLLM caches them when it schedules their computation; those
    of generated tokens when it ends. One that finds too few free blocks waits for the next end. The
    parameters and errors are those of ``replay``. On recordings of vLLM 0.32 this gives 160 of 160 requests
    of four clients, and 219 of 220 of three, what the engine reported.
    """
    engine = _Engine(BlockPool(block_size, num_blocks, uncached_first=uncached_first, on_evict=on_evict))
    tally = Tally(block_size)
    for each in sorted(requests, key=lambda each: each.at):
        tally.add(each.request, engine.take(each))
    return tally.result(engine.pool.evictions)


class _Engine:
    """A block pool and the requests that run on it, by their ends."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self._memo = ChainMemo()
        self._stand_ins = itertools.count(UNKNOWN_TOKENS)
        self._numbers = itertools.count()
        self._running: list[tuple[float, int, str, list[int], int]] = []
        self._keys: set[str] = set()

    def take(self, timed: TimedRequest) -> int:
        """Start a request once those are over that ended before it came; return its hit tokens."""
        while self._running and self._running[0][0] <= timed.at:
            self._finish()
        request = timed.request
        number = next(self._numbers)
        key = request.request_id
        if key in self._keys:  # a client may send an id again while it is still in use
            key = f"{key} ({number})"
        chain = computed_chain(request, self.pool.block_size, self._stand_ins, memo=self._memo)
        hit = self.pool.admit(key, chain, len(request.tokens), lookup=request.lookup)
        while hit is None:
            if not self._running:
                raise UsageError(f"request {key!r} found no free blocks in an idle pool")
            self._finish()
            hit = self.pool.admit(key, chain, len(request.tokens), lookup=request.lookup)
        end = timed.at if timed.finished_at is None else timed.finished_at
        heapq.heappush(self._running, (end, number, key, chain, computed_tokens(request)))
        self._keys.add(key)
        return hit

    def _finish(self) -> None:
        """End the request that ends next; where too few blocks are free its last tokens leave no trace."""
        _, _, key, chain, tokens = heapq.heappop(self._running)
        self.pool.extend(key, chain, tokens)
        self.pool.finish(key)
        self._keys.discard(key)
