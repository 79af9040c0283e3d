"""The confidence sequences: formula, agreement with gbstats, and coverage under forty looks."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator, default_rng

from kvscope.stats.moments import Moments, RatioMoments
from kvscope.stats.sequential import (
    CannotTell,
    Interval,
    Plan,
    Side,
    difference_interval,
    half_width,
    interval,
    mean_interval,
    paired_interval,
)

Draw = Callable[[Generator, int], tuple[np.ndarray, np.ndarray]]


def test_the_two_sided_width_by_hand() -> None:
    # r² = (5.991465 + ln 6.991465) / 100 = 0.0793616; 100 r² + 1 = 8.936155, its root 2.989340;
    # ln(2.989340 / 0.05) = 4.090785; sqrt(2 · 8.936155 · 4.090785 / (10,000 · 0.0793616)) = 0.303521
    plan = Plan(alpha=0.05, tightest_at=100)
    assert plan.rho_squared == pytest.approx(0.0793616, abs=1e-7)
    assert half_width(100, plan) == pytest.approx(0.303521, abs=1e-6)


def test_the_one_sided_width_is_where_the_mixture_has_passed() -> None:
    plan = Plan(alpha=0.02, side=Side.LOWER, tightest_at=150)
    for n in (10, 100, 5000):
        growth = n * plan.rho_squared + 1
        x = half_width(n, plan) * n * math.sqrt(plan.rho_squared / growth)
        normal = 0.5 * math.erfc(-x / math.sqrt(2))
        mixture = 2 * math.exp(x * x / 2) * normal / math.sqrt(growth)
        assert mixture >= 1 / plan.alpha
        assert mixture < 1.25 / plan.alpha  # and not much later than it must be
        assert half_width(n, plan) < half_width(n, Plan(alpha=0.02, tightest_at=150))


@pytest.mark.parametrize(
    ("alpha", "tightest_at", "low", "high"),
    [
        (0.05, 200, 0.06310605799443317, 0.43689394200556686),
        (0.05, 5000, -0.05355998047662269, 0.5535599804766227),
        (0.01, 500, 0.026427196281758436, 0.47357280371824156),
    ],
)
def test_the_interval_equals_gbstats(alpha: float, tightest_at: float, low: float, high: float) -> None:
    # gbstats 0.8.0, SequentialTwoSidedTTest, absolute difference of these two means
    first = Moments(n=100, sum=50.0, sum_squares=40.0)
    second = Moments(n=120, sum=90.0, sum_squares=100.0)
    variance = (first.variance or 0) / 100 + (second.variance or 0) / 120
    found = interval(
        estimate=(second.mean or 0) - (first.mean or 0),
        variance=variance * 220,
        n=220,
        plan=Plan(alpha=alpha, tightest_at=tightest_at),
    )
    assert found.low == pytest.approx(low, rel=1e-12)
    assert found.high == pytest.approx(high, rel=1e-12)


def test_the_difference_of_ratios_equals_gbstats() -> None:
    # gbstats 0.8.0, the same test on two RatioStatistics; the larger arm has the larger spread here
    baseline = RatioMoments(
        top=Moments(n=50, sum=5000.0, sum_squares=560_000.0),
        bottom=Moments(n=50, sum=200.0, sum_squares=900.0),
        sum_products=21_000.0,
    )
    treatment = RatioMoments(
        top=Moments(n=60, sum=4800.0, sum_squares=450_000.0),
        bottom=Moments(n=60, sum=240.0, sum_squares=1100.0),
        sum_products=20_000.0,
    )
    found = difference_interval(treatment, baseline, Plan(alpha=0.05, tightest_at=200))
    assert isinstance(found, Interval)
    assert found.estimate == -5.0
    # wider by what the floor for the smaller arm adds, and no more
    assert found.low == pytest.approx(-10.69393108094027, rel=5e-3)
    assert found.high == pytest.approx(0.6939310809402706, rel=5e-2)
    assert found.low <= -10.69393108094027


def test_what_cannot_be_told_is_not_a_zero() -> None:
    plan = Plan()
    nothing, one = RatioMoments(), RatioMoments.of([(1.0, 1.0)])
    assert isinstance(difference_interval(nothing, one, plan), CannotTell)
    assert isinstance(mean_interval(Moments.of([1.0]), plan), CannotTell)
    assert isinstance(mean_interval(Moments.of([1.0, 1.0, 1.0]), plan), CannotTell)
    same = RatioMoments.of([(16.0, 1.0)] * 30)
    answer = difference_interval(same, same, plan)
    assert isinstance(answer, CannotTell)
    assert answer.reason == "all units of both arms have the same value"


def test_arms_without_any_spread_differ_once_there_are_enough_units() -> None:
    def of(value: float, n: int) -> RatioMoments:
        return RatioMoments.of([(value, 1.0)] * n)

    few = difference_interval(of(32.0, 3), of(700.0, 3), Plan())
    many = difference_interval(of(32.0, 20), of(700.0, 20), Plan())
    assert isinstance(few, Interval)
    assert isinstance(many, Interval)
    assert few.high > 0 > many.high
    pairs = paired_interval(Moments.of([-5.0] * 20), Plan())
    assert isinstance(pairs, Interval)
    assert pairs.low < -5.0 < pairs.high < 0


def test_arms_without_a_failure_are_not_certain_and_total_failure_is_seen() -> None:
    plan = Plan(alpha=0.05 / 3, side=Side.LOWER)

    def failing(failed: int, n: int) -> RatioMoments:
        return RatioMoments.of([(float(place < failed), 1.0) for place in range(n)])

    none = difference_interval(failing(0, 20), failing(0, 20), plan, share=True)
    every = difference_interval(failing(12, 12), failing(0, 12), plan, share=True)
    one = difference_interval(failing(1, 20), failing(0, 20), plan, share=True)
    assert isinstance(none, Interval)
    assert isinstance(every, Interval)
    assert isinstance(one, Interval)
    assert none.low < 0
    assert every.low > 0.01
    assert one.low < 0


def _prefix(top: np.ndarray, bottom: np.ndarray, n: int) -> RatioMoments:
    def of(values: np.ndarray) -> Moments:
        return Moments(n=n, sum=float(values.sum()), sum_squares=float((values * values).sum()))

    return RatioMoments(
        top=of(top[:n]), bottom=of(bottom[:n]), sum_products=float((top[:n] * bottom[:n]).sum())
    )


def _lognormal(rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.lognormal(0, 1, n), np.ones(n)


def _sessions(rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums over sessions of one to many requests that resemble each other."""
    sizes = rng.geometric(0.2, n)
    levels = np.repeat(rng.normal(0, 0.5, n), sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return np.add.reduceat(rng.lognormal(levels, 0.7), starts), sizes.astype(float)


def _rare_and_long(rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.where(rng.random(n) < 0.05, 5000.0, 50.0) + rng.random(n), np.ones(n)


def _failures(rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return (rng.random(n) < 0.02).astype(float), np.ones(n)


@pytest.mark.parametrize("draw", [_lognormal, _sessions, _rare_and_long, _failures])
@pytest.mark.parametrize("ratio", [1, 9])
def test_equal_arms_looked_at_forty_times_differ_no_more_often_than_alpha(draw: Draw, ratio: int) -> None:
    rng = default_rng(20_261_129)
    looks = np.unique(np.geomspace(20, 600, 40).astype(int))
    plan = Plan(alpha=0.05, tightest_at=200)
    runs, false = 150, 0
    for _ in range(runs):
        treatment, baseline = draw(rng, int(looks[-1])), draw(rng, int(looks[-1]) * ratio)
        for n in looks:
            found = difference_interval(
                _prefix(*treatment, int(n)),
                _prefix(*baseline, int(n) * ratio),
                plan,
                share=draw is _failures,
            )
            if isinstance(found, Interval) and not found.low <= 0 <= found.high:
                false += 1
                break
    assert false <= 0.05 * runs


def test_a_fixed_size_test_looked_at_forty_times_does_not_hold_alpha() -> None:
    """What the sequences are for: the same data, looks and level, with the textbook interval."""
    rng = default_rng(20_261_129)
    looks = np.unique(np.geomspace(20, 600, 40).astype(int))
    false = 0
    for _ in range(150):
        difference = rng.lognormal(0, 1, 600) - rng.lognormal(0, 1, 600)
        means = [difference[:n].mean() / (difference[:n].std(ddof=1) / math.sqrt(n)) for n in looks]
        false += max(map(abs, means)) > 1.96
    assert false / 150 > 0.15


def test_a_real_effect_is_found() -> None:
    rng = default_rng(5)
    found = 0
    for _ in range(60):
        baseline = rng.lognormal(0.0, 0.5, 200)
        treatment = rng.lognormal(-0.5, 0.5, 200)  # 39 % less
        answer = difference_interval(
            RatioMoments.of((value, 1.0) for value in treatment),
            RatioMoments.of((value, 1.0) for value in baseline),
            Plan(alpha=0.05, tightest_at=200),
        )
        found += isinstance(answer, Interval) and answer.high < 0
    assert found >= 58


def test_a_guardrail_at_its_margin_is_breached_no_more_often_than_its_part_of_alpha() -> None:
    rng = default_rng(11)
    plan = Plan(alpha=0.05 / 3, side=Side.LOWER, tightest_at=200)
    runs, breached = 300, 0
    for _ in range(runs):
        baseline, treatment = rng.lognormal(0, 0.8, 300), 1.1 * rng.lognormal(0, 0.8, 300)
        for n in range(10, 300, 8):
            found = difference_interval(
                _prefix(treatment, np.ones(300), n), _prefix(baseline, np.ones(300), n), plan, factor=1.1
            )
            if isinstance(found, Interval) and found.low > 0:
                breached += 1
                break
    assert breached / runs <= 0.05 / 3


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1])
def test_a_plan_without_a_level_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha must lie between 0 and 1"):
        Plan(alpha=alpha)


def test_a_plan_that_is_tightest_at_no_units_is_refused() -> None:
    with pytest.raises(ValueError, match="tightest_at must be positive"):
        Plan(tightest_at=0)
