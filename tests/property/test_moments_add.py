from hypothesis import given
from hypothesis import strategies as st

from kvscope.stats.moments import Moments, RatioMoments

# whole numbers: their sums are exact, so that equality is equality
_VALUES = st.integers(-1000, 1000).map(float)
_PAIRS = st.tuples(_VALUES, _VALUES)


@given(st.lists(_VALUES), st.lists(_VALUES))
def test_moments_that_are_added_equal_those_of_the_data(first: list[float], second: list[float]) -> None:
    assert Moments.of(first) + Moments.of(second) == Moments.of(first + second)


@given(st.lists(_PAIRS), st.lists(_PAIRS))
def test_ratio_moments_that_are_added_equal_those_of_the_data(
    first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> None:
    assert RatioMoments.of(first) + RatioMoments.of(second) == RatioMoments.of(first + second)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2))
def test_a_variance_is_never_negative(values: list[float]) -> None:
    variance = Moments.of(values).variance
    assert variance is not None
    assert variance >= 0
