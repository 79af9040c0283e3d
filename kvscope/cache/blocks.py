"""The blocks that a pool is made of: what each caches, who holds it, and the queue of free ones.

The rules are vLLM's (V1, read in and executed on 0.23 and 0.32):

- Free blocks wait in a queue; a new block is taken from its front, which evicts what it caches.
- Released blocks join the queue's end in the order given; in 0.32 those that cache nothing join its front.
- Two blocks may cache the same; a lookup finds the one that came first.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from kvscope.errors import UsageError

Key = TypeVar("Key", bound=Hashable)

NULL = -1
"""Stands in a request's list of blocks where it needs none, as before a sliding window."""


class Blocks(Generic[Key]):
    """Blocks by number, each caching at most one key. Without limit where ``num_blocks`` is None.

    ``num_blocks`` counts the engine's null block, which is never used. ``uncached_first``: whether released
    blocks that cache nothing are taken before all others, as vLLM 0.32 does (pull request 42656); 0.23 takes
    them in their turn. ``on_evict`` is called with each evicted key.
    """

    def __init__(
        self,
        num_blocks: int | None,
        *,
        uncached_first: bool = True,
        on_evict: Callable[[Key], None] | None = None,
    ) -> None:
        if num_blocks is not None and num_blocks < 2:  # noqa: PLR2004 - the null block and one more
            raise UsageError(f"a pool needs at least 2 blocks (one is the null block), not {num_blocks}")
        self.num_blocks = num_blocks
        self.evictions = 0
        self._uncached_first = uncached_first
        self._on_evict = on_evict
        # The queue of free blocks in three parts: released ones that cache nothing, the next one last; those
        # never taken (made when they are, so that a pool costs what its traffic uses); all others.
        self._first: list[int] = []
        self._unused = 0 if num_blocks is None else num_blocks - 1
        self._free: OrderedDict[int, None] = OrderedDict()  # without limit: those that cache nothing
        self._key: list[Key | None] = []  # by block number: what it caches
        self._users: list[int] = []  # by block number: requests that hold it
        self._block_of: dict[Key, int] = {}  # key -> the block that came first
        self._copies: dict[Key, list[int]] = {}  # key -> further blocks, in order of coming

    @property
    def free(self) -> int | None:
        """Blocks that no request holds, cached or not; None without limit."""
        return None if self.num_blocks is None else len(self._first) + self._unused + len(self._free)

    @property
    def cached(self) -> int:
        """Number of different keys in the cache."""
        return len(self._block_of)

    def __contains__(self, key: Key) -> bool:
        return key in self._block_of

    def find(self, key: Key) -> int | None:
        """Return the block that caches ``key``, None where none does."""
        return self._block_of.get(key)

    def has_free(self, count: int) -> bool:
        """Whether ``count`` blocks can be taken."""
        return self.num_blocks is None or count <= len(self._first) + self._unused + len(self._free)

    def idle(self, blocks: Iterable[int]) -> int:
        """Return how many of ``blocks`` no request holds."""
        return sum(block != NULL and not self._users[block] for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """Let one more request hold each of ``blocks``, so that they are not evicted."""
        for block in blocks:
            if block == NULL:
                continue
            if not self._users[block]:
                self._free.pop(block, None)
            self._users[block] += 1

    def take(self, count: int) -> list[int]:
        """Hand out the blocks at the queue's front, evicting what they cache."""
        return [self._take() for _ in range(count)]

    def cache(self, block: int, key: Key) -> None:
        """Let ``block``, which cached nothing, cache ``key``."""
        self._key[block] = key
        if self._block_of.setdefault(key, block) != block:
            self._copies.setdefault(key, []).append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of ``blocks``, in the order in which they may be evicted."""
        freed: list[int] = []
        for block in blocks:
            if block == NULL:
                continue
            self._users[block] -= 1
            if not self._users[block]:
                freed.append(block)
        uncached = [block for block in freed if self._key[block] is None]
        if self.num_blocks is None:
            self._free |= dict.fromkeys(uncached)
            return
        if self._uncached_first:
            self._first += reversed(uncached)
            freed = [block for block in freed if self._key[block] is not None]
        self._free |= dict.fromkeys(freed)

    def clear(self) -> None:
        """Forget what is cached, as the engine's reset does; the engine resets only while nothing runs."""
        self._block_of.clear()
        self._copies.clear()
        if self.num_blocks is None:
            self._free |= {
                block: None
                for block, key in enumerate(self._key)
                if key is not None and not self._users[block]
            }
        self._key = [None] * len(self._key)

    def _take(self) -> int:
        if self._first:
            block = self._first.pop()
            self._users[block] = 1
            return block
        if self._unused or not self._free:  # without limit another one is always there
            self._unused -= bool(self._unused)
            self._key.append(None)
            self._users.append(1)
            return len(self._users) - 1
        block, _ = self._free.popitem(last=False)
        self._users[block] = 1
        self._evict(block)
        return block

    def _evict(self, block: int) -> None:
        key = self._key[block]
        if key is None:
            return
        self._key[block] = None
        self.evictions += 1
        if self._on_evict is not None:
            self._on_evict(key)
        copies = self._copies.get(key)
        if copies is None:
            del self._block_of[key]
            return
        if self._block_of[key] == block:
            self._block_of[key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[key]
