"""Sample-ratio mismatch: units did not come to the arms in the shares that were planned."""

import dataclasses
import math
from collections.abc import Sequence

from kvscope.stats.sequential import CannotTell

MISMATCH_P = 0.001
"""Below this a comparison is not to be trusted: assignment or counting is broken."""

_LEAST_EXPECTED = 5.0  # the usual floor for the chi-square approximation


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RatioCheck:
    """The chi-square test of counts against planned shares."""

    p_value: float

    @property
    def mismatch(self) -> bool:
        """Whether the counts contradict the shares."""
        return self.p_value < MISMATCH_P


def check_ratio(counts: Sequence[int], shares: Sequence[float]) -> RatioCheck | CannotTell:
    """Test ``counts`` of units against ``shares``, which add up to 1."""
    total = sum(counts)
    expected = [total * share for share in shares]
    if min(expected) < _LEAST_EXPECTED:
        return CannotTell(
            reason=f"{total} units are too few to check the ratio of the arms"
            f" (at least {_LEAST_EXPECTED:g} must be expected in each)"
        )
    statistic = sum((count - wanted) ** 2 / wanted for count, wanted in zip(counts, expected, strict=True))
    return RatioCheck(p_value=_chi_square_tail(statistic, len(counts) - 1))


def _chi_square_tail(statistic: float, freedom: int) -> float:
    if freedom == 1:
        return math.erfc(math.sqrt(statistic / 2))
    from scipy.stats import chi2

    return float(chi2.sf(statistic, freedom))
