"""The cache's setup from the labels that vLLM 0.32 publishes."""

from typing import Any

from kvscope.model.cache_config import cache_config, cache_configs
from kvscope.model.telemetry import MetricSample


def _sample(*, at: float = 1.0, engine: str = "http://a", replica: str = "0", **labels: str) -> MetricSample:
    return MetricSample(
        engine=engine, replica=replica, name="vllm:cache_config_info", labels=labels, at=at, value=1.0
    )


RECORDED: dict[str, Any] = {
    "block_size": "32",
    "num_gpu_blocks": "300",
    "enable_prefix_caching": "True",
    "prefix_caching_hash_algo": "sha256",
    "kv_cache_size_tokens": "9600",
    "hash_block_size": "None",
}


def test_one_block_of_the_pool_holds_no_tokens() -> None:
    config = cache_config([_sample(**RECORDED)])
    assert config is not None
    assert (config.block_size, config.num_blocks, config.usable_blocks) == (32, 300, 299)
    assert (config.prefix_caching, config.hash_algo, config.size_tokens) == (True, "sha256", 9600)


def test_the_latest_sample_of_each_engine_counts() -> None:
    samples = [
        _sample(at=2.0, num_gpu_blocks="10"),
        _sample(at=1.0, num_gpu_blocks="9"),
        _sample(engine="http://b", num_gpu_blocks="8"),
    ]
    assert [config.num_blocks for config in cache_configs(samples)] == [10, 8]
    second = cache_config(samples, "http://b")
    assert second is not None
    assert second.num_blocks == 8
    assert cache_config(samples, "http://c") is None


def test_what_is_not_told_stays_unknown() -> None:
    config = cache_config([_sample(num_gpu_blocks="None", block_size="-3", enable_prefix_caching="?")])
    assert config is not None
    assert (config.block_size, config.num_blocks, config.usable_blocks) == (None, None, None)
    assert config.prefix_caching is None
    assert cache_config([]) is None
