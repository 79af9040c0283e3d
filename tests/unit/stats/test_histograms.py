"""Quantiles of histograms: PromQL's own test values, recorded pages, and odd buckets."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.otlp.decode import Limits, decode_protobuf
from collectors.prometheus.page import parse_page
from kvscope.model.telemetry import MetricSample
from kvscope.stats.histograms import buckets_by_replica, histogram_quantile, increase
from tests.support.telemetry import VERSIONS, metrics_page, otlp_payloads

INF = math.inf
# the histograms of Prometheus' tests of its own function, with the values that these expect
POSITIVE = {0.1: 5.0, 0.2: 7.0, 1.0: 11.0, INF: 12.0}
NEGATIVE = {-0.2: 1.0, -0.1: 2.0, 0.3: 2.0, INF: 3.0}


@pytest.mark.parametrize(
    ("q", "positive", "negative"),
    [(0, 0, -0.2), (0.2, 0.048, -0.2), (0.5, 0.15, -0.15), (0.8, 0.72, 0.3), (1, 1, 0.3)],
)
def test_values_are_those_of_prometheus(q: float, positive: float, negative: float) -> None:
    assert histogram_quantile(POSITIVE, q) == pytest.approx(positive)
    assert histogram_quantile(NEGATIVE, q) == pytest.approx(negative)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("q", [0.05, 0.5, 0.95])
def test_the_recorded_buckets_agree_with_the_recorded_requests(version: str, q: float) -> None:
    """The exact quantile of each request's span and the page's lie in one bucket."""
    limits = Limits(attributes=128, spans=10_000)
    parts = [part for body in otlp_payloads(version) for part in decode_protobuf(body, limits).parts]
    exact = sorted(part.values["ttft_seconds"] for part in parts)
    page = parse_page(metrics_page(version), "e", 1.0, buckets=True)
    family = [sample for sample in page if sample.name == "vllm:time_to_first_token_seconds_bucket"]
    buckets = buckets_by_replica(family)["e", "0"]
    assert buckets[INF] == len(exact)
    estimate = histogram_quantile(buckets, q)
    assert estimate is not None
    value = exact[math.ceil(q * len(exact)) - 1]
    bounds = [0.0, *sorted(buckets)]
    assert [bound >= value for bound in bounds] == [bound >= estimate for bound in bounds]


@pytest.mark.parametrize("buckets", [{}, {INF: 0.0}, {1.0: 0.0, INF: 0.0}, {INF: 4.0}, {math.nan: 3.0}])
def test_no_observations_and_no_bounds_have_no_quantile(buckets: dict[float, float]) -> None:
    assert histogram_quantile(buckets, 0.5) is None


def test_a_count_that_falls_is_read_as_level() -> None:
    assert histogram_quantile({1.0: 5.0, 2.0: 4.0, 3.0: 10.0, INF: 10.0}, 0.75) == pytest.approx(2.5)


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_a_quantile_outside_0_to_1_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        histogram_quantile(POSITIVE, q)


@given(
    st.dictionaries(st.floats(0.001, 100), st.integers(0, 50), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_quantiles_do_not_fall_and_stay_within_the_bounds(
    observed: dict[float, int], one: float, other: float
) -> None:
    total = 0
    buckets: dict[float, float] = {}
    for bound in sorted(observed):
        total += observed[bound]
        buckets[bound] = total
    low, high = (histogram_quantile(buckets, q) for q in sorted((one, other)))
    if not total:
        assert low is None
        return
    assert low is not None
    assert high is not None
    assert 0 <= low <= high + 1e-9 <= max(buckets) + 1e-6


def test_what_was_counted_in_between_survives_a_restart() -> None:
    assert increase({1.0: 2.0, INF: 3.0}, {1.0: 5.0, INF: 9.0}) == {1.0: 3.0, INF: 6.0}
    assert increase({1.0: 8.0, INF: 9.0}, {1.0: 1.0, INF: 9.0}) == {1.0: 1.0, INF: 9.0}
    assert increase({1.0: 1.0}, {2.0: 1.0}) == {2.0: 1.0}


def test_samples_that_are_no_buckets_are_passed_over() -> None:
    def sample(replica: str, value: float, **labels: str) -> MetricSample:
        return MetricSample(engine="e", replica=replica, name="n", labels=labels, at=1.0, value=value)

    samples = [sample("0", 1, le="0.5"), sample("0", 2, le="+Inf"), sample("1", 3, le="1"), sample("1", 4)]
    assert buckets_by_replica([*samples, sample("1", 5, le="odd")]) == {
        ("e", "0"): {0.5: 1, INF: 2},
        ("e", "1"): {1.0: 3},
    }
