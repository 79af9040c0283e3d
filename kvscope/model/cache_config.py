"""How an engine's prefix cache is set up, as its ``vllm:cache_config_info`` metric tells it."""

import dataclasses
from collections.abc import Iterable, Mapping

from kvscope.model.telemetry import MetricSample

CACHE_CONFIG_METRIC = "vllm:cache_config_info"
BUILT_IN_ENGINE = "kvscope-builtin-engine"
"""What kvscope's own stand-in engine calls itself wherever an engine can, here as the hash algorithm."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The cache of one engine; ``num_blocks`` counts the whole pool, its null block included."""

    engine: str
    replica: str
    block_size: int | None  # tokens
    num_blocks: int | None
    prefix_caching: bool | None
    hash_algo: str | None = None
    size_tokens: int | None = None  # told since vLLM 0.24

    @property
    def built_in(self) -> bool:
        """Whether this is kvscope's own stand-in engine, not vLLM."""
        return self.hash_algo == BUILT_IN_ENGINE

    @property
    def usable_blocks(self) -> int | None:
        """Blocks that can hold tokens: vLLM sets one aside as the null block (0.32, executed)."""
        return None if self.num_blocks is None else max(self.num_blocks - 1, 0)


def cache_configs(samples: Iterable[MetricSample]) -> list[CacheConfig]:
    """Return each engine's cache, from its latest sample; other metrics are passed over."""
    latest: dict[tuple[str, str], MetricSample] = {}
    for sample in samples:
        if sample.name != CACHE_CONFIG_METRIC:
            continue
        key = (sample.engine, sample.replica)
        if key not in latest or latest[key].at <= sample.at:
            latest[key] = sample
    return [_from_labels(*key, latest[key].labels) for key in sorted(latest)]


def cache_config(samples: Iterable[MetricSample], engine: str | None = None) -> CacheConfig | None:
    """Return the cache of ``engine`` (or of the first one by name), or None when no sample tells."""
    return next((config for config in cache_configs(samples) if engine in (None, config.engine)), None)


def _from_labels(engine: str, replica: str, labels: Mapping[str, str]) -> CacheConfig:
    return CacheConfig(
        engine=engine,
        replica=replica,
        block_size=_count(labels.get("block_size")),
        num_blocks=_count(labels.get("num_gpu_blocks")),
        prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
        hash_algo=_told(labels.get("prefix_caching_hash_algo")),
        size_tokens=_count(labels.get("kv_cache_size_tokens")),
    )


def _told(label: str | None) -> str | None:
    """Return a label's text; vLLM writes the word None for what is not set."""
    return None if label in (None, "", "None") else label


def _count(label: str | None) -> int | None:
    text = _told(label)
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
