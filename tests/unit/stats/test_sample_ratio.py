import pytest

from kvscope.stats.quantiles import quantile
from kvscope.stats.sequential import CannotTell
from kvscope.stats.srm import RatioCheck, check_ratio


def test_even_counts_are_no_mismatch() -> None:
    check = check_ratio([500, 500], [0.5, 0.5])
    assert check == RatioCheck(p_value=1.0)
    assert not check.mismatch


def test_the_p_value_is_that_of_the_chi_square_table() -> None:
    # (552 - 500)² / 500 · 2 = 10.816, beside the table's 10.828 for p = 0.001 at one degree of freedom
    check = check_ratio([552, 448], [0.5, 0.5])
    assert isinstance(check, RatioCheck)
    assert check.p_value == pytest.approx(0.0010064, abs=1e-6)
    assert not check.mismatch
    beyond = check_ratio([553, 447], [0.5, 0.5])
    assert isinstance(beyond, RatioCheck)
    assert beyond.mismatch


def test_planned_shares_need_not_be_even() -> None:
    check = check_ratio([100, 900], [0.1, 0.9])
    assert isinstance(check, RatioCheck)
    assert check.p_value == 1.0


def test_three_arms() -> None:
    # two degrees of freedom: the tail is exp(-x / 2); x = (100 + 0 + 100) / 100 = 2
    check = check_ratio([110, 100, 90], [1 / 3, 1 / 3, 1 / 3])
    assert isinstance(check, RatioCheck)
    assert check.p_value == pytest.approx(0.36787944, abs=1e-8)


def test_few_units_cannot_be_checked() -> None:
    check = check_ratio([8, 1], [0.5, 0.5])
    assert isinstance(check, CannotTell)
    assert "9 units are too few" in check.reason


def test_quantiles() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([float(n) for n in range(101)], 0.95) == 95.0
