"""Quantiles of what a Prometheus histogram has counted."""

import itertools
import math
from collections.abc import Iterable, Mapping

from kvscope.model.telemetry import MetricSample


def histogram_quantile(buckets: Mapping[float, float], q: float) -> float | None:
    """Return the ``q`` quantile (0 to 1) of cumulative counts by upper bound, or None of no observations.

    As PromQL's function of this name: linear within a bucket, from 0 in the lowest one unless its bound is
    negative. Of the last bucket, without a finite bound, the highest finite bound is returned: more is not
    known. Counts that fall from one bound to a higher one are read as level. Raises ``ValueError`` for ``q``
    outside 0 to 1.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
    bounds = sorted(bound for bound in buckets if not math.isnan(bound))
    counts = list(itertools.accumulate((buckets[bound] for bound in bounds), max))
    if not bounds or not counts[-1] > 0:
        return None
    rank = q * counts[-1]
    place = next(place for place, count in enumerate(counts) if count >= rank)
    upper = bounds[place]
    if math.isinf(upper):
        return bounds[place - 1] if place else None
    if place == 0 and upper <= 0:
        return upper
    lower, below = (bounds[place - 1], counts[place - 1]) if place else (0.0, 0.0)
    within = counts[place] - below
    return lower + (upper - lower) * ((rank - below) / within) if within > 0 else lower


def increase(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    """Return what was counted between two reads of one histogram, by upper bound.

    Where a count went back, its process has started anew in between: then all of ``after`` is new.
    """
    if before.keys() != after.keys() or any(after[bound] < count for bound, count in before.items()):
        return dict(after)
    return {bound: count - before[bound] for bound, count in after.items()}


def buckets_by_replica(samples: Iterable[MetricSample]) -> dict[tuple[str, str], dict[float, float]]:
    """Return the buckets of one family for each engine and replica, from samples of one read of each."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    for sample in samples:
        try:
            bound = float(sample.labels["le"])
        except (KeyError, ValueError):
            continue
        found.setdefault((sample.engine, sample.replica), {})[bound] = sample.value
    return found
