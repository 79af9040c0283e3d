"""vLLM's V1 block pool as a model: the same hits and evictions from the same order of requests.

What it does was read from and executed on vLLM 0.32, and replayed against recordings of 0.23 and 0.32 (one
group of full-attention blocks; ``cache.groups`` has several). A test drives vLLM's own manager beside it.

- Only full blocks are cached, under the id of their whole prefix; generated tokens too.
- A lookup takes the longest cached prefix, but leaves at least the prompt's last token to compute.
- A computed block is cached when its computation is scheduled, even where an equal one exists.
- A request is let in where its whole prompt fits; its blocks come with each part that is computed.
- A finished request's blocks are released from the last to the first; a hit keeps its block until the end.
"""

import dataclasses
from collections.abc import Callable, Sequence

from kvscope.cache.blocks import Blocks
from kvscope.errors import UsageError


@dataclasses.dataclass(slots=True)
class _Running:
    """A request that holds blocks; the first ``cached`` of them are in the cache."""

    blocks: list[int]
    cached: int


class BlockPool:
    """The blocks of one engine. ``num_blocks`` counts the null block; None means without limit.

    ``uncached_first`` and ``on_evict`` (called with chain ids) are those of ``Blocks``.
    """

    def __init__(
        self,
        block_size: int,
        num_blocks: int | None = None,
        *,
        uncached_first: bool = True,
        on_evict: Callable[[int], None] | None = None,
    ) -> None:
        if block_size < 1:
            raise UsageError(f"a block holds at least one token, not {block_size}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._blocks: Blocks[int] = Blocks(num_blocks, uncached_first=uncached_first, on_evict=on_evict)
        self._running: dict[str, _Running] = {}

    @property
    def evictions(self) -> int:
        """Blocks evicted so far."""
        return self._blocks.evictions

    @property
    def free_blocks(self) -> int | None:
        """Blocks that no request holds, cached or not; None in a pool without limit."""
        return self._blocks.free

    @property
    def cached_ids(self) -> int:
        """Number of different chain ids in the cache."""
        return self._blocks.cached

    def __contains__(self, chain_id: int) -> bool:
        return chain_id in self._blocks

    def hit_blocks(self, chain: Sequence[int], prompt_tokens: int) -> int:
        """Return how many blocks of a prompt a lookup would find now; nothing changes."""
        most = min(len(chain), max(prompt_tokens - 1, 0) // self.block_size)
        for at in range(most):
            if chain[at] not in self._blocks:
                return at
        return most

    def admit(
        self,
        request_id: str,
        chain: Sequence[int],
        prompt_tokens: int,
        *,
        lookup: bool = True,
        chunk_tokens: int | None = None,
    ) -> int | None:
        """Let a request in and return its hit tokens, or None while its prompt does not fit.

        ``chain`` holds the ids of at least the prompt's full blocks. Without ``lookup`` nothing is reused
        (the engine does so when the prompt's log-probabilities are asked). At most ``chunk_tokens`` are
        computed at first, else the whole prompt; ``extend`` goes on. A preempted request (``finish``) comes
        again with the tokens that it has by then. Raises ``UsageError`` for a request that would not fit
        into the empty pool, or is running.
        """
        if request_id in self._running:
            raise UsageError(f"request {request_id!r} is running; finish it before it comes again")
        needed = -(-prompt_tokens // self.block_size)
        self._check_fits(request_id, needed)
        hits = self.hit_blocks(chain, prompt_tokens) if lookup else 0
        found = [block for chain_id in chain[:hits] if (block := self._blocks.find(chain_id)) is not None]
        if not self._blocks.has_free(needed - hits + self._blocks.idle(found)):
            return None
        self._blocks.hold(found)
        hit_tokens = hits * self.block_size
        first = prompt_tokens if chunk_tokens is None else min(prompt_tokens, hit_tokens + chunk_tokens)
        running = self._running[request_id] = _Running(found, hits)
        self._grow(running, chain, first)
        return hit_tokens

    def extend(self, request_id: str, chain: Sequence[int], tokens: int) -> bool:
        """Grow a request to ``tokens`` computed tokens; False, with nothing changed, while too few are free.

        ``chain`` holds the ids of its full blocks, from the first on; those that it lacks are not cached yet.
        """
        running = self._running[request_id]
        needed = -(-tokens // self.block_size)
        self._check_fits(request_id, needed)
        if not self._blocks.has_free(needed - len(running.blocks)):
            return False
        self._grow(running, chain, tokens)
        return True

    def finish(self, request_id: str) -> None:
        """Take back a request's blocks, the last one first; preemption does the same."""
        self._blocks.release(self._running.pop(request_id).blocks[::-1])

    def clear(self) -> None:
        """Forget what is cached, as the engine's reset does; the engine resets only while nothing runs."""
        self._blocks.clear()

    def _check_fits(self, request_id: str, needed: int) -> None:
        if self.num_blocks is not None and needed > self.num_blocks - 1:
            raise UsageError(
                f"request {request_id!r} needs {needed} blocks of {self.block_size} tokens, but the pool has "
                f"only {self.num_blocks - 1}; name more blocks"
            )

    def _grow(self, running: _Running, chain: Sequence[int], tokens: int) -> None:
        more = -(-tokens // self.block_size) - len(running.blocks)
        running.blocks += self._blocks.take(max(more, 0))
        full = min(tokens // self.block_size, len(chain))
        for at in range(running.cached, full):
            self._blocks.cache(running.blocks[at], chain[at])
        running.cached = max(running.cached, full)
