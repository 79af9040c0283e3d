"""What is old goes; what sums, counters and running experiments need stays."""

import dataclasses
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from kvscope.model.advice import Arm, Experiment, ExperimentState, Look, Transition, Verdict
from kvscope.model.request import Miss, MissCause, RequestPart, Source, Status
from kvscope.model.telemetry import MetricSample, Span
from kvscope.pipeline.contracts import Batch
from kvscope.reports.sums import engine_sums
from kvscope.store import schema
from kvscope.store.counters import HITS, PROCESS_START, QUERIES
from kvscope.store.database import Store, open_store
from kvscope.store.retention import Pruned, Retention

ENGINE = "http://e:8000"


def request(number: int, at: float, **values: Any) -> RequestPart:
    defaults = {"arrived_at": at, "engine": ENGINE, "cached_tokens": 10, "prompt_tokens": 20}
    return RequestPart(request_id=f"r{number}", source=Source.SPAN, values=defaults | values)


def span(number: int, at: float, **attributes: Any) -> Span:
    return Span(
        trace_id="t",
        span_id=f"{number:016x}",
        parent_span_id=None,
        name="llm_request",
        service=None,
        start_at=at,
        end_at=at + 1.0,
        attributes=attributes,
        resource={},
    )


def sample(name: str, at: float, value: float, engine: str = ENGINE, replica: str = "0") -> MetricSample:
    return MetricSample(engine=engine, replica=replica, name=name, labels={}, at=at, value=value)


def scrape(at: float, tokens: float, started_at: float, engine: str = ENGINE) -> list[MetricSample]:
    return [
        sample(QUERIES, at, tokens * 2, engine),
        sample(HITS, at, tokens, engine),
        sample(PROCESS_START, at, started_at, engine, ""),
        sample("vllm:num_requests_running", at, 0.0, engine),
    ]


def ids(store: Store) -> list[str]:
    return [record.request_id for record in store.reader.requests()]


def sample_times(store: Store) -> list[float]:
    with store.engines.reading() as connection:
        return sorted(set(connection.execute(select(schema.metric_samples.c.at)).scalars()))


@pytest.fixture
def traffic(store: Store) -> Store:
    """Twenty seconds with a request, span, miss and scrape each, of an engine known from its start."""
    for number in range(20):
        at = 100.0 + number
        store.batches.write(
            [
                Batch(
                    parts=[request(number, at)],
                    spans=[span(number, at)],
                    misses=[Miss(request_id=f"r{number}", cause=MissCause.COLD, tokens=10)],
                    samples=scrape(at + 0.5, 10.0 * (number + 1), 99.5),
                )
            ]
        )
    store.batches.write([Batch(samples=scrape(90.0, 5_000.0, 1.0))])
    return store


def test_what_is_older_goes_and_the_rest_stays(traffic: Store) -> None:
    found = Retention(traffic.engines, rows=3).prune(110.0)
    assert (found.requests, found.misses, found.spans) == (10, 10, 10)
    assert ids(traffic) == [f"r{number}" for number in range(10, 20)]
    assert traffic.reader.span_count() == 10
    assert [(row.tokens, row.requests) for row in traffic.reader.misses()] == [(100, 10)]
    # one sample from before the engine's start, the first from then on, and all of the young
    assert sample_times(traffic) == [90.0, 100.5, *(110.5 + number for number in range(10))]


def test_what_is_pruned_again_changes_nothing(traffic: Store) -> None:
    traffic.retention.prune(110.0)
    before = (ids(traffic), sample_times(traffic), traffic.reader.counters())
    again = traffic.retention.prune(110.0)
    assert (again.requests, again.misses, again.spans, again.samples) == (0, 0, 0, 0)
    assert (ids(traffic), sample_times(traffic), traffic.reader.counters()) == before


def test_sums_agree_before_and_after(traffic: Store) -> None:
    (before,) = engine_sums(traffic)
    assert (before.agree, before.counter_tokens, before.first_at) == (True, 200, 99.5)
    for cutoff in (105.0, 105.2, 111.7, 119.0):
        traffic.retention.prune(cutoff)
        assert engine_sums(traffic) == (before,)


def test_sums_agree_where_the_engine_was_older_than_kvscope(store: Store) -> None:
    for number in range(10):
        at = 100.0 + number
        store.batches.write(
            [Batch(parts=[request(number, at)], samples=scrape(at + 0.5, 777.0 + 10 * number, 1.0))]
        )
    (before,) = engine_sums(store)
    assert (before.agree, before.counter_tokens, before.first_at) == (True, 90, 100.5)
    store.retention.prune(106.0)
    assert engine_sums(store) == (before,)


def test_sums_after_a_restart_are_of_the_new_life(traffic: Store) -> None:
    """What was removed of the engine's life before does not count, wherever the restart shows."""
    traffic.retention.prune(110.0)
    parts = [request(100 + number, 130.0 + number, cached_tokens=7) for number in range(5)]
    traffic.batches.write(
        [Batch(parts=parts, samples=[*scrape(128.0, 0.0, 125.0), *scrape(140.0, 35.0, 125.0)])]
    )
    (before,) = engine_sums(traffic)
    assert (before.agree, before.counter_tokens, before.first_at) == (True, 35, 125.0)
    for cutoff in (120.0, 132.0):
        traffic.retention.prune(cutoff)
        assert engine_sums(traffic) == (before,)


def test_times_that_cut_through_what_was_removed_leave_its_tokens_unknown(traffic: Store) -> None:
    traffic.retention.prune(110.0)
    assert traffic.reader.cached_tokens_between(ENGINE, 99.0, 119.0) == (200, 0)
    assert traffic.reader.cached_tokens_between(ENGINE, 105.0, 119.0) == (100, 10)
    assert traffic.reader.cached_tokens_between(ENGINE, 99.0, 105.0) == (0, 10)


def test_unknown_and_rejected_requests_count_as_before(store: Store) -> None:
    parts = [
        request(1, 101.0, cached_tokens=None),
        request(2, 102.0, status=Status.REJECTED, cached_tokens=None),
        request(3, 103.0, engine="http://other"),
        request(4, 104.0),
    ]
    store.batches.write(
        [Batch(parts=parts, samples=[*scrape(100.5, 0.0, 100.0), *scrape(120.0, 10.0, 100.0)])]
    )
    before = store.reader.cached_tokens_between(ENGINE, 100.0, 120.0)
    assert before == (10, 1)
    store.retention.prune(110.0)
    assert ids(store) == []
    assert store.reader.cached_tokens_between(ENGINE, 100.0, 120.0) == before
    assert store.reader.cached_tokens_between(ENGINE, 110.0, 120.0) == (0, 0)
    assert store.reader.cached_tokens_between("http://other", 100.0, 120.0) == (0, 0)


def test_an_engine_that_was_not_heard_of_since_is_forgotten(traffic: Store) -> None:
    traffic.retention.prune(110.0)
    traffic.batches.write([Batch(samples=scrape(500.0, 1.0, 400.0, "http://young:1"))])
    traffic.retention.prune(300.0)
    assert [row.engine for row in traffic.reader.counters()] == ["http://young:1"]
    assert ids(traffic) == []
    assert traffic.reader.cached_tokens_between(ENGINE, 0.0, 500.0) == (0, 0)


def test_requests_without_a_time_stay(store: Store) -> None:
    store.batches.write(
        [Batch(parts=[RequestPart(request_id="r", source=Source.PLUGIN, values={"model": "m"})])]
    )
    store.retention.prune(1e12)
    assert ids(store) == ["r"]


EXPERIMENT = Experiment(
    id="e1",
    name="tidy",
    route="a",
    arms=(
        Arm(name="baseline", transforms=(), share=0.5, baseline=True),
        Arm(name="treatment", transforms=(), share=0.5, baseline=False),
    ),
    created_at=1.0,
)


def test_requests_of_an_experiment_stay_until_it_ends(store: Store) -> None:
    store.experiments.create(EXPERIMENT)
    move = Transition(experiment="e1", at=2.0, state=ExperimentState.RUNNING, actor="a", reason="")
    store.experiments.transition(move)
    store.experiments.add_look(
        Look(experiment="e1", at=3.0, verdict=Verdict.UNDECIDED, reasons=(), results={})
    )
    parts = [
        request(number, 10.0 + number, **({"experiment": "e1", "arm": "baseline"} if number % 3 == 0 else {}))
        for number in range(9)
    ]
    store.batches.write([Batch(parts=parts)])
    retention = Retention(store.engines, rows=2)
    assert retention.prune(100.0).requests == 6
    assert ids(store) == ["r0", "r3", "r6"]
    store.experiments.transition(dataclasses.replace(move, at=50.0, state=ExperimentState.STOPPED))
    assert retention.prune(100.0).requests == 3
    assert [one.id for one in store.experiments.list()] == ["e1"]
    assert (len(store.experiments.looks("e1")), len(store.experiments.history("e1"))) == (1, 2)


def test_a_stop_between_transactions_leaves_a_store_that_agrees(traffic: Store) -> None:
    (before,) = engine_sums(traffic)
    asked = iter([False, False, True])
    found = Retention(traffic.engines, rows=2).prune(110.0, stop=lambda: next(asked, True))
    assert (found.requests, found.spans, found.samples) == (4, 0, 0)
    assert engine_sums(traffic) == (before,)


def test_pruning_while_others_write(database_url: str) -> None:
    """Nothing young is lost, no write fails, and none waits long for the pruner."""
    store, pruning = open_store(database_url, upgrade=True), open_store(database_url)
    old = [request(number, 10.0 + number / 1000) for number in range(4_000)]
    spans = [span(number, 10.0) for number in range(4_000)]
    store.batches.write([Batch(parts=old, spans=spans)])
    ended = threading.Event()
    waits: list[float] = []

    def write(first: int) -> None:
        number = first
        while not ended.is_set():
            began = time.monotonic()
            batch = Batch(parts=[request(number, 1_000.0 + number)], spans=[span(number, 1_000.0)])
            assert store.batches.write([batch]) == 0
            waits.append(time.monotonic() - began)
            number += 1

    writing = threading.Thread(target=write, args=(10_000,))
    writing.start()
    try:
        found = pruning.retention.prune(500.0)
    finally:
        ended.set()
        writing.join()
    assert (found.requests, found.spans) == (4_000, 4_000)
    assert len(ids(store)) == len(waits) == store.reader.span_count()
    assert len(waits) > 5
    assert max(waits) < 5.0
    store.close()
    pruning.close()


def size_of(url: str) -> int:
    return Path(url.removeprefix("sqlite:///")).stat().st_size


def big_spans() -> Sequence[Span]:
    return [span(number, 10.0, filler="y" * 5_000) for number in range(400)]


def test_a_new_file_gives_its_space_back(sqlite_url: str) -> None:
    store = open_store(sqlite_url, upgrade=True)
    store.batches.write([Batch(spans=[*big_spans(), span(1_000, 99.0)])])
    found = store.retention.prune(50.0)
    store.close()
    assert (found.spans, found.free_bytes) == (400, 0)
    assert found.freed_bytes is not None
    assert found.freed_bytes > 2_000_000
    assert size_of(sqlite_url) < 1_000_000


def test_a_file_of_the_first_versions_keeps_its_space_for_new_rows(sqlite_url: str) -> None:
    store = open_store(sqlite_url, upgrade=True)
    with store.engines.writer.connect() as connection:
        cursor = connection.connection.cursor()
        cursor.execute("PRAGMA auto_vacuum=NONE")
        cursor.execute("VACUUM")
        cursor.close()
    store.batches.write([Batch(spans=big_spans())])
    found = store.retention.prune(50.0)
    store.close()
    assert found == Pruned(
        requests=0, misses=0, spans=400, samples=0, freed_bytes=0, free_bytes=found.free_bytes
    )
    assert found.free_bytes is not None
    assert found.free_bytes > 2_000_000
