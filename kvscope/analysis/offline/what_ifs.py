"""What-ifs of a replay: a second tier, several replicas, other block sizes, and what memory is worth."""

import dataclasses
from collections.abc import Callable, Sequence

from kvscope.cache.curve import capacity_curve
from kvscope.cache.policies import hit_blocks
from kvscope.cache.routing import MOST_LOAD, ROUTINGS, routed
from kvscope.cache.tiers import RULES, tier_hits
from kvscope.cache.traces import BlockTrace, Ints
from kvscope.cache.worth import Worth, worth
from kvscope.errors import UsageError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfs:
    """What is asked for; None and nothing where it is not.

    ``lower_blocks``: of a tier below, under each of ``tier_rules``. ``replicas``: with a cache of the same
    size each, under each of ``routings``. ``block_sizes``: the same memory in other blocks.
    ``bytes_per_token``: of the model's KV cache; with it the worth of each capacity is told, in seconds too
    where ``prefill_tokens_per_second`` is known.
    """

    lower_blocks: int | None = None
    tier_rules: tuple[str, ...] = RULES
    replicas: int | None = None
    routings: tuple[str, ...] = tuple(ROUTINGS)
    block_sizes: tuple[int, ...] = ()
    bytes_per_token: float | None = None
    prefill_tokens_per_second: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierRow:
    """A second tier under one rule: what each tier would have found, and blocks that moved."""

    rule: str
    upper_blocks: int
    lower_blocks: int
    hit_tokens: int
    hit_rate: float | None
    upper_hit_tokens: int
    lower_hit_tokens: int
    loaded_blocks: int
    stored_blocks: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRow:
    """Several replicas under one routing. ``imbalance``: computed tokens of the busiest ÷ the mean."""

    routing: str
    replicas: int
    hit_tokens: int
    hit_rate: float | None
    imbalance: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizeRow:
    """The same memory in blocks of another size."""

    block_size: int
    blocks: int | None
    hit_tokens: int
    hit_rate: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRows:
    """The answers; None for what was not asked."""

    tiers: tuple[TierRow, ...] | None = None
    routing: tuple[RoutingRow, ...] | None = None
    block_sizes: tuple[BlockSizeRow, ...] | None = None
    worth: tuple[Worth, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is replayed: a trace, ``reserved`` blocks of each cache that it cannot use, its length in time.

    ``resized`` makes the trace in blocks of another size, None where it cannot.
    """

    trace: BlockTrace
    num_blocks: int | None
    reserved: int
    seconds: float | None
    resized: Callable[[int], BlockTrace] | None

    @property
    def usable(self) -> int | None:
        """Blocks of the cache that can hold something; None without limit."""
        return None if self.num_blocks is None else max(self.num_blocks - self.reserved, 0)


def answered(asked: WhatIfs, traffic: Traffic) -> WhatIfRows:
    """Answer what is asked; raises ``UsageError`` for what the traffic or the numbers do not allow."""
    return WhatIfRows(
        tiers=None if asked.lower_blocks is None else _tiers(asked, asked.lower_blocks, traffic),
        routing=None if asked.replicas is None else _routing(asked, asked.replicas, traffic),
        block_sizes=_block_sizes(asked.block_sizes, traffic) if asked.block_sizes else None,
        worth=None if asked.bytes_per_token is None else _worth(asked, asked.bytes_per_token, traffic),
    )


def notes(asked: WhatIfs) -> list[str]:
    """Return what the answers rest on."""
    found = []
    if asked.lower_blocks is not None:
        found.append("tiers: a plain cache of blocks in two tiers, requests one after the other")
    if asked.replicas is not None:
        found.append(
            "routing: each replica a plain cache of its own; a conversation is a prompt that begins with an "
            f"earlier whole one; by prefix no replica takes over {MOST_LOAD:g} times its share of the tokens"
        )
    return found


def _rate(tokens: int, trace: BlockTrace) -> float | None:
    return tokens / trace.queried_tokens if trace.queried_tokens else None


def _tokens(trace: BlockTrace, hits: Ints) -> int:
    return int(trace.hit_tokens(hits).sum())


def _tiers(asked: WhatIfs, lower_blocks: int, traffic: Traffic) -> tuple[TierRow, ...]:
    upper = traffic.usable
    if upper is None:
        raise UsageError("a second tier stands below a cache with a limit: name its --blocks too")
    trace = traffic.trace
    rows = []
    for rule in asked.tier_rules:
        hits = tier_hits(trace, upper, lower_blocks, rule)
        whole, above = _tokens(trace, hits.upper + hits.lower), _tokens(trace, hits.upper)
        rows.append(
            TierRow(
                rule=rule,
                upper_blocks=upper,
                lower_blocks=lower_blocks,
                hit_tokens=whole,
                hit_rate=_rate(whole, trace),
                upper_hit_tokens=above,
                lower_hit_tokens=whole - above,
                loaded_blocks=hits.loaded,
                stored_blocks=hits.stored,
            )
        )
    return tuple(rows)


def _routing(asked: WhatIfs, replicas: int, traffic: Traffic) -> tuple[RoutingRow, ...]:
    trace = traffic.trace
    rows = []
    for routing in asked.routings:
        result = routed(trace, replicas, traffic.usable, routing)
        tokens = _tokens(trace, result.hits)
        rows.append(
            RoutingRow(
                routing=routing,
                replicas=replicas,
                hit_tokens=tokens,
                hit_rate=_rate(tokens, trace),
                imbalance=result.imbalance,
            )
        )
    return tuple(rows)


def _block_sizes(sizes: Sequence[int], traffic: Traffic) -> tuple[BlockSizeRow, ...]:
    if traffic.resized is None:
        raise UsageError("block ids are of blocks of one size: other sizes need prompts as text or tokens")
    rows = []
    for size in sorted(set(sizes)):
        trace = traffic.resized(size)
        blocks = None
        if traffic.num_blocks is not None:
            blocks = traffic.num_blocks * traffic.trace.block_size // size
        usable = None if blocks is None else max(blocks - traffic.reserved, 0)
        tokens = _tokens(trace, hit_blocks(trace, "lru", usable))
        rows.append(
            BlockSizeRow(block_size=size, blocks=blocks, hit_tokens=tokens, hit_rate=_rate(tokens, trace))
        )
    return tuple(rows)


def _worth(asked: WhatIfs, bytes_per_token: float, traffic: Traffic) -> tuple[Worth, ...]:
    curve = capacity_curve(traffic.trace, reserved=traffic.reserved)
    capacities = [point.blocks for point in curve.points()]
    if traffic.num_blocks is not None:
        capacities.append(traffic.num_blocks)
    return tuple(
        worth(
            curve,
            capacities,
            block_bytes=round(bytes_per_token * traffic.trace.block_size),
            duration_seconds=traffic.seconds,
            prefill_tokens_per_second=asked.prefill_tokens_per_second,
        )
    )
