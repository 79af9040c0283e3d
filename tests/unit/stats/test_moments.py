import pytest

from kvscope.stats.moments import Moments, RatioMoments


def test_moments_of_known_values() -> None:
    moments = Moments.of([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert (moments.n, moments.sum, moments.sum_squares) == (8, 40.0, 232.0)
    assert moments.mean == 5.0
    assert moments.variance == pytest.approx(32 / 7)


def test_no_values_have_no_mean_and_one_has_no_spread() -> None:
    assert Moments().mean is None
    assert Moments.of([3.0]).mean == 3.0
    assert Moments.of([3.0]).variance is None


def test_the_variance_of_equal_values_is_never_negative() -> None:
    assert Moments.of([0.1] * 1000).variance == pytest.approx(0.0, abs=1e-15)
    assert (Moments.of([0.1] * 1000).variance or 0.0) >= 0.0


def test_the_ratio_is_over_requests_and_its_variance_over_units() -> None:
    # three sessions: tokens and requests; ratio 60 / 6
    moments = RatioMoments.of([(10.0, 1.0), (20.0, 2.0), (30.0, 3.0)])
    assert moments.n == 3
    assert moments.ratio == 10.0
    # every session has the same value per request: no spread, though the sums differ
    assert moments.ratio_variance == pytest.approx(0.0, abs=1e-12)


def test_the_ratio_variance_equals_gbstats() -> None:
    # gbstats 0.8.0: RatioStatistic.variance / n of these two arms
    treatment = RatioMoments(
        top=Moments(n=60, sum=4800.0, sum_squares=450_000.0),
        bottom=Moments(n=60, sum=240.0, sum_squares=1100.0),
        sum_products=20_000.0,
    )
    baseline = RatioMoments(
        top=Moments(n=50, sum=5000.0, sum_squares=560_000.0),
        bottom=Moments(n=50, sum=200.0, sum_squares=900.0),
        sum_products=21_000.0,
    )
    assert (treatment.ratio, baseline.ratio) == (20.0, 25.0)
    assert (treatment.ratio_variance or 0) / 60 == pytest.approx(1.5889830508474576, rel=1e-12)
    assert (baseline.ratio_variance or 0) / 50 == pytest.approx(1.8494897959183674, rel=1e-12)


def test_a_ratio_without_denominator_cannot_be_told() -> None:
    assert RatioMoments().ratio is None
    assert RatioMoments.of([(0.0, 0.0), (0.0, 0.0)]).ratio_variance is None
