"""Which of vLLM's metrics are kept, by their names on the wire (vLLM 0.14 to 0.33)."""

_COUNTERS = (
    "prefix_cache_queries",
    "prefix_cache_hits",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "prompt_tokens",
    "prompt_tokens_by_source",
    "prompt_tokens_cached",
    "prompt_tokens_cached_by_source",
    "prompt_tokens_recomputed",
    "generation_tokens",
    "num_preemptions",
    "request_success",
)
_GAUGES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "cache_config_info",
)
# of a histogram the sum and the count: their differences are exact, and buckets are many
_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_kv_computed_tokens",
)

KEPT = frozenset(
    {
        "process_start_time_seconds",
        *(f"vllm:{name}_total" for name in _COUNTERS),
        *(f"vllm:{name}" for name in _GAUGES),
        *(f"vllm:{name}{part}" for name in _HISTOGRAMS for part in ("_sum", "_count")),
    }
)

PREFIX_CACHE_QUERIES = "vllm:prefix_cache_queries_total"

# The V0 engine, gone since vLLM 0.11, and 0.8's first V1 pages count hits in blocks or only as a rate.
OLD_RATE = "vllm:gpu_prefix_cache_hit_rate"
OLD_USAGE = "vllm:gpu_cache_usage_perc"
