"""Latency by bands of prompt entropy, as published reports show it: a look at the data, no model."""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from kvscope.model.request import RequestRecord

_BANDS = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBand:
    """A quarter of the requests by entropy, in bits a character; times in seconds.

    Tokens stand beside, as entropy goes with length: a difference between bands may be theirs.
    """

    entropy_from: float
    entropy_to: float
    requests: int
    prompt_tokens_mean: float
    cached_tokens_mean: float
    ttft_mean_seconds: float
    ttft_p50_seconds: float
    ttft_p95_seconds: float


def entropy_bands(records: Sequence[RequestRecord]) -> list[EntropyBand]:
    """Return the bands of requests that tell entropy, tokens and TTFT; none for fewer than eight."""
    told = [
        (record.prompt_entropy, record.prompt_tokens, record.cached_tokens, record.ttft_seconds)
        for record in records
        if record.prompt_entropy is not None
        and record.prompt_tokens is not None
        and record.cached_tokens is not None
        and record.ttft_seconds is not None
    ]
    if len(told) < 2 * _BANDS:
        return []
    told.sort()
    edges = [len(told) * band // _BANDS for band in range(_BANDS + 1)]
    return [_band(told[begin:end]) for begin, end in itertools.pairwise(edges)]


def _band(rows: Sequence[tuple[float, int, int, float]]) -> EntropyBand:
    seconds = [row[3] for row in rows]
    cuts = statistics.quantiles(seconds, n=20, method="inclusive")
    return EntropyBand(
        entropy_from=rows[0][0],
        entropy_to=rows[-1][0],
        requests=len(rows),
        prompt_tokens_mean=statistics.fmean(row[1] for row in rows),
        cached_tokens_mean=statistics.fmean(row[2] for row in rows),
        ttft_mean_seconds=statistics.fmean(seconds),
        ttft_p50_seconds=statistics.median(seconds),
        ttft_p95_seconds=cuts[-1],
    )
