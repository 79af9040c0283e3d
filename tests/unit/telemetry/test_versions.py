"""What each version of an engine tells, as tables: spans, metrics pages, statistics, and what is refused."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from collectors.otlp.decode import Decoded, Limits, decode_protobuf
from collectors.prometheus.families import FAMILIES
from collectors.prometheus.page import parse_page
from collectors.vllm_plugin.finished import UnknownShapeError, finished_request
from kvscope.errors import PermanentIngestError
from tests.support.telemetry import metrics_page

ENGINE = "http://127.0.0.1:8000"


def _exported(
    name: str, attributes: dict[str, Any], *, start: int = 10**18, end: int = 2 * 10**18
) -> Decoded:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = b"\x01" * 16, b"\x02" * 8, name
    span.start_time_unix_nano, span.end_time_unix_nano = start, end
    for key, value in attributes.items():
        field = {int: "int_value", float: "double_value", str: "string_value"}[type(value)]
        span.attributes.append(KeyValue(key=key, value=AnyValue(**{field: value})))
    return decode_protobuf(request.SerializeToString(), Limits(attributes=128, spans=10))


# vLLM's own keys, the same from 0.11 on; from 0.11 to 0.33 no span tells cached tokens
_VLLM = {
    "gen_ai.request.id": "chatcmpl-r",
    "gen_ai.usage.prompt_tokens": 100,
    "gen_ai.usage.completion_tokens": 5,
    "gen_ai.latency.time_to_first_token": 0.3,
    "gen_ai.latency.e2e": 0.9,
    "gen_ai.latency.time_in_queue": 0.1,
    "gen_ai.latency.time_in_model_prefill": 0.2,
    "gen_ai.latency.time_in_model_decode": 0.4,
    "gen_ai.latency.time_in_model_inference": 0.6,
}
_VLLM_TOLD = {
    "prompt_tokens": 100, "output_tokens": 5, "cached_tokens": None, "ttft_seconds": 0.3, "e2e_seconds": 0.9,
    "queue_seconds": 0.1, "prefill_seconds": 0.2, "decode_seconds": 0.4, "tpot_seconds": 0.1,
}  # fmt: skip
_HIT = {"gen_ai.usage.cache_read.input_tokens": 64}
_GENAI = {
    "gen_ai.usage.input_tokens": 100,
    "gen_ai.usage.output_tokens": 5,
    "gen_ai.response.id": "chatcmpl-r",
}

# producer: name of the span, its attributes, what is known then
SPANS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vLLM 0.11 to 0.33": ("llm_request", _VLLM, _VLLM_TOLD),
    "vLLM, temperature 0 leaves its key out": (
        "llm_request", _VLLM | {"gen_ai.request.max_tokens": 5, "gen_ai.request.n": 1}, _VLLM_TOLD,
    ),
    "vLLM with the span attribute that was proposed in 54476": (
        "llm_request", _VLLM | _HIT, _VLLM_TOLD | {"cached_tokens": 64},
    ),
    "vLLM's V0 keys, of which V1 sets none": (
        "llm_request", _VLLM | {"gen_ai.latency.time_in_scheduler": 0.1, "gen_ai.usage.num_sequences": 1},
        _VLLM_TOLD,
    ),
    "SGLang 0.5, a hit": (
        "request_process", _VLLM | {"gen_ai.usage.cached_tokens": 64}, _VLLM_TOLD | {"cached_tokens": 64},
    ),
    "SGLang 0.5, a zero hit": (
        "request_process", _VLLM | {"gen_ai.usage.cached_tokens": 0}, _VLLM_TOLD | {"cached_tokens": 0},
    ),
    "TensorRT-LLM": (
        "llm_request", {key: _VLLM[key] for key in list(_VLLM)[:6]},
        _VLLM_TOLD | dict.fromkeys(("prefill_seconds", "decode_seconds", "tpot_seconds")),
    ),
    "GenAI conventions, a hit": (
        "chat m", _GENAI | _HIT | {"gen_ai.usage.cache_creation.input_tokens": 9},
        {"prompt_tokens": 100, "output_tokens": 5, "cached_tokens": 64},
    ),
    "GenAI conventions, a zero hit": (
        "chat m", _GENAI | {"gen_ai.usage.cache_read.input_tokens": 0}, {"cached_tokens": 0},
    ),
    "GenAI conventions, hits not told": ("chat m", _GENAI, {"prompt_tokens": 100, "cached_tokens": None}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "attributes", "told"), SPANS.values(), ids=SPANS)
def test_spans_of_each_producer(name: str, attributes: dict[str, Any], told: dict[str, Any]) -> None:
    (part,) = _exported(name, attributes).parts
    assert part.request_id == "r"
    assert {field: part.values[field] for field in told} == pytest.approx(told, nan_ok=True)


@pytest.mark.parametrize(
    "name",
    [
        "Overall Loading", "Prepare model", "EngineCoreProc init", "AsyncMPClient init", "Worker init",
        "Init device", "Load model", "Load weights", "Allocate KV cache", "Warmup (GPU)", "Capture model",
        "Compile graph", "Inductor compilation", "API server setup", "tokenize", "prefill_waiting",
        "gateway.request", "score_tokens",
    ],
)  # fmt: skip
def test_spans_that_are_about_no_request_are_kept_apart(name: str) -> None:
    decoded = _exported(name, {"code.function": "load", "code.lineno": 7})
    assert (len(decoded.spans), decoded.parts) == (1, ())


@pytest.mark.parametrize(("start", "end"), [(2 * 10**18, 10**18), (0, 0), (2**64 - 1, 1), (1, 2**64 - 1)])
def test_odd_times_of_a_span_are_kept_and_its_durations_are_its_attributes(start: int, end: int) -> None:
    """A clock that was set back ends a span before it began; the durations come from another clock."""
    decoded = _exported("llm_request", _VLLM, start=start, end=end)
    (part,) = decoded.parts
    assert part.values["e2e_seconds"] == 0.9
    assert part.values["arrived_at"] == (start / 1e9 or None)


def _without(page: str, *names: str) -> str:
    """Return the page without some families and their comments."""
    pattern = re.compile(
        rf"^(# (HELP|TYPE) )?vllm:({'|'.join(names)})(_total|_bucket|_sum|_count|_created)?[ {{]"
    )
    return "".join(line for line in page.splitlines(keepends=True) if not pattern.match(line))


_SINCE = {
    "0.14": ("external_prefix_cache_queries", "external_prefix_cache_hits",
             "mm_cache_queries", "mm_cache_hits",
             "kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds",
             "request_prefill_kv_computed_tokens"),
    "0.17": ("prompt_tokens_by_source", "prompt_tokens_cached"),
    "0.20": ("num_requests_waiting_by_reason",),
    "0.30": ("request_num_preemptions",),
    "0.32": ("prompt_tokens_cached_by_source", "admission_rejections"),
}  # fmt: skip
_VERSIONS = ("0.11", "0.14", "0.17", "0.20", "0.23", "0.26", "0.30", "0.32", "0.33")


def _page_of(version: str) -> str:
    """Return the recorded page of 0.32 as ``version`` would have sent it."""
    later = [name for since, names in _SINCE.items() if _number(since) > _number(version) for name in names]
    page = _without(metrics_page("0.32.0"), *later) if later else metrics_page("0.32.0")
    if version == "0.11":
        page += 'vllm:gpu_cache_usage_perc{engine="0",model_name="tiny"} 0.5\n'
    if version in {"0.11", "0.14"}:
        page += 'vllm:time_per_output_token_seconds_sum{engine="0",model_name="tiny"} 1.5\n'
    return page


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize("version", _VERSIONS)
def test_pages_of_each_version_tell_their_families_and_no_others(version: str) -> None:
    samples = parse_page(_page_of(version), ENGINE, 1.0)
    names = {sample.name for sample in samples}
    for since, families in _SINCE.items():
        for family in families:
            (known,) = (one for one in FAMILIES if one.name == family)
            assert (set(known.samples()) <= names) == (_number(since) <= _number(version))
    values = {sample.name: sample.value for sample in samples if not sample.labels}
    assert values["vllm:prefix_cache_hits_total"] == 45_728
    assert values["vllm:prefix_cache_queries_total"] == 101_894
    assert ("vllm:gpu_cache_usage_perc" in values) == (version == "0.11")
    assert ("vllm:time_per_output_token_seconds_sum" in values) == (version in {"0.11", "0.14"})


def test_0_9_to_0_13_name_the_counters_twice_and_the_new_name_counts_once() -> None:
    old = 'vllm:gpu_prefix_cache_hits_total{e="0"} 45728\nvllm:gpu_prefix_cache_queries_total{e="0"} 1\n'
    samples = parse_page(metrics_page("0.32.0") + old, ENGINE, 1.0)
    assert [s.value for s in samples if "prefix_cache_hits" in s.name and "external" not in s.name] == [
        45_728.0
    ]


@pytest.mark.parametrize(
    "page",
    [
        # V0: a rate only
        'vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.5\nvllm:gpu_cache_usage_perc{model_name="m"} 0.1\n',
        # the first V1 engines, to 0.9.1: counters in blocks under the old names
        'vllm:gpu_cache_usage_perc{m="1"} 0.5\nvllm:gpu_prefix_cache_queries_total{m="1"} 9\n',
        'vllm:gpu_prefix_cache_queries_total{m="1"} 9\nvllm:gpu_prefix_cache_hits_total{m="1"} 3\n',
    ],
    ids=["V0", "0.8", "0.8 without usage"],
)
def test_pages_in_other_units_are_refused_and_never_mixed(page: str) -> None:
    with pytest.raises(PermanentIngestError, match=r"not in tokens; run vLLM 0\.11 or later"):
        parse_page(page, ENGINE, 1.0)


# what FinishedRequestStats has, by the version that added it, as the classes of 0.20 to 0.32 do; 0.17 has no
# request id, to 0.29 none has preemptions
_STATS: dict[str, dict[str, Any]] = {
    "0.17": {
        "finish_reason": SimpleNamespace(name="LENGTH"), "e2e_latency": 0.9, "num_prompt_tokens": 100,
        "num_generation_tokens": 5, "max_tokens_param": 5, "queued_time": 0.1, "prefill_time": 0.2,
        "inference_time": 0.6, "decode_time": 0.4, "mean_time_per_output_token": 0.1, "is_corrupted": False,
        "num_cached_tokens": 64,
    },
    "0.20": {"request_id": "chatcmpl-r"},
    "0.30": {"num_preemptions": 1},
    "0.33": {"something_new": object()},
}  # fmt: skip


def _stats(version: str, **other: Any) -> Any:
    fields: dict[str, Any] = {}
    for since, added in _STATS.items():
        if _number(since) <= _number(version):
            fields |= added
    return SimpleNamespace(**(fields | other))


@pytest.mark.parametrize("version", ["0.20", "0.23", "0.26", "0.29", "0.30", "0.33", "1.0"])
def test_the_plugin_knows_the_statistics_of_each_version(version: str) -> None:
    found = finished_request(_stats(version), finished_at=10.0, engine_index=0, model="m")
    assert found is not None
    told = found.attributes
    assert told["gen_ai.request.id"] == "chatcmpl-r"
    assert told["gen_ai.usage.cache_read.input_tokens"] == 64
    assert told["kvscope.queue_seconds"] == 0.1
    assert told.get("kvscope.preemptions") == (1 if _number(version) >= _number("0.30") else None)
    assert found.start_at == pytest.approx(9.1)


@pytest.mark.parametrize(
    "stats",
    [
        _stats("0.17"),
        _stats("0.33", num_cached_tokens=None),
        _stats("0.33", num_prompt_tokens="many"),
        SimpleNamespace(request_id="r"),
        object(),
    ],
    ids=["0.17 names no request", "no cached tokens", "no number", "fields are gone", "nothing"],
)
def test_the_plugin_steps_aside_where_it_does_not_know_the_statistics(stats: Any) -> None:
    with pytest.raises(UnknownShapeError):
        finished_request(stats, finished_at=10.0, engine_index=0, model=None)


def test_a_prompt_that_was_not_looked_up_is_no_zero_hit() -> None:
    """vLLM begins with -1 until the scheduler has looked: an aborted request may end so."""
    found = finished_request(
        _stats("0.33", num_cached_tokens=-1), finished_at=1.0, engine_index=0, model=None
    )
    zero = finished_request(_stats("0.33", num_cached_tokens=0), finished_at=1.0, engine_index=0, model=None)
    assert found is not None
    assert zero is not None
    assert "gen_ai.usage.cache_read.input_tokens" not in found.attributes
    assert zero.attributes["gen_ai.usage.cache_read.input_tokens"] == 0
