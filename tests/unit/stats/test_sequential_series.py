"""False positives on series whose neighbours resemble each other: a real server's TTFT, and drift."""

import csv
import math
from pathlib import Path

import numpy as np
from numpy.random import default_rng

from kvscope.stats.moments import Moments, RatioMoments
from kvscope.stats.sequential import Interval, Plan, difference_interval, paired_interval

_DATA = Path(__file__).parents[2] / "data" / "latency" / "real_prompts.csv"


def _differs(first: np.ndarray, second: np.ndarray) -> bool:
    found = difference_interval(
        RatioMoments.of((value, 1.0) for value in first),
        RatioMoments.of((value, 1.0) for value in second),
        Plan(alpha=0.05, tightest_at=200),
    )
    return isinstance(found, Interval) and not found.low <= 0 <= found.high


def _differs_by_t_test(first: np.ndarray, second: np.ndarray) -> bool:
    error = math.sqrt(first.var(ddof=1) / len(first) + second.var(ddof=1) / len(second))
    return bool(abs(first.mean() - second.mean()) > 1.96 * error)


def test_equal_arms_on_a_real_ttft_series() -> None:
    """Random arms on the recorded times to first token, looked at 37 times: 5 % of runs at most differ."""
    with _DATA.open() as file:
        series = np.log([float(row["ttft_seconds"]) for row in csv.DictReader(file)])
    rng = default_rng(2)
    runs, false, false_by_t_test = 100, 0, 0
    for _ in range(runs):
        treated = rng.random(len(series)) < 0.5
        arms = [(series[:n][treated[:n]], series[:n][~treated[:n]]) for n in range(40, len(series) + 1, 5)]
        false += any(_differs(*pair) for pair in arms)
        false_by_t_test += any(_differs_by_t_test(*pair) for pair in arms)
    assert false / runs <= 0.05
    assert false_by_t_test / runs > 0.10


def test_paired_time_slices_of_a_drifting_server() -> None:
    """Log TTFT as a slow random walk around its mean, arms in random order within pairs of slices."""
    rng = default_rng(3)
    runs, slices, length = 150, 160, 10
    false = 0
    for _ in range(runs):
        level = np.zeros(slices * length)
        steps = rng.normal(0, 0.1, len(level))
        for place in range(1, len(level)):
            level[place] = 0.98 * level[place - 1] + steps[place]
        means = (level + rng.normal(0, 0.2, len(level))).reshape(slices, length).mean(axis=1)
        signs = np.where(rng.random(slices // 2) < 0.5, 1.0, -1.0)
        differences = signs * (means[0::2] - means[1::2])
        for pairs in range(20, slices // 2 + 1, 2):
            found = paired_interval(Moments.of(differences[:pairs]), Plan(alpha=0.05, tightest_at=200))
            if isinstance(found, Interval) and not found.low <= 0 <= found.high:
                false += 1
                break
    assert false / runs <= 0.05
