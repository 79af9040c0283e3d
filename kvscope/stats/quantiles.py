"""Quantiles of values that are at hand."""

from collections.abc import Sequence


def quantile(values: Sequence[float], q: float) -> float | None:
    """Return the ``q`` quantile by linear interpolation between order statistics; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
