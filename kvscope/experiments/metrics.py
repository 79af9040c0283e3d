"""The metrics of an experiment: what each takes from a request record, and which way is better."""

import dataclasses
import math
from collections.abc import Callable, Mapping

from kvscope.errors import UsageError
from kvscope.model.request import RequestRecord, Status

Pair = tuple[float, float]
"""Numerator and denominator of one request; an arm's value is the sum of the first over the second."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric over requests; ``pair`` is None for a request of which it cannot be told.

    ``share`` metrics are 0 or 1 for each request, ``log`` metrics are logarithms. ``lower_is_better``
    says which change is a gain.
    """

    name: str
    words: str
    unit: str
    pair: Callable[[RequestRecord], Pair | None]
    lower_is_better: bool = True
    share: bool = False
    log: bool = False


def ttft_seconds(record: RequestRecord) -> float | None:
    """Return the engine's time to first token, or the gateway's where no engine told one."""
    return record.ttft_seconds if record.ttft_seconds is not None else record.ttft_client_seconds


def uncached_tokens(record: RequestRecord) -> int | None:
    """Return the prompt tokens that had to be computed, or None when either count is unknown."""
    if record.prompt_tokens is None or record.cached_tokens is None:
        return None
    return record.prompt_tokens - record.cached_tokens


def _each(value: Callable[[RequestRecord], float | None]) -> Callable[[RequestRecord], Pair | None]:
    def pair(record: RequestRecord) -> Pair | None:
        told = value(record)
        return None if told is None else (float(told), 1.0)

    return pair


def _log_ttft(record: RequestRecord) -> float | None:
    seconds = ttft_seconds(record)
    return math.log(seconds) if seconds is not None and seconds > 0 else None


def _hit_rate(record: RequestRecord) -> Pair | None:
    uncached = uncached_tokens(record)
    if uncached is None or not record.prompt_tokens:
        return None
    return float(record.prompt_tokens - uncached), float(record.prompt_tokens)


def _error(record: RequestRecord) -> float | None:
    """An aborted request is the client's doing and a running one has not ended: neither is told."""
    if record.status in (Status.ERROR, Status.REJECTED):
        return 1.0
    return 0.0 if record.status is Status.OK else None


def _length_cut(record: RequestRecord) -> float | None:
    return None if record.finish_reason is None else float(record.finish_reason == "length")


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="uncached_tokens",
            words="prompt tokens computed a request",
            unit="tokens",
            pair=_each(uncached_tokens),
        ),
        Metric(
            name="hit_rate",
            words="share of prompt tokens that were cached",
            unit="rate",
            pair=_hit_rate,
            lower_is_better=False,
        ),
        Metric(name="ttft_seconds", words="time to first token", unit="seconds", pair=_each(ttft_seconds)),
        Metric(
            name="log_ttft",
            words="logarithm of time to first token",
            unit="log seconds",
            pair=_each(_log_ttft),
            log=True,
        ),
        Metric(
            name="prefill_seconds",
            words="prefill time",
            unit="seconds",
            pair=_each(lambda r: r.prefill_seconds),
        ),
        Metric(
            name="tpot_seconds",
            words="time per output token",
            unit="seconds",
            pair=_each(lambda r: r.tpot_seconds),
        ),
        Metric(
            name="e2e_seconds",
            words="time to the whole answer",
            unit="seconds",
            pair=_each(lambda r: r.e2e_seconds),
        ),
        Metric(
            name="output_tokens",
            words="output tokens a request",
            unit="tokens",
            pair=_each(lambda r: r.output_tokens),
        ),
        Metric(
            name="preemptions",
            words="preemptions a request",
            unit="times",
            pair=_each(lambda r: r.preemptions),
        ),
        Metric(
            name="error", words="share of requests that failed", unit="rate", pair=_each(_error), share=True
        ),
        Metric(
            name="length_cut",
            words="share of answers cut by their length limit",
            unit="rate",
            pair=_each(_length_cut),
            share=True,
        ),
    )
}


def metric_named(name: str) -> Metric:
    """Return the metric; raises ``UsageError`` with the known names."""
    try:
        return METRICS[name]
    except KeyError:
        raise UsageError(f"unknown metric {name!r}; known are {', '.join(sorted(METRICS))}") from None
