"""Asymptotic confidence sequences: intervals that stay valid however often one looks.

Source of the formulas: Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas, "Time-uniform central limit theory
and asymptotic confidence sequences", arXiv:2103.06476 (2021; Annals of Statistics 52, 2024). The true
value lies in the interval at all looks together with probability 1 - alpha, once the first look has
enough units for the central limit theorem to hold: callers set a minimum of units, these functions
do not.
"""

import dataclasses
import math
from enum import StrEnum

from kvscope.stats.moments import Moments, RatioMoments


class Side(StrEnum):
    """Which ends an interval has."""

    BOTH = "both"
    LOWER = "lower"  # a lower bound alone: high is infinite
    UPPER = "upper"  # an upper bound alone: low is minus infinity


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate and the ends between which the true value lies; an end may be infinite."""

    estimate: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CannotTell:
    """Why there is no estimate; never to be read as a zero."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How an interval is made: the error allowed over all looks, its ends, where it is tightest.

    ``tightest_at`` is the number of units at which the interval is narrowest. It must be chosen before
    the data are seen; ten times too many or too few cost about a tenth in width.
    """

    alpha: float = 0.05
    side: Side = Side.BOTH
    tightest_at: float = 200.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must lie between 0 and 1, not {self.alpha}")
        if not self.tightest_at > 0:
            raise ValueError(f"tightest_at must be positive, not {self.tightest_at}")

    @property
    def rho_squared(self) -> float:
        """The mixture's parameter that makes the interval tightest at ``tightest_at`` units.

        arXiv:2103.06476v7, eq. 161 (an approximation of the exact Lambert form).
        """
        spent = -2 * math.log(self.alpha)
        return (spent + math.log(spent + 1)) / self.tightest_at


def half_width(n: float, plan: Plan) -> float:
    """Return the distance from the estimate to an end, in standard deviations of one unit.

    Two-sided: arXiv:2103.06476v7, eq. 9. One-sided: the half-normal mixture of the same process. With r
    the square root of ``rho_squared``, s = sqrt(n r² + 1), and x the sum of n standardised units times
    r / s: M = 2 exp(x²/2) Phi(x) / s is a martingale from 1, so it ever passes 1/alpha with probability
    alpha at most (Ville). As Phi(x) ≥ 1 - exp(-x²/2) / 2, it has passed where x²/2 ≥ log(1 + s/(2 alpha)).
    This is the one-sided normal mixture of Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform,
    nonparametric, nonasymptotic confidence sequences", Annals of Statistics 49 (2021).
    """
    growth = n * plan.rho_squared + 1
    root = math.sqrt(growth)
    odds = math.log(root / plan.alpha) if plan.side is Side.BOTH else math.log1p(root / (2 * plan.alpha))
    return math.sqrt(2 * growth * odds / (n * n * plan.rho_squared))


def interval(*, estimate: float, variance: float, n: float, plan: Plan) -> Interval:
    """Return the interval of an asymptotically linear estimate from ``n`` units.

    ``variance`` is that of one unit's part in the estimate: the estimate's own variance times ``n``.
    """
    width = math.sqrt(variance) * half_width(n, plan)
    return Interval(
        estimate=estimate,
        low=-math.inf if plan.side is Side.UPPER else estimate - width,
        high=math.inf if plan.side is Side.LOWER else estimate + width,
    )


def mean_interval(moments: Moments, plan: Plan) -> Interval | CannotTell:
    """Return the interval of a mean."""
    mean, variance = moments.mean, moments.variance
    if mean is None or variance is None:
        return CannotTell(reason=f"{moments.n} units are too few: there is no spread to measure")
    if not variance:
        return CannotTell(reason=f"all {moments.n} units have the same value: there is no spread to measure")
    return interval(estimate=mean, variance=variance, n=moments.n, plan=plan)


def paired_interval(differences: Moments, plan: Plan) -> Interval | CannotTell:
    """Return the interval of the mean of paired differences."""
    mean = differences.mean
    if mean and differences.variance == 0.0:
        # all pairs agree, and one that is still to come may show no difference
        variance = mean * mean / (differences.n + 1)
        return interval(estimate=mean, variance=variance, n=differences.n, plan=plan)
    return mean_interval(differences, plan)


def difference_interval(
    treatment: RatioMoments, baseline: RatioMoments, plan: Plan, *, factor: float = 1.0, share: bool = False
) -> Interval | CannotTell:
    """Return the interval of treatment - ``factor`` × baseline, each a ratio of sums over its units.

    With factor 1 + m it asks whether the treatment exceeds the baseline by more than the share m. Two
    floors keep small arms from claiming too much. ``share`` says that each request is 0 or 1: a variance
    is then at least that of a binomial with one success and one failure added (Agresti and Caffo, The
    American Statistician 54, 2000), so arms without a single failure are not certain. And the smaller
    arm's variance is at least that of both arms pooled: a small arm that has not met a rare long prompt
    yet looks better than it is. Simulated at shares of 10 and 90 % with values of which one in twenty is
    a hundred times the others, the second floor takes false verdicts from 30 % to under 1 %.
    """
    top, bottom = treatment.ratio, baseline.ratio
    top_spread, bottom_spread = treatment.ratio_variance, baseline.ratio_variance
    if top is None or bottom is None or top_spread is None or bottom_spread is None:
        return CannotTell(
            reason=f"the metric is known of {treatment.n} units of the treatment"
            f" and {baseline.n} of the baseline: at least 2 of each are needed"
        )
    if share:
        top_spread = max(top_spread, _smoothed_spread(treatment))
        bottom_spread = max(bottom_spread, _smoothed_spread(baseline))
    pooled = _pooled(top_spread, treatment.n, bottom_spread, baseline.n)
    if treatment.n < baseline.n:
        top_spread = max(top_spread, pooled)
    elif baseline.n < treatment.n:
        bottom_spread = max(bottom_spread, pooled)
    gap = top - factor * bottom
    if not top_spread and not bottom_spread:
        if not gap:
            return CannotTell(reason="all units of both arms have the same value")
        # one unit that is still to come may close the gap: a spread of gap² / (n + 1)
        top_spread, bottom_spread = gap * gap / (treatment.n + 1), gap * gap / (baseline.n + 1)
    n = treatment.n + baseline.n
    variance = top_spread / treatment.n + factor * factor * bottom_spread / baseline.n
    return interval(estimate=gap, variance=variance * n, n=n, plan=plan)


def _smoothed_spread(arm: RatioMoments) -> float:
    rate = (arm.top.sum + 1) / (arm.bottom.sum + 2)
    return rate * (1 - rate) * arm.n / arm.bottom.sum


def _pooled(first: float, first_n: int, second: float, second_n: int) -> float:
    return (first * (first_n - 1) + second * (second_n - 1)) / (first_n + second_n - 2)
