"""Replays requests through the model of an engine's block pool: what each would have hit."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kvscope.cache.hashing import ChainMemo, block_chain, root_of
from kvscope.cache.pool import BlockPool
from kvscope.errors import UsageError

UNKNOWN_TOKENS = 1 << 40  # from here on: stand-ins for generated tokens of which only the number is known


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """One request of a log: its prompt's tokens, and what it generated as token ids or as a number only."""

    request_id: str
    tokens: Sequence[int]
    salt: str | None = None
    lora: str | None = None
    output_tokens: Sequence[int] | int = ()
    lookup: bool = True
    recorded_cached_tokens: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    """What the replay gives for one request, beside what the engine had recorded, if it had."""

    request_id: str
    prompt_tokens: int
    hit_tokens: int
    recorded_cached_tokens: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Sums over a replay. Rates are None where nothing was looked up.

    ``block_hit_rate`` counts blocks, the prompts' last partial ones included. ``exact`` says that generated
    tokens were known, so that their blocks could be found again as in the engine.
    """

    requests: int
    queried_tokens: int
    hit_tokens: int
    queried_blocks: int
    hit_blocks: int
    evictions: int
    exact: bool
    per_request: tuple[ReplayedRequest, ...]

    @property
    def hit_rate(self) -> float | None:
        """Hit ÷ queried tokens."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None

    @property
    def block_hit_rate(self) -> float | None:
        """Hit ÷ queried blocks."""
        return self.hit_blocks / self.queried_blocks if self.queried_blocks else None


def replay(
    requests: Iterable[ReplayRequest],
    *,
    block_size: int,
    num_blocks: int | None = None,
    uncached_first: bool = True,
    on_evict: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Replay ``requests`` one after the other, each finished before the next begins.

    ``num_blocks`` is the engine's own count, its null block included; None means without limit.
    ``uncached_first`` and ``on_evict`` are those of ``BlockPool``. Raises
    ``UsageError`` for sizes that no engine has and for a request that does not fit into the pool.
    """
    pool = BlockPool(block_size, num_blocks, uncached_first=uncached_first, on_evict=on_evict)
    stand_ins = itertools.count(UNKNOWN_TOKENS)
    tally = Tally(block_size)
    for request in requests:
        tally.add(request, _run(pool, request, stand_ins))
    return tally.result(pool.evictions)


class Tally:
    """Adds up replayed requests."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._replayed: list[ReplayedRequest] = []
        self._queried_tokens = self._queried_blocks = self._hit_blocks = 0
        self._exact = True

    def add(self, request: ReplayRequest, hit_tokens: int) -> None:
        """Count a request and its hit tokens; one that looked nothing up is not queried."""
        self._exact = self._exact and not isinstance(request.output_tokens, int)
        prompt_tokens = len(request.tokens)
        if request.lookup:
            self._queried_tokens += prompt_tokens
            self._queried_blocks += -(-prompt_tokens // self._block_size)
            self._hit_blocks += hit_tokens // self._block_size
        self._replayed.append(
            ReplayedRequest(
                request_id=request.request_id,
                prompt_tokens=prompt_tokens,
                hit_tokens=hit_tokens,
                recorded_cached_tokens=request.recorded_cached_tokens,
            )
        )

    def result(self, evictions: int) -> ReplayResult:
        """Return the sums."""
        return ReplayResult(
            requests=len(self._replayed),
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_blocks * self._block_size,
            queried_blocks=self._queried_blocks,
            hit_blocks=self._hit_blocks,
            evictions=evictions,
            exact=self._exact,
            per_request=tuple(self._replayed),
        )


def _run(pool: BlockPool, request: ReplayRequest, stand_ins: Iterable[int]) -> int:
    """Admit, generate and finish one request; return its hit tokens."""
    key = request.request_id
    chain = computed_chain(request, pool.block_size, stand_ins)
    hit = pool.admit(key, chain, len(request.tokens), lookup=request.lookup)
    if hit is None:
        raise UsageError(f"request {key!r} found no free blocks in an idle pool")
    pool.extend(key, chain, computed_tokens(request))
    pool.finish(key)
    return hit


def computed_tokens(request: ReplayRequest) -> int:
    """Return how many tokens the engine computes: all but the last generated one, which feeds nothing."""
    generated = (
        request.output_tokens if isinstance(request.output_tokens, int) else len(request.output_tokens)
    )
    return len(request.tokens) + max(generated - 1, 0)


def computed_chain(
    request: ReplayRequest, block_size: int, stand_ins: Iterable[int] = (), *, memo: ChainMemo | None = None
) -> list[int]:
    """Return the chain ids of all blocks that the request fills, generated tokens included."""
    root = root_of(salt=request.salt, lora=request.lora)
    generated = max(computed_tokens(request) - len(request.tokens), 0)
    if not generated:
        return block_chain(request.tokens, block_size, root, memo=memo)
    if isinstance(request.output_tokens, int):
        tail: Sequence[int] = list(itertools.islice(stand_ins, generated))
    else:
        tail = request.output_tokens[:generated]
    tokens = np.concatenate([np.asarray(request.tokens, np.int64), np.asarray(tail, np.int64)])
    return block_chain(tokens, block_size, root, memo=memo)


def recorded_requests(rows: Iterable[Mapping[str, Any]]) -> list[ReplayRequest]:
    """Return the requests of a recording's ``requests.jsonl``, in the order in which they were sent.

    A row holds ``request_id``, ``prompt_token_ids``, ``output_token_ids``, ``body``, ``usage`` and
    ``sent_at``. Raises ``UsageError`` naming the row that lacks them.
    """
    requests: list[tuple[float, ReplayRequest]] = []
    for number, row in enumerate(rows, start=1):
        try:
            details = row["usage"].get("prompt_tokens_details") or {}
            request = ReplayRequest(
                request_id=row["request_id"],
                tokens=row["prompt_token_ids"],
                salt=row["body"].get("cache_salt"),
                output_tokens=row["output_token_ids"],
                recorded_cached_tokens=details.get("cached_tokens"),
            )
            requests.append((float(row["sent_at"]), request))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UsageError(f"row {number} is not a recorded request: {error!r}") from error
    return [request for _, request in sorted(requests, key=lambda item: item[0])]
