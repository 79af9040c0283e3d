"""Engines' counters since their last restart."""

import pytest

from kvscope.model.telemetry import MetricSample
from kvscope.model.views import EngineCounters
from kvscope.pipeline.contracts import Batch
from kvscope.store.counters import EXTERNAL_HITS, HITS, PROCESS_START, QUERIES
from kvscope.store.database import Store

ENGINE = "http://e:8000"


def samples(
    name: str, points: dict[float, float], engine: str = ENGINE, replica: str = "0"
) -> list[MetricSample]:
    return [
        MetricSample(engine=engine, replica=replica, name=name, labels={}, at=at, value=value)
        for at, value in points.items()
    ]


def scrapes(points: dict[float, float], engine: str = ENGINE, replica: str = "0") -> list[MetricSample]:
    """Scrapes in which a quarter of the queried tokens are hits."""
    hits = {at: value / 4 for at, value in points.items()}
    return samples(QUERIES, points, engine, replica) + samples(HITS, hits, engine, replica)


def started(at: float, scraped_at: float) -> list[MetricSample]:
    return samples(PROCESS_START, {scraped_at: at}, replica="")


def counted(
    store: Store, *batches: list[MetricSample], since_at: float | None = None
) -> list[EngineCounters]:
    store.batches.write([Batch(samples=batch) for batch in batches])
    return store.reader.counters(since_at=since_at)


def grown(first_at: float, last_at: float, queries: float, replica: str = "0") -> EngineCounters:
    return EngineCounters(
        engine=ENGINE,
        replica=replica,
        first_at=first_at,
        last_at=last_at,
        queries=queries,
        hits=queries / 4,
        external_hits=0.0,
    )


def test_growth_is_from_the_first_sample(store: Store) -> None:
    assert counted(store, scrapes({10.0: 100.0, 11.0: 100.0, 12.0: 500.0})) == [grown(10.0, 12.0, 400.0)]


def test_one_sample_tells_no_growth(store: Store) -> None:
    assert counted(store, scrapes({10.0: 100.0})) == [grown(10.0, 10.0, 0.0)]


def test_after_a_fall_growth_is_from_the_first_sample_then(store: Store) -> None:
    falls = {10.0: 100.0, 11.0: 20.0, 12.0: 60.0, 13.0: 8.0, 14.0: 48.0}
    assert counted(store, scrapes(falls)) == [grown(13.0, 14.0, 40.0)]


def test_a_start_before_the_first_sample_hides_what_was_before(store: Store) -> None:
    """The engine ran before kvscope did: what it counted until then is not known to us."""
    assert counted(store, scrapes({10.0: 100.0, 12.0: 500.0}), started(5.0, 10.0)) == [
        grown(10.0, 12.0, 400.0)
    ]


def test_a_start_after_the_first_sample_is_counted_from_zero(store: Store) -> None:
    points = {10.0: 100.0, 12.0: 40.0, 13.0: 80.0}
    assert counted(store, scrapes(points), started(11.0, 12.0)) == [grown(11.0, 13.0, 80.0)]


def test_a_restart_that_no_fall_shows_is_told_by_the_start(store: Store) -> None:
    points = {10.0: 100.0, 12.0: 400.0, 13.0: 480.0}
    assert counted(store, scrapes(points), started(5.0, 10.0), started(11.0, 12.0)) == [
        grown(11.0, 13.0, 480.0)
    ]


def test_a_start_seen_before_any_counter_is_counted_from_zero(store: Store) -> None:
    """The first scrape was of an earlier process, which this one replaced."""
    other = samples("vllm:num_requests_running", {1.0: 0.0})
    assert counted(store, other, scrapes({12.0: 40.0}), started(11.0, 12.0)) == [grown(11.0, 12.0, 40.0)]


def test_a_fall_after_the_known_start_is_a_restart_of_its_own(store: Store) -> None:
    points = {10.0: 100.0, 12.0: 40.0, 13.0: 80.0, 14.0: 20.0, 15.0: 60.0}
    assert counted(store, scrapes(points), started(11.0, 12.0)) == [grown(14.0, 15.0, 40.0)]


def test_a_start_after_the_last_sample_leaves_nothing_to_tell(store: Store) -> None:
    assert counted(store, scrapes({10.0: 100.0}), started(11.0, 11.5)) == []


@pytest.mark.parametrize(
    ("since_at", "expected"),
    [(11.0, grown(12.0, 14.0, 400.0)), (13.0, grown(14.0, 14.0, 0.0)), (10.5, grown(10.5, 14.0, 500.0))],
)
def test_growth_since_a_time(store: Store, since_at: float, expected: EngineCounters) -> None:
    points = {10.0: 900.0, 12.0: 100.0, 14.0: 500.0}
    assert counted(store, scrapes(points), started(10.5, 12.0), since_at=since_at) == [expected]
    assert store.reader.counters(since_at=99.0) == []


def test_replicas_and_engines_are_apart_and_external_hits_are_counted(store: Store) -> None:
    found = counted(
        store,
        scrapes({1.0: 0.0, 2.0: 4.0}),
        scrapes({1.0: 0.0, 3.0: 8.0}, replica="1"),
        scrapes({1.0: 0.0, 2.0: 16.0}, engine="http://a:1"),
        samples(EXTERNAL_HITS, {1.0: 1.0, 2.0: 3.0}),
    )
    assert [(row.engine, row.replica, row.queries, row.external_hits) for row in found] == [
        ("http://a:1", "0", 16.0, 0.0),
        (ENGINE, "0", 4.0, 2.0),
        (ENGINE, "1", 8.0, 0.0),
    ]


def test_latest_samples_has_one_of_each_series(store: Store) -> None:
    first = samples("vllm:cache_config_info", {1.0: 1.0, 2.0: 1.0})
    second = [
        MetricSample(
            engine=ENGINE,
            replica="0",
            name="vllm:cache_config_info",
            labels={"block_size": "16"},
            at=1.5,
            value=1.0,
        )
    ]
    store.batches.write([Batch(samples=[*first, *second, *samples("other", {9.0: 9.0})])])
    found = store.reader.latest_samples("vllm:cache_config_info")
    assert sorted(found, key=lambda one: one.at) == [*second, first[1]]
    assert store.reader.latest_samples("nothing") == []
