"""The block pool of models whose layers keep their cache in several groups: full attention, sliding windows.

As vLLM 0.32 coordinates them (read; a test drives its ``KVCacheManager`` beside this model):

- All groups share one pool of blocks; each caches its blocks under its own keys.
- Hashes are made in steps of ``hash_block_size`` (the greatest common divisor of the groups' block sizes); a
  group with larger blocks uses the hash at each of its blocks' ends.
- A full-attention group finds the longest run of blocks from the start. A sliding-window group needs only the
  blocks of its last window, so it searches from the right. A hit is what all groups agree on; with more than
  one group it ends on a multiple of all block sizes.
- Blocks before the window are given back while the request runs, and only those are cached that a later hit
  could use: the last window before each multiple of all block sizes ("dense"), or by default only before the
  prompt's end and before the end of what other requests begin with, too, as one lookup told.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

from kvscope.cache.blocks import NULL, Blocks
from kvscope.errors import UsageError

GroupKey = tuple[int, int]
"""A group's number and the chain id of a block's end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that keep their cache alike: ``window`` tokens, or all of them where it is None."""

    block_size: int
    window: int | None = None

    def skipped(self, computed_tokens: int) -> int:
        """Return how many leading blocks the next token no longer looks at."""
        if self.window is None:
            return 0
        return max(0, computed_tokens - self.window + 1) // self.block_size

    @property
    def window_blocks(self) -> int:
        """Blocks that a hit needs before its end; raises nothing, 0 for full attention."""
        return 0 if self.window is None else -(-(self.window - 1) // self.block_size)


@dataclasses.dataclass(slots=True)
class _Running:
    """A request's blocks by group, of which the first ``cached`` were cached or passed over."""

    blocks: list[list[int]]
    cached: list[int]
    computed: int
    ends: tuple[int, ...]  # tokens: where a later hit may end even where windows are not kept densely


class GroupedPool:
    """The blocks of one engine with ``groups``; ``num_blocks`` counts the null block, None is without limit.

    ``max_in_flight_tokens`` (the engine's largest batch) bounds what a sliding window is taken to need when
    a request is let in. ``retention`` is vLLM's ``--prefix-cache-retention-interval``: windows are cached at
    each multiple of so many tokens and at prompts' ends, 0: at the latter alone, None: densely. ``on_evict``
    is called with a group's number and a chain id. Raises ``UsageError`` for no groups, for sizes below 1 and
    for a ``retention`` where no hit could end.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        num_blocks: int | None = None,
        *,
        max_in_flight_tokens: int | None = None,
        retention: int | None = 0,
        on_evict: Callable[[GroupKey], None] | None = None,
    ) -> None:
        if not groups:
            raise UsageError("a pool needs at least one group of layers")
        for group in groups:
            if group.block_size < 1 or (group.window is not None and group.window < 1):
                raise UsageError(f"blocks and windows hold at least one token: {group}")
        self.groups = tuple(groups)
        self.hash_block_size = math.gcd(*(group.block_size for group in groups))
        self.hit_step = math.lcm(*(group.block_size for group in groups))
        if retention is not None and (retention < 0 or retention % self.hit_step):
            raise UsageError(f"windows are kept every multiple of {self.hit_step} tokens, not {retention}")
        self._retention = retention
        self._max_in_flight_tokens = max_in_flight_tokens
        self._blocks: Blocks[GroupKey] = Blocks(num_blocks, on_evict=on_evict)
        self._running: dict[str, _Running] = {}
        # groups that are alike are looked up together, full attention first
        kinds = dict.fromkeys(sorted(self.groups, key=lambda group: group.window is not None))
        self._kinds = [
            (kind, [at for at, group in enumerate(self.groups) if group == kind]) for kind in kinds
        ]

    @property
    def evictions(self) -> int:
        """Blocks evicted so far, those of all groups."""
        return self._blocks.evictions

    @property
    def free_blocks(self) -> int | None:
        """Blocks that no request holds; None without limit."""
        return self._blocks.free

    @property
    def cached_keys(self) -> int:
        """Number of different blocks in the cache, each group's counted apart."""
        return self._blocks.cached

    def hit_tokens(self, chain: Sequence[int], prompt_tokens: int) -> int:
        """Return the tokens that a lookup would find now; nothing changes."""
        return self._lookup(chain, prompt_tokens)[0]

    def admit(
        self,
        request_id: str,
        chain: Sequence[int],
        prompt_tokens: int,
        *,
        lookup: bool = True,
        chunk_tokens: int | None = None,
        asked_tokens: int | None = None,
    ) -> int | None:
        """Let a request in and return its hit tokens, or None while its prompt does not fit.

        ``chain`` holds the ids of the prompt's full hash blocks. ``asked_tokens`` are the prompt's own where
        a preempted request comes again with more. The rest is as ``BlockPool.admit`` says.
        """
        if request_id in self._running:
            raise UsageError(f"request {request_id!r} is running; finish it before it comes again")
        hit, longest, found = (
            self._lookup(chain, prompt_tokens) if lookup else (0, 0, [[] for _ in self.groups])
        )
        first = prompt_tokens if chunk_tokens is None else min(prompt_tokens, hit + chunk_tokens)
        whole = sum(
            self._needed(group, blocks, hit, prompt_tokens, capped=True)
            for group, blocks in zip(self.groups, found, strict=True)
        )
        now = sum(
            self._needed(group, blocks, hit, first) for group, blocks in zip(self.groups, found, strict=True)
        )
        if not self._blocks.has_free(max(whole, now)):
            self._check_fits(request_id, whole)
            return None
        for group, blocks in zip(self.groups, found, strict=True):
            skipped = min(group.skipped(hit), len(blocks))
            blocks[:skipped] = [NULL] * skipped
            self._blocks.hold(blocks)
        ends = [(prompt_tokens if asked_tokens is None else asked_tokens) - 1]
        if longest > hit:  # a beginning that others share and of which windows were not cached
            ends.append(longest)
        aligned = tuple(end - end % self.hit_step for end in ends)
        running = _Running(found, [len(blocks) for blocks in found], hit, aligned)
        self._running[request_id] = running
        self._grow(running, chain, first)
        return hit

    def extend(self, request_id: str, chain: Sequence[int], tokens: int) -> bool:
        """Grow a request to ``tokens`` computed tokens; False, with no block taken, while too few are free.

        Blocks that left the window by what was computed before are given back first, even then.
        """
        running = self._running[request_id]
        for group, blocks in zip(self.groups, running.blocks, strict=True):
            self._leave(blocks, min(group.skipped(running.computed), len(blocks)))
        more = sum(
            max(-(-tokens // group.block_size) - len(blocks), 0)
            for group, blocks in zip(self.groups, running.blocks, strict=True)
        )
        if not self._blocks.has_free(more):
            return False
        self._grow(running, chain, tokens)
        return True

    def finish(self, request_id: str) -> None:
        """Take back a request's blocks, group by group, the last one first; preemption does the same."""
        for blocks in self._running.pop(request_id).blocks:
            self._blocks.release(blocks[::-1])

    def _check_fits(self, request_id: str, needed: int) -> None:
        most = self._blocks.num_blocks
        if most is not None and needed > most - 1:
            raise UsageError(
                f"request {request_id!r} needs {needed} blocks, but the pool has only {most - 1}; "
                "name more blocks"
            )

    def _lookup(self, chain: Sequence[int], prompt_tokens: int) -> tuple[int, int, list[list[int]]]:
        """Return the hit tokens, the most that any kind has, and each group's blocks; ``NULL`` for no need.

        Each kind of group may shorten what the ones before it found; then all look again. vLLM stops after
        one round where there are just two kinds, one of them full attention.
        """
        hit, longest = max(prompt_tokens - 1, 0), 0
        found: list[list[int]] = [[] for _ in self.groups]
        looked: set[int] = set()
        while True:
            length = hit
            for kind, members in self._kinds:
                if kind.window is None and members[0] in looked:
                    length = min(length, len(found[members[0]]) * kind.block_size)
                    continue
                looked.add(members[0])
                blocks = self._found(kind, members, chain, length)
                length = len(blocks[0]) * kind.block_size
                longest = max(longest, length)
                for member, mine in zip(members, blocks, strict=True):
                    found[member] = mine
            shorter, hit = length < hit, length
            if not shorter or (len(self._kinds) == 2 and self._kinds[0][0].window is None):  # noqa: PLR2004
                break
        for group, kept in zip(self.groups, found, strict=True):
            del kept[hit // group.block_size :]
        return hit, longest, found

    def _found(
        self, kind: Group, members: Sequence[int], chain: Sequence[int], most_tokens: int
    ) -> list[list[int]]:
        """Return each member's blocks of the longest prefix that this kind of group has."""
        step = kind.block_size // self.hash_block_size
        most = min(most_tokens // kind.block_size, len(chain) // step)

        def at(place: int) -> list[int] | None:
            chain_id = chain[(place + 1) * step - 1]
            blocks = [self._blocks.find((member, chain_id)) for member in members]
            return [block for block in blocks if block is not None] if None not in blocks else None

        rows: list[list[int]] = []
        if kind.window is None:
            for place in range(most):
                row = at(place)
                if row is None:
                    break
                rows.append(row)
            rows = rows[: len(rows) - len(rows) * kind.block_size % self.hit_step // kind.block_size]
        else:
            rows = self._found_window(kind, len(members), most, at)
        return [[row[member] for row in rows] for member in range(len(members))]

    def _found_window(
        self, kind: Group, members: int, most: int, at: Callable[[int], list[int] | None]
    ) -> list[list[int]]:
        rows = [[NULL] * members for _ in range(most)]
        run = 0
        for place in range(most - 1, -1, -1):
            row = at(place)
            if row is None:
                run = 0
                continue
            if not run and (place + 1) * kind.block_size % self.hit_step:
                continue
            rows[place] = row
            run += 1
            if run >= kind.window_blocks:
                return rows[: place + run]
        while run * kind.block_size % self.hit_step:
            run -= 1
        return rows[:run]

    def _needed(
        self, group: Group, found: Sequence[int], hit: int, tokens: int, *, capped: bool = False
    ) -> int:
        """Return how many free blocks a new request takes from the queue for its first ``tokens``."""
        blocks = -(-tokens // group.block_size)
        if capped and group.window is not None and self._max_in_flight_tokens is not None:
            held = group.window - 1 + self._max_in_flight_tokens
            blocks = min(blocks, -(-held // group.block_size) + 1)
        skipped = group.skipped(hit)
        return max(blocks - max(skipped, len(found)), 0) + self._blocks.idle(found[skipped:])

    def _leave(self, blocks: list[int], skipped: int) -> None:
        """Give back blocks before the window, the last one first, as far as that was not done before."""
        left: list[int] = []
        for place in range(skipped - 1, -1, -1):
            if blocks[place] == NULL:
                break
            left.append(blocks[place])
            blocks[place] = NULL
        self._blocks.release(left)

    def _grow(self, running: _Running, chain: Sequence[int], tokens: int) -> None:
        for group, blocks in zip(self.groups, running.blocks, strict=True):
            blocks.extend(self._blocks.take(max(-(-tokens // group.block_size) - len(blocks), 0)))
        running.computed = max(running.computed, tokens)
        cacheable = min(tokens, len(chain) * self.hash_block_size)
        if len(self.groups) > 1:
            cacheable -= cacheable % self.hit_step
        for at, group in enumerate(self.groups):
            full = cacheable // group.block_size
            step = group.block_size // self.hash_block_size
            for place in range(running.cached[at], full):
                block = running.blocks[at][place]
                if block != NULL and self._reachable(group, place, running.ends):
                    self._blocks.cache(block, (at, chain[(place + 1) * step - 1]))
            running.cached[at] = max(running.cached[at], full)

    def _reachable(self, group: Group, place: int, ends: Sequence[int]) -> bool:
        """Whether a later hit that is provided for could need the block."""
        if group.window is None:
            return True
        segment = (self.hit_step if self._retention is None else self._retention) // group.block_size
        if segment and place % segment >= segment - group.window_blocks:
            return True
        last = [end // group.block_size for end in ends] if self._retention is not None else []
        return any(end - group.window_blocks <= place < end for end in last)
