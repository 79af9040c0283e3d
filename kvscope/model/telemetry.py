"""What engines send about themselves, decoded: spans, metric samples, KV-cache events."""

import dataclasses
from collections.abc import Mapping
from typing import Any


# not frozen: one is made for each span that comes in, and making it would take nearly three times as long
@dataclasses.dataclass(slots=True, kw_only=True)
class Span:
    """An OTLP span as received, never changed after that; ids are lower-case hex."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    service: str | None
    start_at: float
    end_at: float
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """One value of one metric at one scrape; ``engine`` is the base URL that was scraped."""

    engine: str
    replica: str  # the `engine` label; "" where the metric has none
    name: str  # as on the wire, e.g. `vllm:prefix_cache_hits_total`
    labels: Mapping[str, str]  # without `engine` and `model_name`
    at: float
    value: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """Full blocks were put into the prefix cache; ``token_ids`` covers all of them in order."""

    block_hashes: tuple[int | bytes, ...]
    parent_block_hash: int | bytes | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[Any, ...] | None = None  # a tuple per block, or None for a block without
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None  # of the group's layers, e.g. `full_attention`; since vLLM 0.22
    kv_cache_spec_sliding_window: int | None = None  # tokens
    locality: str | None = None  # LOCAL or REMOTE to the publisher, since vLLM 0.26
    ownership: str | None = None  # since vLLM 0.29
    session_id: str | None = None  # that triggered the storing, which is not its owner; since vLLM 0.30
    lookahead_token_ids: tuple[int, ...] | None = None  # since vLLM 0.33


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """Blocks were taken out of the prefix cache (evicted)."""

    block_hashes: tuple[int | bytes, ...]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllBlocksCleared:
    """The engine's whole prefix cache was reset."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheEventBatch:
    """One published batch: the events of one engine step, in order."""

    engine: str
    replica: str
    sequence: int
    at: float
    events: tuple[CacheEvent, ...]
