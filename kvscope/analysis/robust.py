"""Linear fits that a few wild values do not bend: of the typical value, and of quantiles."""

import dataclasses
from typing import Any

HUBER = 1.345
"""Residuals beyond this many standard deviations count linearly: 95 % efficient on normal noise (Huber)."""

_MAX_ROUNDS = 50
_CLOSE = 1e-8
_MAX_QUANTILE_ROUNDS = 300
_STILL = 1e-6
_TINY = 1e-4  # of the mean residual: below, residuals weigh alike
_MAD_TO_SIGMA = 1.4826  # of a normal distribution


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A fitted linear form: ``intercept + coefficients · features``."""

    intercept: float
    coefficients: Any  # numpy array, one a feature

    def __call__(self, features: Any) -> Any:
        """Return the predictions for rows of features."""
        return self.intercept + features @ self.coefficients


def fit_line(features: Any, target: Any, *, non_negative: bool, huber: float | None = HUBER) -> Line:
    """Fit ``target`` on the columns of ``features`` and an intercept.

    With ``huber`` the fit is repeated with weights min(1, huber × scale ÷ |residual|), where the scale is
    the median absolute residual, until it stands still: a server's slow first requests and the odd stall
    then weigh little, and the line is that of a typical request rather than of the mean one.
    ``non_negative`` keeps all coefficients and the intercept at zero or above (NNLS).
    """
    import numpy as np

    columns = np.column_stack([np.ones(len(target)), features])
    # columns differ by many orders of magnitude (1, tokens, tokens squared)
    unit = np.abs(columns).max(axis=0)
    unit[unit == 0] = 1.0
    scaled = columns / unit
    weights = np.ones(len(target))
    found = _solve(scaled, target, weights, non_negative=non_negative)
    for _ in range(_MAX_ROUNDS if huber else 0):
        residuals = np.abs(target - scaled @ found)
        scale = _MAD_TO_SIGMA * float(np.median(residuals))
        if scale <= _CLOSE * float(np.abs(target).max(initial=0.0)):
            break  # most rows are met exactly: there is no noise to measure the others by
        weights = np.minimum(1.0, (huber or 0.0) * scale / np.maximum(residuals, 1e-300))
        new = _solve(scaled, target, weights, non_negative=non_negative)
        still = np.abs(new - found).max() <= _STILL * np.abs(found).max(initial=1e-300)
        found = new
        if still:
            break
    found = found / unit
    return Line(float(found[0]), found[1:])


def fit_quantile(features: Any, target: Any, *, level: float) -> Line:
    """Fit the quantile ``level`` of ``target`` on the columns of ``features`` and an intercept.

    Minimises the pinball loss (Koenker and Bassett, Econometrica 46, 1978) by majorising it with parabolas
    (Hunter and Lange, Journal of Computational and Graphical Statistics 9, 2000): as good as the linear
    program to a thousandth, and quick enough for an agent that refits all day.
    """
    import numpy as np

    columns = np.column_stack([np.ones(len(target)), features])
    unit = np.abs(columns).max(axis=0)
    unit[unit == 0] = 1.0
    scaled = columns / unit
    found = np.linalg.lstsq(scaled, target, rcond=None)[0]
    residuals = target - scaled @ found
    smallest = _TINY * max(float(np.abs(residuals).mean()), _CLOSE)
    pull = (2.0 * level - 1.0) * scaled.sum(axis=0)
    for _ in range(_MAX_QUANTILE_ROUNDS):
        weighted = scaled / (smallest + np.abs(residuals))[:, None]
        new = np.linalg.lstsq(scaled.T @ weighted, target @ weighted + pull, rcond=None)[0]
        still = np.abs(new - found).max() <= _STILL * np.abs(found).max(initial=1e-300)
        found = new
        residuals = target - scaled @ found
        if still:
            break
    found = found / unit
    return Line(float(found[0]), found[1:])


def _solve(columns: Any, target: Any, weights: Any, *, non_negative: bool) -> Any:
    import numpy as np
    from scipy.optimize import nnls

    root = np.sqrt(weights)
    if non_negative:
        return nnls(columns * root[:, None], target * root)[0]
    return np.linalg.lstsq(columns * root[:, None], target * root, rcond=None)[0]
