"""Turns records into the figures of a report: hits and times of a set of requests."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kvscope.model.request import RequestRecord
from kvscope.model.views import HitRow
from kvscope.reports.content import Times, Traffic


def times(records: Sequence[RequestRecord]) -> Times | None:
    """Return how TTFT is spread: the engine's where it is told at all, else the client's, else None.

    The two are never mixed: one includes the way through the gateway, the other does not.
    """
    sources: tuple[tuple[str, Callable[[RequestRecord], float | None]], ...] = (
        ("engine", lambda record: record.ttft_seconds),
        ("client", lambda record: record.ttft_client_seconds),
    )
    for source, field in sources:
        values = [value for record in records if (value := field(record)) is not None]
        if values:
            mean, (p50, p95) = float(np.mean(values)), np.quantile(values, (0.5, 0.95))
            return Times(source=source, requests=len(values), mean=mean, p50=float(p50), p95=float(p95))
    return None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known, or None."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def hits(records: Sequence[RequestRecord]) -> tuple[int, int, int]:
    """Return how many records know their tokens, and the sums of their prompt and cached tokens."""
    known = [
        (record.prompt_tokens, record.cached_tokens)
        for record in records
        if record.prompt_tokens is not None and record.cached_tokens is not None
    ]
    return len(known), sum(prompt for prompt, _ in known), sum(cached for _, cached in known)


def traffic(key: str, records: Sequence[RequestRecord], row: HitRow | None = None) -> Traffic:
    """Return the figures of ``records``; sums come from ``row`` where the store has added them up."""
    known, prompt, cached = (
        (row.known_requests, row.prompt_tokens, row.cached_tokens) if row else hits(records)
    )
    return Traffic(
        key=key,
        requests=row.requests if row else len(records),
        known_requests=known,
        prompt_tokens=prompt,
        cached_tokens=cached,
        hit_rate=cached / prompt if prompt else None,
        ttft=times(records),
        tpot_seconds_mean=mean(record.tpot_seconds for record in records),
    )
