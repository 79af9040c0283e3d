"""The modelled engine: admission, prefill one at a time, decoding side by side, on the exact block pool."""

import asyncio
import contextlib
import dataclasses
import itertools
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

from kvscope.cache.hashing import block_chain, root_of
from kvscope.cache.pool import BlockPool
from kvscope.clock import system_clock
from kvscope.demo.engine.body import Job
from kvscope.demo.engine.settings import EngineSettings

_OWN_STOP = (24, 64)  # fewest and most tokens of an answer whose length nobody limits


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Full blocks that have come into the cache, with their tokens; ``parent`` is None at a root."""

    ids: tuple[int, ...]
    parent: int | None
    tokens: tuple[int, ...]
    salt: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheChange:
    """What one step changed in the cache."""

    removed: tuple[int, ...]
    stored: tuple[Stored, ...]


@dataclasses.dataclass(slots=True, kw_only=True)
class Run:
    """One job on its way through the engine; times are of the monotonic clock unless named ``_at``."""

    job: Job
    arrived_at: float  # Unix seconds
    queued: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    cached_tokens: int = 0
    output: list[int] = dataclasses.field(default_factory=list)
    preemptions: int = 0
    finish_reason: str | None = None


class EngineCore:
    """One engine. ``on_change`` hears of every change of the cache, in order."""

    def __init__(
        self,
        settings: EngineSettings,
        words: Sequence[int],
        *,
        on_change: Callable[[CacheChange], None] = lambda _: None,
    ) -> None:
        self._timing = settings.timing
        self._block_size = settings.block_size
        self._limit = settings.max_model_len
        self._words = words  # tokens that answers are made of
        self._pool = BlockPool(settings.block_size, settings.blocks)
        self._blocks = settings.blocks
        self._known: set[int] = set()
        self._on_change = on_change
        self._prefill = asyncio.Lock()  # waiters are served first come, first served
        self._freed = asyncio.Condition()
        self._names = 0
        self.running = 0
        self.waiting = 0

    @property
    def cache_usage(self) -> float:
        """Share of the blocks that running requests hold; vLLM counts cached but idle ones as free."""
        usable = self._blocks - 1
        return (usable - (self._pool.free_blocks or 0)) / usable

    async def generate(self, run: Run) -> AsyncGenerator[int]:
        """Yield the answer's tokens as they come; leaving early aborts the request and frees its blocks."""
        self._names += 1
        name = f"{run.job.id}/{self._names}"  # ids of clients may repeat
        tokens = list(run.job.tokens)
        chain = block_chain(tokens, self._block_size, root_of(run.job.salt))
        rng = random.Random(repr(run.job.tokens))  # noqa: S311 - an answer that follows from the prompt
        length, reason = self._length(run.job, rng)
        try:
            await self._admit(name, run, tokens, chain)
            for number in range(length):
                if number:
                    await self._step(name, run, tokens, chain)
                token = rng.choice(self._words)
                tokens.append(token)
                run.output.append(token)
                run.last_token = time.monotonic()
                run.first_token = run.first_token or run.last_token
                run.finish_reason = reason if number == length - 1 else None
                yield token
        finally:
            await self._release(name)

    def _length(self, job: Job, rng: random.Random) -> tuple[int, str]:
        room = self._limit - len(job.tokens)
        most = min(job.max_tokens or room, room)
        own = most if job.ignore_eos and job.max_tokens else rng.randint(*_OWN_STOP)
        return (own, "stop") if own < most else (most, "length")

    async def _admit(self, name: str, run: Run, tokens: list[int], chain: list[int]) -> None:
        """Wait for the turn and for free blocks, then compute what the cache does not hold."""
        self.waiting += 1
        try:
            await self._prefill.acquire()
        except BaseException:
            self.waiting -= 1
            raise
        try:
            try:
                cached = await self._blocks_for(name, run.job, tokens, chain)
            finally:
                self.waiting -= 1
            self.running += 1
            if run.scheduled is None:
                run.scheduled = time.monotonic()
                run.cached_tokens = cached
            new = len(tokens) - cached
            await asyncio.sleep(self._timing.prefill_seconds(new_tokens=new, cached_tokens=cached))
            self._tell(chain, tokens, run.job.salt)
        finally:
            self._prefill.release()

    async def _blocks_for(self, name: str, job: Job, tokens: list[int], chain: list[int]) -> int:
        async with self._freed:
            while (cached := self._pool.admit(name, chain, len(tokens), lookup=job.lookup)) is None:
                await self._freed.wait()
        return cached

    async def _step(self, name: str, run: Run, tokens: list[int], chain: list[int]) -> None:
        """Compute the newest token; without a free block the request is preempted and comes back later."""
        full = len(tokens) // self._block_size
        if full > len(chain):
            root = chain[-1] if chain else root_of(run.job.salt)
            chain += block_chain(tokens[len(chain) * self._block_size :], self._block_size, root)
        if not self._pool.extend(name, chain, len(tokens)):
            run.preemptions += 1
            await self._release(name)
            await self._admit(name, run, tokens, chain)
            return
        await asyncio.sleep(self._timing.step_seconds())
        if len(tokens) % self._block_size == 0:
            self._tell(chain, tokens, run.job.salt)

    async def _release(self, name: str) -> None:
        with contextlib.suppress(KeyError):  # not admitted yet
            self._pool.finish(name)
            self.running -= 1
        async with self._freed:
            self._freed.notify_all()

    def _tell(self, chain: Sequence[int], tokens: Sequence[int], salt: str | None) -> None:
        """Report what left the cache since the last report, and which blocks of ``chain`` are new in it."""
        gone = tuple(block for block in self._known if block not in self._pool)
        self._known.difference_update(gone)
        stored = tuple(self._stored(chain, tokens, salt))
        if gone or stored:
            self._on_change(CacheChange(removed=gone, stored=stored))

    def _stored(self, chain: Sequence[int], tokens: Sequence[int], salt: str | None) -> Iterator[Stored]:
        """Yield each unbroken row of blocks that has not been reported yet."""
        at = 0
        for known, row in itertools.groupby(chain, self._known.__contains__):
            ids = tuple(row)
            if not known:
                self._known.update(ids)
                span = slice(at * self._block_size, (at + len(ids)) * self._block_size)
                parent = chain[at - 1] if at else None
                yield Stored(ids=ids, parent=parent, tokens=tuple(tokens[span]), salt=salt)
            at += len(ids)


def new_run(job: Job) -> Run:
    """Return ``job`` as it arrives now."""
    return Run(job=job, arrived_at=system_clock(), queued=time.monotonic())
