"""Latency by entropy bands."""

from kvscope.analysis.bands import entropy_bands
from kvscope.model.request import RequestRecord


def _record(number: int) -> RequestRecord:
    return RequestRecord(
        request_id=str(number),
        prompt_entropy=number / 10,
        prompt_tokens=1000 - number,
        cached_tokens=number,
        ttft_seconds=1.0 + number,
    )


def test_quarters_by_entropy_with_their_times() -> None:
    bands = entropy_bands([_record(number) for number in reversed(range(84))])
    assert [band.requests for band in bands] == [21] * 4
    first = bands[0]
    assert (first.entropy_from, first.entropy_to) == (0.0, 2.0)
    assert (first.ttft_mean_seconds, first.ttft_p50_seconds, first.ttft_p95_seconds) == (11.0, 11.0, 20.0)
    assert (first.prompt_tokens_mean, first.cached_tokens_mean) == (990.0, 10.0)
    assert bands[-1].entropy_to == 8.3


def test_too_few_and_unknown_give_none() -> None:
    assert entropy_bands([_record(number) for number in range(7)]) == []
    assert entropy_bands([RequestRecord(request_id=str(number)) for number in range(90)]) == []
