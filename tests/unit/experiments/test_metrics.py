import math

import pytest

from kvscope.errors import UsageError
from kvscope.experiments.metrics import METRICS, metric_named
from kvscope.model.request import RequestRecord, Status

RECORD = RequestRecord(
    request_id="r",
    status=Status.OK,
    finish_reason="length",
    prompt_tokens=1000,
    cached_tokens=960,
    output_tokens=16,
    ttft_seconds=0.25,
    ttft_client_seconds=0.26,
    tpot_seconds=0.02,
    prefill_seconds=0.2,
    e2e_seconds=0.6,
    preemptions=0,
)


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("uncached_tokens", (40.0, 1.0)),
        ("hit_rate", (960.0, 1000.0)),
        ("ttft_seconds", (0.25, 1.0)),
        ("log_ttft", (math.log(0.25), 1.0)),
        ("tpot_seconds", (0.02, 1.0)),
        ("prefill_seconds", (0.2, 1.0)),
        ("e2e_seconds", (0.6, 1.0)),
        ("output_tokens", (16.0, 1.0)),
        ("preemptions", (0.0, 1.0)),
        ("error", (0.0, 1.0)),
        ("length_cut", (1.0, 1.0)),
    ],
)
def test_what_each_metric_takes_from_a_record(name: str, pair: tuple[float, float]) -> None:
    assert metric_named(name).pair(RECORD) == pair


def test_every_metric_is_unknown_of_a_record_that_knows_nothing() -> None:
    nothing = RequestRecord(request_id="r")
    assert {metric.pair(nothing) for metric in METRICS.values()} == {None}


@pytest.mark.parametrize(
    ("status", "value"),
    [
        (Status.OK, (0.0, 1.0)),
        (Status.ERROR, (1.0, 1.0)),
        (Status.REJECTED, (1.0, 1.0)),
        (Status.ABORTED, None),
        (None, None),
    ],
)
def test_an_error_is_the_servers_doing(status: Status | None, value: tuple[float, float] | None) -> None:
    assert metric_named("error").pair(RequestRecord(request_id="r", status=status)) == value


def test_the_gateways_ttft_stands_in_for_the_engines() -> None:
    record = RequestRecord(request_id="r", ttft_client_seconds=0.5)
    assert metric_named("ttft_seconds").pair(record) == (0.5, 1.0)


def test_only_the_hit_rate_is_better_higher() -> None:
    assert [name for name, metric in METRICS.items() if not metric.lower_is_better] == ["hit_rate"]


def test_an_unknown_metric_names_the_known() -> None:
    with pytest.raises(UsageError, match="unknown metric 'speed'; known are e2e_seconds, error, hit_rate"):
        metric_named("speed")
