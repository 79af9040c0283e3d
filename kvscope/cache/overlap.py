"""Replays requests that ran at the same time, from the times at which they came and ended."""

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Sequence

from kvscope.cache.groups import Group, GroupedPool
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
    of generated tokens as if they came evenly until its end. One that finds too few free blocks waits for the
    next end. The parameters and errors are those of ``replay``. On recordings of vLLM 0.32 this gives 160 of
    160 requests of four clients, and 219 of 220 of three, what the engine reported.
    """
    pool = BlockPool(block_size, num_blocks, uncached_first=uncached_first, on_evict=on_evict)
    return _replayed(requests, _Engine(pool, block_size))


def replay_groups(
    requests: Sequence[TimedRequest],
    groups: Sequence[Group],
    *,
    num_blocks: int | None = None,
    batched_tokens: int | None = None,
    retention: int | None = 0,
) -> ReplayResult:
    """Replay ``requests`` on an engine whose layers are in ``groups``, else as ``replay_overlapping``.

    A prompt is computed in parts of ``batched_tokens`` (the engine's largest batch), else at once: blocks
    before a window are given back between two parts. ``retention`` is ``GroupedPool``'s. Blocks are counted
    in steps of the groups' common size.
    """
    pool = GroupedPool(groups, num_blocks, max_in_flight_tokens=batched_tokens, retention=retention)
    return _replayed(requests, _Engine(pool, pool.hash_block_size, batched_tokens))


def _replayed(requests: Sequence[TimedRequest], engine: "_Engine") -> ReplayResult:
    tally = Tally(engine.block_size)
    for each in sorted(requests, key=lambda each: each.at):
        tally.add(each.request, engine.take(each))
    return tally.result(engine.pool.evictions)


@dataclasses.dataclass(order=True, slots=True)
class _Running:
    """A request that runs, by its end; ``told`` of its computed tokens the pool knows."""

    ends_at: float
    number: int
    began_at: float
    key: str
    chain: list[int]
    prompt_tokens: int
    tokens: int
    told: int

    def computed(self, now: float) -> int:
        """Return the computed tokens at a time between begin and end, as if they came evenly."""
        share = (now - self.began_at) / (self.ends_at - self.began_at)
        return self.prompt_tokens + int(share * (self.tokens - self.prompt_tokens))


class _Engine:
    """A block pool and the requests that run on it, by their ends; chains are in steps of ``block_size``."""

    def __init__(
        self, pool: BlockPool | GroupedPool, block_size: int, batched_tokens: int | None = None
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self._batched_tokens = batched_tokens
        self._memo = ChainMemo()
        self._stand_ins = itertools.count(UNKNOWN_TOKENS)
        self._numbers = itertools.count()
        self._running: list[_Running] = []
        self._keys: set[str] = set()

    def take(self, timed: TimedRequest) -> int:
        """Start a request once those are over that ended before it came; return its hit tokens."""
        while self._running and self._running[0].ends_at <= timed.at:
            self._finish()
        for running in self._running:
            self._tell(running, running.computed(timed.at))
        request = timed.request
        number = next(self._numbers)
        key = request.request_id
        if key in self._keys:  # a client may send an id again while it is still in use
            key = f"{key} ({number})"
        chain = computed_chain(request, self.block_size, self._stand_ins, memo=self._memo)
        hit = self._compute(key, chain, request)
        end = timed.at if timed.finished_at is None else timed.finished_at
        prompt_tokens, tokens = len(request.tokens), computed_tokens(request)
        running = _Running(end, number, timed.at, key, chain, prompt_tokens, tokens, prompt_tokens)
        # the first token follows soon: what it no longer looks at is given back by then
        self._tell(running, min(prompt_tokens + 1, tokens))
        heapq.heappush(self._running, running)
        self._keys.add(key)
        return hit

    def _compute(self, key: str, chain: list[int], request: ReplayRequest) -> int:
        """Let a request in and compute its prompt; others end where it finds too few free blocks."""
        prompt_tokens, part = len(request.tokens), self._batched_tokens
        while (
            hit := self.pool.admit(key, chain, prompt_tokens, lookup=request.lookup, chunk_tokens=part)
        ) is None:
            self._make_room(key)
        if part is not None:
            for computed in range(hit + 2 * part, prompt_tokens + part, part):
                while not self.pool.extend(key, chain, min(computed, prompt_tokens)):
                    self._make_room(key)
        return hit

    def _make_room(self, key: str) -> None:
        if not self._running:
            raise UsageError(f"request {key!r} found no free blocks in an idle pool")
        self._finish()

    def _tell(self, running: _Running, tokens: int) -> bool:
        """Tell the pool of generated tokens; False where too few blocks are free."""
        if isinstance(self.pool, GroupedPool):  # each counts: blocks leave a window meanwhile
            steps = range(running.told + 1, tokens + 1)
        elif self._as_many_blocks(tokens, running.told) and tokens < running.tokens:
            return True
        else:
            steps = range(tokens, tokens + 1)
        for step in steps:
            if not self.pool.extend(running.key, running.chain, step):
                return False
            running.told = step
        return True

    def _as_many_blocks(self, tokens: int, others: int) -> bool:
        size = self.block_size
        return tokens // size == others // size and -(-tokens // size) == -(-others // size)

    def _finish(self) -> None:
        """End the request that ends next; where too few blocks are free its last tokens leave no trace."""
        running = heapq.heappop(self._running)
        self._tell(running, running.tokens)
        self.pool.finish(running.key)
        self._keys.discard(running.key)
