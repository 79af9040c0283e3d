"""What is written reads back, on both databases."""

import dataclasses
from typing import Any

import pytest
from sqlalchemy import update

from kvscope.model.request import REQUEST_FIELDS, Miss, MissCause, RequestPart, RequestRecord, Source, Status
from kvscope.model.views import HitRow, MissRow, TimelineRow
from kvscope.pipeline.contracts import Batch
from kvscope.store import schema
from kvscope.store.database import Store

FULL: dict[str, Any] = {
    "trace_id": "0af7651916cd43dd8448eb211c80319c",
    "span_id": "b7ad6b7169203331",
    "session": "s-1",
    "tenant": "acme",
    "route": "support",
    "model": "tiny",
    "engine": "http://127.0.0.1:8000",
    "replica": "0",
    "arrived_at": 1_764_000_000.125,
    "status": Status.OK,
    "finish_reason": "stop",
    "prompt_tokens": 300,
    "output_tokens": 20,
    "cached_tokens": 256,
    "ttft_seconds": 0.05,
    "ttft_client_seconds": 0.06,
    "tpot_seconds": 0.01,
    "itl_p50_seconds": 0.011,
    "itl_p95_seconds": 0.02,
    "itl_max_seconds": 0.03,
    "queue_seconds": 0.001,
    "prefill_seconds": 0.04,
    "decode_seconds": 0.19,
    "e2e_seconds": 0.25,
    "preemptions": 0,
    "requests_in_flight": 3,
    "prompt_chars": 1_200,
    "prompt_entropy": 4.25,
    "prompt_layout": "sort_tools+move_volatile",
    "experiment": "e1",
    "arm": "treatment",
    "warmup": False,
    "gateway_overhead_seconds": 0.0004,
    "causes": {"cold": 32, "granularity": 12},
}


def near(value: float | None) -> Any:
    return None if value is None else pytest.approx(value)


def part(request_id: str, source: Source = Source.GATEWAY, **values: Any) -> RequestPart:
    return RequestPart(request_id=request_id, source=source, values=values)


def test_the_table_has_a_column_for_each_field_and_no_other() -> None:
    columns = {column.name for column in schema.requests.columns}
    # the pieces stand in `sources`
    assert columns | {"pieces"} == {field.name for field in dataclasses.fields(RequestRecord)}
    assert FULL.keys() == REQUEST_FIELDS


def test_a_full_record_reads_back_equal(store: Store) -> None:
    assert store.batches.write([Batch(parts=[part("r1", **FULL)])]) == 0
    sources = dict.fromkeys(FULL, "gateway")
    counts = (FULL["prompt_tokens"], FULL["output_tokens"], FULL["cached_tokens"])
    expected = RequestRecord(request_id="r1", sources=sources, pieces={"gateway": {"": counts}}, **FULL)
    assert store.reader.requests() == [expected]


def test_sequences_of_several_writes_add_up_once_each(store: Store) -> None:
    def told(piece: str, cached: int) -> RequestPart:
        values = {"prompt_tokens": 100, "cached_tokens": cached}
        return RequestPart(request_id="r1", source=Source.PLUGIN, values=values, piece=piece)

    store.batches.write([Batch(parts=[told("a", 0), told("b", 64)])])
    store.batches.write([Batch(parts=[told("b", 64), told("c", 32)])])
    (record,) = store.reader.requests()
    assert (record.prompt_tokens, record.cached_tokens, record.sequences) == (300, 96, 3)
    (row,) = store.reader.hits("total")
    assert (row.requests, row.prompt_tokens, row.cached_tokens) == (1, 300, 96)


def test_rows_from_before_there_were_pieces_join_as_they_did(store: Store) -> None:
    store.batches.write([Batch(parts=[part("r1", Source.PLUGIN, prompt_tokens=100, cached_tokens=64)])])
    with store.engines.writing() as connection:
        old = {"prompt_tokens": "plugin", "cached_tokens": "plugin"}
        connection.execute(update(schema.requests).values(sources=old))
    store.batches.write([Batch(parts=[part("r1", Source.SPAN, prompt_tokens=100, cached_tokens=3)])])
    (record,) = store.reader.requests()
    assert (record.prompt_tokens, record.cached_tokens, record.sequences) == (100, 64, 1)
    assert record.sources == {"prompt_tokens": "span", "cached_tokens": "plugin"}


def test_parts_of_several_writes_join_in_one_row(store: Store) -> None:
    store.batches.write([Batch(parts=[part("r1", Source.GATEWAY, route="a", cached_tokens=1)])])
    store.batches.write([Batch(parts=[part("r1", Source.PLUGIN, cached_tokens=64)])])
    store.batches.write([Batch(parts=[part("r1", Source.SPAN, cached_tokens=2, queue_seconds=0.5)])])
    (record,) = store.reader.requests()
    assert (record.route, record.cached_tokens, record.queue_seconds) == ("a", 64, 0.5)
    assert record.sources == {"route": "gateway", "cached_tokens": "plugin", "queue_seconds": "span"}


@pytest.mark.parametrize("last", [None, 0, 1, 2, 3, 9])
def test_requests_come_oldest_first_and_last_keeps_the_newest(store: Store, last: int | None) -> None:
    parts = [
        part("c", arrived_at=3.0),
        part("a", arrived_at=1.0),
        part("unknown", route="x"),
        part("b", arrived_at=2.0),
    ]
    store.batches.write([Batch(parts=parts)])
    order = ["unknown", "a", "b", "c"]
    expected = order if last is None else order[max(0, len(order) - last) :]
    assert [record.request_id for record in store.reader.requests(last=last)] == expected


def test_requests_are_filtered(store: Store) -> None:
    parts = [
        part("1", arrived_at=1.0, route="a"),
        part("2", arrived_at=2.0, route="b", experiment="e"),
        part("3", arrived_at=3.0, route="a", experiment="e"),
    ]
    store.batches.write([Batch(parts=parts)])

    def ids(**filters: Any) -> list[str]:
        return [record.request_id for record in store.reader.requests(**filters)]

    assert ids(route="a") == ["1", "3"]
    assert ids(experiment="e") == ["2", "3"]
    assert ids(since_at=2.0) == ["2", "3"]
    assert ids(since_at=2.0, route="a", experiment="e", last=5) == ["3"]


@pytest.fixture
def traffic(store: Store) -> Store:
    """Four requests: two of route a, one of b, one of which little is known."""
    parts = [
        part(
            "1",
            arrived_at=10.0,
            route="a",
            tenant="t",
            prompt_tokens=100,
            cached_tokens=60,
            ttft_seconds=0.1,
            tpot_seconds=0.01,
            experiment="e",
            arm="baseline",
            causes={"cold": 30, "granularity": 10},
        ),
        part(
            "2",
            arrived_at=14.0,
            route="a",
            prompt_tokens=100,
            cached_tokens=90,
            ttft_seconds=0.3,
            experiment="e",
            arm="treatment",
            causes={"cold": 0, "granularity": 10},
        ),
        part("3", arrived_at=16.0, route="b", prompt_tokens=50, cached_tokens=0, causes={"diverged": 50}),
        part("4", arrived_at=16.5, prompt_tokens=70, ttft_seconds=0.2, causes={"cold": 70}),
    ]
    store.batches.write([Batch(parts=parts)])
    return store


def row(
    key: str, requests: int, known: int, prompt: int, cached: int, ttft: float | None, **causes: int
) -> HitRow:
    return HitRow(
        key=key,
        requests=requests,
        known_requests=known,
        prompt_tokens=prompt,
        cached_tokens=cached,
        ttft_seconds_mean=near(ttft),
        causes=causes,
    )


def test_hits_by_route_tenant_model_and_total(traffic: Store) -> None:
    assert traffic.reader.hits("route") == [
        row("a", 2, 2, 200, 150, 0.2, cold=30, granularity=20),
        row("b", 1, 1, 50, 0, None, diverged=50),
        row("(unknown)", 1, 0, 0, 0, 0.2),
    ]
    assert [(hit.key, hit.requests) for hit in traffic.reader.hits("tenant")] == [("(unknown)", 3), ("t", 1)]
    assert [(hit.key, hit.requests) for hit in traffic.reader.hits("model")] == [("(unknown)", 4)]
    assert traffic.reader.hits("total") == [
        row("total", 4, 3, 250, 150, 0.2, cold=30, granularity=20, diverged=50)
    ]


def test_hits_by_arm_are_of_experiments_only(traffic: Store) -> None:
    assert traffic.reader.hits("arm") == [
        row("e/baseline", 1, 1, 100, 60, 0.1, cold=30, granularity=10),
        row("e/treatment", 1, 1, 100, 90, 0.3, granularity=10),
    ]


def test_hits_by_cause_are_over_the_requests_that_have_it(traffic: Store) -> None:
    assert traffic.reader.hits("cause") == [
        row("diverged", 1, 1, 50, 0, None, diverged=50),
        row("cold", 2, 1, 100, 60, 0.15, cold=30),
        row("granularity", 2, 2, 200, 150, 0.2, granularity=20),
    ]


def test_hits_within_times(traffic: Store) -> None:
    assert [hit.requests for hit in traffic.reader.hits("total", since_at=14.0, until_at=16.5)] == [2]
    assert traffic.reader.hits("total", since_at=99.0) == []


def test_an_empty_store_answers_nothing(store: Store) -> None:
    reader = store.reader
    assert [reader.hits("total"), reader.hits("cause"), reader.misses(), reader.counters()] == [
        [],
        [],
        [],
        [],
    ]
    assert reader.timeline(bucket_seconds=1.0) == []
    assert (reader.span_count(), reader.cached_tokens_between("e", 0.0, 1.0)) == (0, (0, 0))


def test_timeline_buckets_by_route(traffic: Store) -> None:
    def bucket(
        at: float, route: str, requests: int, prompt: int, cached: int, ttft: float | None
    ) -> TimelineRow:
        tpot = 0.01 if at == 10.0 else None
        return TimelineRow(
            at=at,
            route=route,
            requests=requests,
            prompt_tokens=prompt,
            cached_tokens=cached,
            ttft_seconds_mean=near(ttft),
            tpot_seconds_mean=tpot,
        )

    rows = sorted(traffic.reader.timeline(bucket_seconds=5.0), key=lambda one: (one.at, one.route))
    assert rows == [
        bucket(10.0, "a", 2, 200, 150, 0.2),
        bucket(15.0, "(unknown)", 1, 0, 0, 0.2),
        bucket(15.0, "b", 1, 50, 0, None),
    ]
    assert [one.requests for one in traffic.reader.timeline(bucket_seconds=5.0, since_at=16.2)] == [1]


def test_cached_tokens_between_counts_the_unknown(store: Store) -> None:
    engine: dict[str, Any] = {"engine": "http://e"}
    parts = [
        part("1", arrived_at=1.0, cached_tokens=5, **engine),
        part("2", arrived_at=2.0, cached_tokens=7, **engine),
        part("3", arrived_at=2.0, status=Status.ABORTED, **engine),
        part("4", arrived_at=2.0, status=Status.REJECTED, **engine),
        part("5", arrived_at=2.0, cached_tokens=100, engine="http://other"),
        part("6", arrived_at=3.1, cached_tokens=100, **engine),
    ]
    store.batches.write([Batch(parts=parts)])
    assert store.reader.cached_tokens_between("http://e", 1.0, 3.0) == (12, 1)
    assert store.reader.cached_tokens_between("http://e", 1.5, 3.1) == (107, 1)


def miss(request_id: str, cause: MissCause, tokens: int, start: int | None = None, **place: Any) -> Miss:
    return Miss(request_id=request_id, cause=cause, tokens=tokens, char_start=start, **place)


def test_misses_are_summed_by_route_cause_and_place_with_the_worst_as_example(store: Store) -> None:
    clock: dict[str, Any] = {"role": "system", "message_index": 0, "value_kind": "timestamp"}
    misses = [
        miss("1", MissCause.DIVERGED, 100, 7, char_end=26, **clock),
        miss("2", MissCause.DIVERGED, 300, 9, char_end=28, **clock),
        miss("2", MissCause.GRANULARITY, 12),
        miss("3", MissCause.COLD, 50),
    ]
    parts = [part("1", route="a", arrived_at=1.0), part("2", route="a", arrived_at=2.0)]
    store.batches.write([Batch(misses=misses)])
    store.batches.write([Batch(parts=parts)])
    place: dict[str, Any] = {"role": None, "message_index": None, "value_kind": None}
    nowhere: dict[str, Any] = {"example_char_start": None, "example_char_end": None}
    assert store.reader.misses() == [
        MissRow(
            route="a",
            cause="diverged",
            requests=2,
            tokens=400,
            example_request_id="2",
            example_char_start=9,
            example_char_end=28,
            **clock,
        ),
        MissRow(
            route="(unknown)", cause="cold", requests=1, tokens=50, example_request_id="3", **place, **nowhere
        ),
        MissRow(
            route="a", cause="granularity", requests=1, tokens=12, example_request_id="2", **place, **nowhere
        ),
    ]
    assert [one.tokens for one in store.reader.misses(route="a")] == [400, 12]
    assert [one.tokens for one in store.reader.misses(since_at=2.0)] == [300, 12]


def test_the_newest_set_of_misses_of_a_request_replaces_the_older(store: Store) -> None:
    store.batches.write([Batch(misses=[miss("1", MissCause.UNKNOWN, 40), miss("2", MissCause.COLD, 5)])])
    newer = [miss("1", MissCause.COLD, 30), miss("1", MissCause.GRANULARITY, 10)]
    store.batches.write(
        [Batch(misses=[miss("1", MissCause.COLD, 1)]), Batch(misses=newer), Batch(misses=newer)]
    )
    found = [(one.cause, one.tokens) for one in store.reader.misses()]
    assert found == [("cold", 35), ("granularity", 10)]
