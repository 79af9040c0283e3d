"""vLLM's V1 block pool as a model: the same hits and evictions from the same order of requests.

What it does was read from and executed on vLLM 0.32, and replayed against recordings of 0.23 and 0.32 (one
group of full-attention blocks):

- Only full blocks are cached, under the id of their whole prefix; generated tokens too.
- A lookup takes the longest cached prefix, but leaves at least the prompt's last token to compute.
- A computed block is cached even where an equal one exists; a lookup finds the one that came first.
- Free blocks wait in a queue. A finished request's blocks join its end from the last to the first; in 0.32
  those that cache nothing join the front instead. New blocks are taken from the front; taking one evicts it.
- A hit takes its block out of the queue until the request ends.
- One block, the null block, is never used.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kvscope.errors import UsageError


@dataclasses.dataclass(slots=True)
class _Running:
    """A request that holds blocks; the first ``cached`` of them are in the cache."""

    blocks: list[int]
    cached: int


class BlockPool:
    """The blocks of one engine. ``num_blocks`` counts the null block; None means without limit.

    ``uncached_first``: whether freed blocks that cache nothing are taken before all others, as vLLM 0.32 does
    (pull request 42656); 0.23 takes them in their turn. ``on_evict`` is called with each evicted chain id.
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
        if num_blocks is not None and num_blocks < 2:  # noqa: PLR2004 - the null block and one more
            raise UsageError(f"a pool needs at least 2 blocks (one is the null block), not {num_blocks}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.evictions = 0
        self._uncached_first = uncached_first
        self._on_evict = on_evict
        made = 0 if num_blocks is None else num_blocks - 1
        # the queue of free blocks; in a pool without limit only those that cache nothing are in it
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(made))
        self._chain_id: list[int | None] = [None] * made  # by block number: what it caches
        self._users: list[int] = [0] * made  # by block number: requests that hold it
        self._block_of: dict[int, int] = {}  # chain id -> the block that came first
        self._copies: dict[int, list[int]] = {}  # chain id -> further blocks, in order of coming
        self._running: dict[str, _Running] = {}

    @property
    def free_blocks(self) -> int | None:
        """Blocks that no request holds, cached or not; None in a pool without limit."""
        return None if self.num_blocks is None else len(self._free)

    @property
    def cached_ids(self) -> int:
        """Number of different chain ids in the cache."""
        return len(self._block_of)

    def __contains__(self, chain_id: int) -> bool:
        return chain_id in self._block_of

    def hit_blocks(self, chain: Sequence[int], prompt_tokens: int) -> int:
        """Return how many blocks of a prompt a lookup would find now; nothing changes."""
        most = min(len(chain), max(prompt_tokens - 1, 0) // self.block_size)
        for at in range(most):
            if chain[at] not in self._block_of:
                return at
        return most

    def admit(
        self, request_id: str, chain: Sequence[int], prompt_tokens: int, *, lookup: bool = True
    ) -> int | None:
        """Give a request its prompt's blocks and return its hit tokens, or None while too few are free.

        ``chain`` holds the ids of at least the prompt's full blocks. Without ``lookup`` nothing is reused
        (the engine does so when the prompt's log-probabilities are asked). Raises ``UsageError`` for a
        request that would not fit into the empty pool, or is running.
        """
        if request_id in self._running:
            raise UsageError(f"request {request_id!r} is running; finish it before it comes again")
        needed = -(-prompt_tokens // self.block_size)
        self._check_fits(request_id, needed)
        hits = self.hit_blocks(chain, prompt_tokens) if lookup else 0
        found = [self._block_of[chain_id] for chain_id in chain[:hits]]
        idle = [block for block in found if not self._users[block]]
        if not self._has_free(needed - hits + len(idle)):
            return None
        for block in idle:
            self._free.pop(block, None)
        for block in found:
            self._users[block] += 1
        running = _Running(found, hits)
        running.blocks += [self._take() for _ in range(needed - hits)]
        self._running[request_id] = running
        self._cache(running, chain[: prompt_tokens // self.block_size])
        return hits * self.block_size

    def extend(self, request_id: str, chain: Sequence[int], tokens: int) -> bool:
        """Grow a request to ``tokens`` computed tokens; False, with nothing changed, while too few are free.

        ``chain`` holds the ids of all its full blocks, from the first on.
        """
        running = self._running[request_id]
        needed = -(-tokens // self.block_size)
        self._check_fits(request_id, needed)
        more = needed - len(running.blocks)
        if not self._has_free(more):
            return False
        running.blocks += [self._take() for _ in range(more)]
        self._cache(running, chain[: tokens // self.block_size])
        return True

    def finish(self, request_id: str) -> None:
        """Take back a request's blocks, the last one first; preemption does the same."""
        freed: list[int] = []
        for block in reversed(self._running.pop(request_id).blocks):
            self._users[block] -= 1
            if not self._users[block]:
                freed.append(block)
        uncached = [block for block in freed if self._chain_id[block] is None]
        if self.num_blocks is None:
            self._free |= dict.fromkeys(uncached)
            return
        self._free |= dict.fromkeys(freed)
        if self._uncached_first:
            for block in reversed(uncached):
                self._free.move_to_end(block, last=False)

    def clear(self) -> None:
        """Forget what is cached, as the engine's reset does; the engine resets only while nothing runs."""
        self._block_of.clear()
        self._copies.clear()
        if self.num_blocks is None:
            self._free |= {
                block: None
                for block, chain_id in enumerate(self._chain_id)
                if chain_id is not None and not self._users[block]
            }
        self._chain_id = [None] * len(self._chain_id)

    def _check_fits(self, request_id: str, needed: int) -> None:
        if self.num_blocks is not None and needed > self.num_blocks - 1:
            raise UsageError(
                f"request {request_id!r} needs {needed} blocks of {self.block_size} tokens, but the pool has "
                f"only {self.num_blocks - 1}; name more blocks"
            )

    def _has_free(self, blocks: int) -> bool:
        return self.num_blocks is None or blocks <= len(self._free)

    def _take(self) -> int:
        """Hand out the block at the queue's front, evicting what it caches."""
        if not self._free:  # only a pool without limit comes here
            self._chain_id.append(None)
            self._users.append(1)
            return len(self._users) - 1
        block, _ = self._free.popitem(last=False)
        self._users[block] = 1
        self._evict(block)
        return block

    def _evict(self, block: int) -> None:
        chain_id = self._chain_id[block]
        if chain_id is None:
            return
        self._chain_id[block] = None
        self.evictions += 1
        if self._on_evict is not None:
            self._on_evict(chain_id)
        copies = self._copies.get(chain_id)
        if copies is None:
            del self._block_of[chain_id]
            return
        if self._block_of[chain_id] == block:
            self._block_of[chain_id] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[chain_id]

    def _cache(self, running: _Running, chain: Sequence[int]) -> None:
        for at in range(running.cached, len(chain)):
            block, chain_id = running.blocks[at], chain[at]
            self._chain_id[block] = chain_id
            if self._block_of.setdefault(chain_id, block) != block:
                self._copies.setdefault(chain_id, []).append(block)
        running.cached = max(running.cached, len(chain))
