"""The latency models' fit as a scikit-learn estimator, for notebooks and for scikit-learn's own checks."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from typing_extensions import override

from kvscope.analysis.robust import HUBER, fit_line


class NonNegativeRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Robust linear regression whose coefficients and intercept are not negative.

    After ``fit``: ``coef_`` and ``intercept_``, in units of the target per unit of the feature. A cost
    cannot be negative, so a model of costs that says so has only followed noise.
    """

    def __init__(self, huber: float | None = HUBER) -> None:
        self.huber = huber

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803 - scikit-learn's own names
        """Fit to rows of features ``X`` and targets ``y``."""
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)  # noqa: N806 - as above
        line = fit_line(X, y, non_negative=True, huber=self.huber)
        self.coef_, self.intercept_ = line.coefficients, line.intercept
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803 - as above
        """Return the predictions for rows of features ``X``."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)  # noqa: N806 - as above
        return self.intercept_ + X @ self.coef_

    @override
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # data with negative slopes cannot be followed, and that is the point
        tags.regressor_tags.poor_score = True
        return tags
