"""What an engine's histogram counted in a window: deltas of its buckets, over restarts, by rank."""

import math

import pytest

from kvscope.model.telemetry import MetricSample
from kvscope.pipeline.contracts import Batch
from kvscope.stats.histograms import histogram_quantile
from kvscope.store.counters import PROCESS_START
from kvscope.store.database import Store

NAME = "vllm:time_to_first_token_seconds"
BOUNDS = (0.1, 1.0, math.inf)


def read(at: float, *counts: float, replica: str = "0", **labels: str) -> list[MetricSample]:
    return [
        MetricSample(
            engine="e",
            replica=replica,
            name=f"{NAME}_bucket",
            labels={"le": str(bound).replace("inf", "+Inf"), **labels},
            at=at,
            value=count,
        )
        for bound, count in zip(BOUNDS, counts, strict=True)
    ]


def started(at: float, began_at: float) -> MetricSample:
    return MetricSample(engine="e", replica="", name=PROCESS_START, labels={}, at=at, value=began_at)


def counts(store: Store, since_at: float | None = None, until_at: float | None = None) -> list[list[float]]:
    rows = store.reader.histograms(NAME, since_at=since_at, until_at=until_at)
    return [[row.buckets[bound] for bound in BOUNDS] for row in rows]


@pytest.fixture
def restarted(store: Store) -> Store:
    """Four reads; after the third the engine began anew, and a bucket has passed its old count."""
    samples = [*read(10, 1, 2, 4), *read(20, 2, 6, 8), *read(30, 2, 8, 10), *read(40, 5, 6, 7)]
    store.batches.write([Batch(samples=samples)])
    return store


def test_a_window_is_what_was_read_last_before_it_to_what_was_read_last_in_it(restarted: Store) -> None:
    assert counts(restarted, since_at=15, until_at=35) == [[1, 6, 6]]
    assert counts(restarted, since_at=10, until_at=30) == [[1, 4, 4]]
    assert counts(restarted, since_at=35) == [[5, 6, 7]]
    assert counts(restarted) == [[7, 14, 17]]
    assert counts(restarted, since_at=50) == []


def test_quantiles_are_of_the_window_alone(restarted: Store) -> None:
    (row,) = restarted.reader.histograms(NAME, since_at=15, until_at=35)
    assert (row.engine, row.replica, row.first_at, row.last_at, row.observations) == ("e", "0", 10, 30, 6)
    # 1 of 6 is up to 0.1, all are up to 1: the third lies at 0.1 + 0.9 × 2/5
    assert histogram_quantile(row.buckets, 0.5) == pytest.approx(0.46)


def test_a_restart_after_which_all_counts_were_passed_is_told_by_the_process(store: Store) -> None:
    store.batches.write([Batch(samples=[*read(10, 1, 1, 1), *read(20, 5, 6, 7)])])
    assert counts(store, since_at=10) == [[4, 5, 6]]
    store.batches.write([Batch(samples=[started(10, 2.0), started(20, 12.0)])])
    assert counts(store, since_at=10) == [[5, 6, 7]]


def test_an_engine_that_began_within_the_window_has_counted_all_of_it_there(store: Store) -> None:
    store.batches.write([Batch(samples=read(20, 5, 6, 7))])
    assert counts(store, since_at=10) == []
    store.batches.write([Batch(samples=[started(20, 12.0)])])
    assert counts(store, since_at=10) == [[5, 6, 7]]
    assert counts(store, since_at=13) == []


def test_ranks_stay_apart_and_other_labels_add_up(store: Store) -> None:
    samples = [
        sample
        for at, times in ((10, 1), (20, 3))
        for sample in (
            *read(at, 1 * times, 2 * times, 3 * times, lora="a"),
            *read(at, 1 * times, 1 * times, 1 * times, lora="b"),
            *read(at, 7 * times, 8 * times, 9 * times, replica="1"),
        )
    ]
    store.batches.write([Batch(samples=samples)])
    assert counts(store, since_at=15) == [[4, 6, 8], [14, 16, 18]]
