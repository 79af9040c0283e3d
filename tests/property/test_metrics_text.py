"""Any text gives finite samples or a permanent error."""

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.prometheus.page import parse_page
from kvscope.errors import PermanentIngestError
from kvscope.model.telemetry import MetricSample

# a busy machine is no failure
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

lines = st.tuples(
    st.sampled_from(
        ["vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc", "process_start_time_seconds", "#"]
    ),
    st.text(alphabet='{}=",\\ \n\t0123456789.eE+-NaInf_engxyz\u00e9', max_size=30),
).map("".join)


@calm
@given(st.lists(lines, max_size=6).map("\n".join) | st.text(max_size=100))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert all(math.isfinite(sample.value) for sample in _read(text))


def _read(text: str) -> list[MetricSample]:
    try:
        return parse_page(text, "http://e", 1.0)
    except PermanentIngestError:
        return []
