"""Metrics pages of real engines, old and new, and what is no metrics page."""

import pytest

from collectors.prometheus.families import FAMILIES
from collectors.prometheus.page import parse_page
from kvscope.errors import PermanentIngestError
from kvscope.model.cache_config import cache_config
from kvscope.model.telemetry import MetricSample
from tests.support.telemetry import DATA, VERSIONS, metrics_page

ENGINE = "http://127.0.0.1:8000"


def _values(samples: list[MetricSample], name: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels.values()): sample.value for sample in samples if sample.name == name}


@pytest.mark.parametrize(
    ("version", "queries", "hits"), [("0.32.0", 101_894, 45_728), ("0.23.0", 74_732, 34_688)]
)
def test_the_recorded_page_tells_queried_and_hit_tokens(version: str, queries: int, hits: int) -> None:
    samples = parse_page(metrics_page(version), ENGINE, 5.0)
    assert _values(samples, "vllm:prefix_cache_queries_total") == {(): queries}
    assert _values(samples, "vllm:prefix_cache_hits_total") == {(): hits}
    assert _values(samples, "vllm:external_prefix_cache_hits_total") == {(): 0}
    by_source = _values(samples, "vllm:prompt_tokens_by_source_total")
    assert by_source["local_cache_hit",] == hits
    assert sum(by_source.values()) == queries
    assert {(sample.engine, sample.at) for sample in samples} == {(ENGINE, 5.0)}
    assert {sample.replica for sample in samples} == {"0", ""}


def test_tokens_by_tier_latency_sums_and_start_time_are_kept_and_buckets_are_not() -> None:
    samples = parse_page(metrics_page("0.32.0"), ENGINE, 5.0)
    assert _values(samples, "vllm:prompt_tokens_cached_by_source_total")["device",] == 45_728
    assert _values(samples, "vllm:request_success_total")["length",] == 160
    assert _values(samples, "vllm:time_to_first_token_seconds_sum") == {(): 7.621933698654175}
    assert _values(samples, "vllm:time_to_first_token_seconds_count") == {(): 160}
    assert _values(samples, "process_start_time_seconds") == {(): 1.79596621218e09}
    assert [sample.name for sample in samples if sample.name.endswith(("_bucket", "_created"))] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cache_configuration_comes_from_the_page(version: str) -> None:
    config = cache_config(parse_page(metrics_page(version), ENGINE, 5.0))
    assert config is not None
    assert (config.engine, config.replica) == (ENGINE, "0")
    assert (config.block_size, config.num_blocks, config.usable_blocks) == (32, 300, 299)
    assert (config.prefix_caching, config.hash_algo) == (True, "sha256")


def test_several_ranks_on_one_page_stay_apart() -> None:
    page = "".join(
        f'vllm:prefix_cache_hits_total{{engine="{rank}",model_name="m"}} {rank * 10}.0\n' for rank in (0, 1)
    )
    samples = parse_page(page, ENGINE, 1.0)
    assert {(sample.replica, sample.value) for sample in samples} == {("0", 0.0), ("1", 10.0)}
    assert samples[0].labels == {}


@pytest.mark.parametrize(
    "page",
    [
        (DATA / "vllm_v0_metrics.txt").read_text(),
        'vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.5\nvllm:prompt_tokens_total 1.0\n',
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:gpu_prefix_cache_queries_total 1.0\n',
    ],
    ids=["recorded", "hit rate", "blocks"],
)
def test_old_engines_are_refused_with_the_version_that_is_needed(page: str) -> None:
    with pytest.raises(PermanentIngestError, match=r"V0 engine .* run vLLM 0\.11 or later"):
        parse_page(page, ENGINE, 1.0)


def test_vllm_0_11_still_has_an_old_gauge_and_is_taken() -> None:
    page = "vllm:gpu_cache_usage_perc 0.5\nvllm:prefix_cache_queries_total 7.0\n"
    assert [sample.value for sample in parse_page(page, ENGINE, 1.0)] == [0.5, 7.0]


@pytest.mark.parametrize("page", ["", "<html><body>not found</body></html>", "go_goroutines 7.0\n", "\x00"])
def test_other_pages_are_refused(page: str) -> None:
    with pytest.raises(PermanentIngestError, match="no metrics of vLLM"):
        parse_page(page, ENGINE, 1.0)


@pytest.mark.parametrize(
    "line", ["vllm:prompt_tokens_total", "vllm:prompt_tokens_total{a= 1", "vllm:prompt_tokens_total x"]
)
def test_a_cut_off_line_refuses_the_page(line: str) -> None:
    with pytest.raises(PermanentIngestError, match="text format"):
        parse_page(f"vllm:prefix_cache_hits_total 1.0\n{line}", ENGINE, 1.0)


@pytest.mark.parametrize(
    ("line", "whose"),
    [
        ('sglang:cache_hit_rate{model_name="m"} 0.4', "SGLang"),
        ('sglang_cached_tokens_total{cache_source="device"} 4.0', "SGLang"),
        ("trtllm_request_success_total 1.0", "TensorRT-LLM"),
        ("dynamo_frontend_requests_total 1.0", "NVIDIA Dynamo"),
        ("llm_d_epp_request_ttft_seconds_count 1.0", "llm-d's router"),
        ("kvscope_items_accepted_total 1.0", "a kvscope agent"),
    ],
)
def test_pages_of_other_servers_are_named(line: str, whose: str) -> None:
    with pytest.raises(PermanentIngestError, match=f"is that of {whose}, and only vLLM's is read"):
        parse_page(f"# HELP vllm:x of another\n{line}\ngo_goroutines 7.0\n", ENGINE, 1.0)


def test_a_router_that_passes_vllms_metrics_on_is_read() -> None:
    page = "dynamo_frontend_requests_total 1.0\nvllm:prompt_tokens_total 7.0\n"
    assert [sample.value for sample in parse_page(page, ENGINE, 1.0)] == [7.0]


def test_every_family_of_the_recorded_version_is_kept() -> None:
    """0.32 has all families but those of other versions and of what its server had turned off."""
    names = {sample.name for sample in parse_page(metrics_page("0.32.0"), ENGINE, 1.0, buckets=True)}
    absent = {family.name for family in FAMILIES if not set(family.samples()) <= names}
    assert absent == {
        "prompt_tokens_recomputed",
        "gpu_cache_usage_perc",
        "time_per_output_token_seconds",
        "num_requests_kv_fetch_by_stage",
        *(family.name for family in FAMILIES if family.name.startswith(("kv_offload_", "hisparse_"))),
    }
    kept = _values(parse_page(metrics_page("0.32.0"), ENGINE, 1.0), "vllm:admission_rejections_total")
    assert kept == {("max_num_queued_reqs",): 0, ("max_num_queued_tokens",): 0}


def test_buckets_come_on_wish_and_end_at_the_count() -> None:
    samples = parse_page(metrics_page("0.32.0"), ENGINE, 1.0, buckets=True)
    last = {sample.name: sample.value for sample in samples if sample.labels.get("le") == "+Inf"}
    assert len(last) == 11  # eight latency families and the three of block residency
    for name, value in last.items():
        assert _values(samples, name.replace("_bucket", "_count")) == {(): value}
    assert _values(samples, "vllm:iteration_tokens_total_bucket") == {}


def test_buckets_of_several_ranks_stay_apart() -> None:
    page = "".join(
        f'vllm:time_to_first_token_seconds_bucket{{engine="{rank}",le="{le}",model_name="m"}} {rank}.0\n'
        for rank in (0, 1)
        for le in ("0.1", "+Inf")
    )
    samples = parse_page(page, ENGINE, 1.0, buckets=True)
    assert {(sample.replica, sample.labels["le"], sample.value) for sample in samples} == {
        ("0", "0.1", 0.0),
        ("0", "+Inf", 0.0),
        ("1", "0.1", 1.0),
        ("1", "+Inf", 1.0),
    }


def test_values_that_are_no_numbers_are_left_out() -> None:
    page = "vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running +Inf\nvllm:prompt_tokens_total 1.0\n"
    assert [sample.name for sample in parse_page(page, ENGINE, 1.0)] == ["vllm:prompt_tokens_total"]
