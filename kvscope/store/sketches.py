"""Quantile sketches that merge: DDSketch (Masson, Rim, Lee; VLDB 2019) as counts by bin.

A quantile of a sketch is within one percent of a value of that rank. Bins of two sketches add up to those of
both together, so that merging loses nothing.
"""

from collections.abc import Iterable, Mapping

from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore

ACCURACY = 0.01
"""Largest relative error of a quantile."""
_ZERO = "0s"
_MAPPING = LogarithmicMapping(ACCURACY)

Bins = dict[str, int]
"""Bin of the logarithmic mapping, as text for JSON, to how many values fell into it."""


def add(bins: Bins, value: float) -> None:
    """Count ``value``, in seconds; none is below zero, and what says so counts as zero."""
    small = value <= _MAPPING.min_possible
    bin_of = _ZERO if small else str(_MAPPING.key(min(value, _MAPPING.max_possible)))
    bins[bin_of] = bins.get(bin_of, 0) + 1


def merge(into: Bins, bins: Mapping[str, int]) -> None:
    """Add what another sketch has counted."""
    for bin_of, count in bins.items():
        into[bin_of] = into.get(bin_of, 0) + count


def quantiles(bins: Mapping[str, int], wanted: Iterable[float]) -> list[float]:
    """Return the values at the ranks ``wanted`` (0..1); raises ``ValueError`` where nothing was counted."""
    if not bins:
        raise ValueError("an empty sketch has no quantiles")
    store = DenseStore()
    for bin_of, count in bins.items():
        if bin_of != _ZERO:
            store.add(int(bin_of), count)
    sketch = BaseDDSketch(_MAPPING, store, DenseStore(), bins.get(_ZERO, 0))
    return [sketch.get_quantile_value(rank) or 0.0 for rank in wanted]
