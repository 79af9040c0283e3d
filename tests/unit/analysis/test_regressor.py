import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvscope.analysis.regressor import NonNegativeRegressor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scikit-learn's checks import optional libraries
    from sklearn.utils.estimator_checks import parametrize_with_checks


@pytest.mark.filterwarnings("default")
@parametrize_with_checks([NonNegativeRegressor(), NonNegativeRegressor(huber=None)])  # type: ignore[untyped-decorator]
def test_it_is_a_scikit_learn_estimator(estimator: Any, check: Callable[[Any], None]) -> None:
    assert hasattr(estimator, "get_params")
    check(estimator)


def test_costs_are_never_negative() -> None:
    rng = np.random.default_rng(1)
    features = rng.uniform(0, 10, (100, 2))
    seconds = 1.0 + 2.0 * features[:, 0] - 0.5 * features[:, 1] + rng.normal(0, 0.1, 100)
    fitted = NonNegativeRegressor().fit(features, seconds)
    assert fitted.coef_[0] == pytest.approx(1.8, abs=0.2)  # the negative slope of the other leans on it
    assert fitted.coef_[1] == 0.0
    assert fitted.intercept_ >= 0


def test_wild_values_weigh_little() -> None:
    features = np.arange(50.0)[:, None]
    seconds = 0.5 + 0.1 * features[:, 0] + np.sin(features[:, 0]) / 100
    seconds[:5] += 100.0
    robust, plain = NonNegativeRegressor(), NonNegativeRegressor(huber=None)
    assert robust.fit(features, seconds).coef_[0] == pytest.approx(0.1, abs=0.005)
    assert plain.fit(features, seconds).coef_[0] < 0.05
