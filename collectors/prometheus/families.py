"""Which of vLLM's metrics are kept, and in which versions they are (read in 0.11 to 0.33)."""

import dataclasses
from collections.abc import Iterator
from enum import StrEnum


class Kind(StrEnum):
    """How a family looks on the wire."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"  # its sum and count: their differences are exact
    QUANTILES = "histogram with buckets"


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """One metric, without the prefix ``vllm:``; ``versions`` limits where it is, as far as known."""

    name: str
    kind: Kind
    versions: str = ""

    def samples(self) -> Iterator[str]:
        """Yield the names of its samples on the wire, without buckets."""
        match self.kind:
            case Kind.COUNTER:
                yield f"vllm:{self.name}_total"
            case Kind.GAUGE:
                yield f"vllm:{self.name}"
            case Kind.HISTOGRAM | Kind.QUANTILES:
                yield f"vllm:{self.name}_sum"
                yield f"vllm:{self.name}_count"


FAMILIES = (
    Family("prefix_cache_queries", Kind.COUNTER),
    Family("prefix_cache_hits", Kind.COUNTER),
    Family("external_prefix_cache_queries", Kind.COUNTER, "0.14 and later"),
    Family("external_prefix_cache_hits", Kind.COUNTER, "0.14 and later"),
    Family("mm_cache_queries", Kind.COUNTER, "0.14 and later"),
    Family("mm_cache_hits", Kind.COUNTER, "0.14 and later"),
    Family("prompt_tokens", Kind.COUNTER),
    Family("prompt_tokens_by_source", Kind.COUNTER, "0.17 and later"),
    Family("prompt_tokens_cached", Kind.COUNTER, "0.17 and later"),
    Family("prompt_tokens_cached_by_source", Kind.COUNTER, "0.32 and later"),
    Family("prompt_tokens_recomputed", Kind.COUNTER, "0.17, gone by 0.20"),
    Family("generation_tokens", Kind.COUNTER),
    Family("num_preemptions", Kind.COUNTER),
    Family("request_success", Kind.COUNTER),
    Family("admission_rejections", Kind.COUNTER, "0.32 and later"),
    Family("kv_offload_load_bytes", Kind.COUNTER, "0.26 and later"),
    Family("kv_offload_load_time", Kind.COUNTER, "0.26 and later"),
    Family("kv_offload_store_bytes", Kind.COUNTER, "0.26 and later"),
    Family("kv_offload_store_time", Kind.COUNTER, "0.26 and later"),
    Family("hisparse_cache_hits", Kind.COUNTER, "0.32 and later"),
    Family("hisparse_cache_misses", Kind.COUNTER, "0.32 and later"),
    Family("num_requests_running", Kind.GAUGE),
    Family("num_requests_waiting", Kind.GAUGE),
    Family("num_requests_waiting_by_reason", Kind.GAUGE, "0.20 and later"),
    Family("num_requests_kv_fetch_by_stage", Kind.GAUGE, "0.32 and later"),
    Family("kv_cache_usage_perc", Kind.GAUGE),
    Family("gpu_cache_usage_perc", Kind.GAUGE, "0.11, gone by 0.14"),
    Family("kv_offload_cpu_cache_usage_perc", Kind.GAUGE, "0.26 and later"),
    Family("cache_config_info", Kind.GAUGE),
    Family("time_to_first_token_seconds", Kind.QUANTILES),
    Family("inter_token_latency_seconds", Kind.QUANTILES),
    Family("time_per_output_token_seconds", Kind.QUANTILES, "gone by 0.17"),
    Family("request_time_per_output_token_seconds", Kind.QUANTILES),
    Family("e2e_request_latency_seconds", Kind.QUANTILES),
    Family("request_queue_time_seconds", Kind.QUANTILES),
    Family("request_prefill_time_seconds", Kind.QUANTILES),
    Family("request_decode_time_seconds", Kind.QUANTILES),
    Family("request_inference_time_seconds", Kind.QUANTILES),
    Family("kv_block_lifetime_seconds", Kind.QUANTILES, "0.14 and later, with --kv-cache-metrics"),
    Family("kv_block_idle_before_evict_seconds", Kind.QUANTILES, "0.14 and later, with --kv-cache-metrics"),
    Family("kv_block_reuse_gap_seconds", Kind.QUANTILES, "0.14 and later, with --kv-cache-metrics"),
    Family("kv_offload_lookup_sync_delay_seconds", Kind.HISTOGRAM, "0.26 and later"),
    Family("kv_offload_lookup_async_delay_seconds", Kind.HISTOGRAM, "0.26 and later"),
    Family("request_prefill_kv_computed_tokens", Kind.HISTOGRAM, "0.14 and later"),
    Family("request_num_preemptions", Kind.HISTOGRAM, "0.30 and later"),
    Family("request_prompt_tokens", Kind.HISTOGRAM),
    Family("request_generation_tokens", Kind.HISTOGRAM),
)

PROCESS_START = "process_start_time_seconds"
KEPT = frozenset({PROCESS_START, *(name for family in FAMILIES for name in family.samples())})
BUCKETS = frozenset(f"vllm:{family.name}_bucket" for family in FAMILIES if family.kind is Kind.QUANTILES)

PREFIX_CACHE_QUERIES = "vllm:prefix_cache_queries_total"

# The V0 engine, gone since vLLM 0.11, and 0.8's first V1 pages count hits in blocks or only as a rate.
OLD_RATE = "vllm:gpu_prefix_cache_hit_rate"
OLD = ("vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total")
"""Names that 0.9.2 to 0.13 have beside the new ones, and older versions alone."""

# Beginnings of the names on other servers' pages, so that a refusal can say whose page it is.
FOREIGN = {
    "sglang:": "SGLang",
    "sglang_": "SGLang",
    "trtllm_": "TensorRT-LLM",
    "dynamo_": "NVIDIA Dynamo",
    "llm_d_": "llm-d's router",
    "tgi_": "Text Generation Inference",
    "kvscope_": "a kvscope agent",
}
