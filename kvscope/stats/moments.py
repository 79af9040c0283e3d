"""Sufficient statistics that add: windows, units and restarts merge without the data behind them."""

import dataclasses
import math
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Count, sum and sum of squares of values; ``a + b`` is what the values of both give."""

    n: int = 0
    sum: float = 0.0
    sum_squares: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> "Moments":
        """Return the moments of ``values``."""
        kept = [float(value) for value in values]
        return cls(n=len(kept), sum=math.fsum(kept), sum_squares=math.fsum(v * v for v in kept))

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            n=self.n + other.n, sum=self.sum + other.sum, sum_squares=self.sum_squares + other.sum_squares
        )

    @property
    def mean(self) -> float | None:
        """The mean, or None of no values."""
        return self.sum / self.n if self.n else None

    @property
    def variance(self) -> float | None:
        """The unbiased variance (divisor n - 1), or None of fewer than two values."""
        if self.n < 2:  # noqa: PLR2004 - one value has no spread
            return None
        return max(0.0, (self.sum_squares - self.sum * self.sum / self.n) / (self.n - 1))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RatioMoments:
    """Moments of units that each hold a numerator and a denominator, with their cross term.

    The ratio of the sums is a mean over requests; its variance is taken over units (the delta method),
    so requests of one session, which resemble each other, do not count as independent.
    """

    top: Moments = Moments()
    bottom: Moments = Moments()
    sum_products: float = 0.0

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> "RatioMoments":
        """Return the moments of (numerator, denominator) pairs, one a unit."""
        kept = list(pairs)
        return cls(
            top=Moments.of(top for top, _ in kept),
            bottom=Moments.of(bottom for _, bottom in kept),
            sum_products=math.fsum(top * bottom for top, bottom in kept),
        )

    def __add__(self, other: "RatioMoments") -> "RatioMoments":
        return RatioMoments(
            top=self.top + other.top,
            bottom=self.bottom + other.bottom,
            sum_products=self.sum_products + other.sum_products,
        )

    @property
    def n(self) -> int:
        """The number of units."""
        return self.top.n

    @property
    def ratio(self) -> float | None:
        """Sum of numerators ÷ sum of denominators, or None where the latter is zero."""
        return self.top.sum / self.bottom.sum if self.bottom.sum else None

    @property
    def ratio_variance(self) -> float | None:
        """The variance of one unit's part in ``ratio``: divide it by ``n`` for that of the ratio itself.

        Delta method: var(top - ratio * bottom) / mean(bottom)². None of fewer than two units.
        """
        ratio, top, bottom = self.ratio, self.top.variance, self.bottom.variance
        if ratio is None or top is None or bottom is None:
            return None
        covariance = (self.sum_products - self.top.sum * self.bottom.sum / self.n) / (self.n - 1)
        spread = top - 2 * ratio * covariance + ratio * ratio * bottom
        return max(0.0, spread) / (self.bottom.sum / self.n) ** 2
