"""What is written twice changes nothing; what cannot be written does not take the rest with it."""

import dataclasses
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from kvscope.errors import UnreachableError
from kvscope.model.request import Miss, MissCause, RequestPart, Source, Status
from kvscope.model.telemetry import MetricSample, Span
from kvscope.pipeline.contracts import Batch
from kvscope.store import bulk, schema
from kvscope.store.database import Store, open_store

SPAN = Span(
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
    parent_span_id=None,
    name="llm_request",
    service="vllm",
    start_at=1_764_000_000.25,
    end_at=1_764_000_001.5,
    attributes={"gen_ai.usage.prompt_tokens": 300, "nested": {"list": [1, 2.5, None, True]}},
    resource={"service.name": "vllm"},
)
SAMPLE = MetricSample(
    engine="http://e",
    replica="0",
    name="vllm:prefix_cache_hits_total",
    labels={"b": "2", "a": "1"},
    at=5.0,
    value=7.0,
)


def span(number: int, **changes: Any) -> Span:
    return dataclasses.replace(SPAN, span_id=f"{number:016x}", **changes)


def part(request_id: str, **values: Any) -> RequestPart:
    return RequestPart(request_id=request_id, source=Source.GATEWAY, values=values)


def contents(store: Store) -> dict[str, Sequence[Any]]:
    """Everything in the bulk tables, in the order of the keys."""
    with store.engines.reading() as connection:
        return {
            table.name: connection.execute(select(table).order_by(*table.primary_key.columns)).all()
            for table in (
                schema.requests,
                schema.spans,
                schema.metric_series,
                schema.metric_samples,
                schema.misses,
            )
        }


BATCH = Batch(
    parts=[part("1", prompt_tokens=5, status=Status.OK), part("2", route="a", causes={"cold": 3})],
    spans=[span(1), span(2)],
    samples=[SAMPLE, dataclasses.replace(SAMPLE, at=6.0)],
    misses=[
        Miss(request_id="2", cause=MissCause.COLD, tokens=3),
        Miss(request_id="2", cause=MissCause.UNKNOWN, tokens=1),
    ],
)


def test_a_resent_batch_changes_nothing(store: Store) -> None:
    assert store.batches.write([BATCH]) == 0
    before = contents(store)
    assert [len(rows) for rows in before.values()] == [2, 2, 1, 2, 2]
    assert store.batches.write([BATCH]) == 0
    assert store.batches.write([BATCH, BATCH]) == 0
    assert contents(store) == before


def test_a_reopened_store_takes_the_same_batch_without_a_change(database_url: str) -> None:
    first = open_store(database_url, upgrade=True)
    first.batches.write([BATCH])
    before = contents(first)
    first.close()
    second = open_store(database_url)
    assert second.batches.write([BATCH]) == 0
    assert contents(second) == before
    second.close()


def test_a_span_keeps_what_it_had_when_it_comes_again_changed(store: Store) -> None:
    store.batches.write([Batch(spans=[span(1)])])
    store.batches.write([Batch(spans=[span(1, name="other")])])
    (row,) = contents(store)["spans"]
    assert (row.name, row.attributes, row.start_at) == ("llm_request", SPAN.attributes, SPAN.start_at)


def test_labels_in_another_order_are_the_same_series(store: Store) -> None:
    turned = dataclasses.replace(SAMPLE, labels={"a": "1", "b": "2"}, at=6.0)
    store.batches.write([Batch(samples=[SAMPLE]), Batch(samples=[turned])])
    found = contents(store)
    assert [len(found["metric_series"]), len(found["metric_samples"])] == [1, 2]
    assert store.reader.latest_samples(SAMPLE.name) == [turned]


ODD_TEXTS = ["a\x00b", "\ud800", "x\udfffy", "\U0001f600", "\x00", "\ud83d\ude00", "e\u0301"]
KEPT_TEXTS = ["a\ufffdb", "\ufffd", "x\ufffdy", "\U0001f600", "\ufffd", "\U0001f600", "e\u0301"]


@pytest.mark.parametrize(("odd", "kept"), list(zip(ODD_TEXTS, KEPT_TEXTS, strict=True)))
def test_text_that_no_database_holds_is_replaced(store: Store, odd: str, kept: str) -> None:
    batch = Batch(
        parts=[part(f"r{odd}", route=odd, session=odd)],
        spans=[span(1, name=odd, attributes={odd: [odd, {"deep": odd}]}, resource={"x": odd})],
        samples=[dataclasses.replace(SAMPLE, labels={"label": odd})],
        misses=[Miss(request_id=f"r{odd}", cause=MissCause.COLD, tokens=1, role=odd, value_kind=odd)],
    )
    assert store.batches.write([batch]) == 0
    (record,) = store.reader.requests()
    assert (record.request_id, record.route, record.session) == (f"r{kept}", kept, kept)
    (row,) = contents(store)["spans"]
    assert (row.name, row.attributes, row.resource) == (kept, {kept: [kept, {"deep": kept}]}, {"x": kept})
    assert [one.labels for one in store.reader.latest_samples(SAMPLE.name)] == [{"label": kept}]
    (missed,) = store.reader.misses()
    assert (missed.route, missed.role, missed.value_kind) == (kept, kept, kept)


def test_numbers_that_are_not_finite_say_nothing(store: Store) -> None:
    odd = {"ttft_seconds": math.nan, "e2e_seconds": math.inf, "queue_seconds": -math.inf, "prompt_tokens": 4}
    attributes = {"nan": math.nan, "inf": math.inf}
    batch = Batch(parts=[part("1", **odd)], spans=[span(1, attributes=attributes)])
    assert store.batches.write([batch]) == 0
    (record,) = store.reader.requests()
    assert (record.ttft_seconds, record.e2e_seconds, record.queue_seconds) == (None, None, None)
    assert record.sources == {"prompt_tokens": "gateway"}
    (row,) = contents(store)["spans"]
    assert row.attributes == {"nan": None, "inf": None}


BAD_VALUES = {
    "prompt_tokens": 2**31,
    "output_tokens": -1,
    "cached_tokens": 2**200,
    "preemptions": True,
    "prompt_chars": "12",
    "ttft_seconds": 10**400,
    "e2e_seconds": "soon",
    "route": 7,
    "warmup": 1,
    "status": "fine",
    "causes": {"cold": -1},
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_bad_value_is_left_out_and_its_part_counted(store: Store, name: str) -> None:
    parts = [part("good", model="m"), part("bad", model="m", **{name: BAD_VALUES[name]})]
    assert store.batches.write([Batch(parts=parts)]) == 1
    bad, good = sorted(store.reader.requests(), key=lambda record: record.request_id)
    assert (good.model, bad.model, getattr(bad, name)) == ("m", "m", None)
    assert bad.sources == {"model": "gateway"}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


BAD_ITEMS = {
    "span without a time": Batch(spans=[span(9, start_at=math.nan)]),
    "span with a time that is text": Batch(spans=[span(9, end_at="now")]),
    "span without an id": Batch(spans=[dataclasses.replace(SPAN, trace_id=None)]),  # type: ignore[arg-type]
    "span with an object": Batch(spans=[span(9, attributes={"x": object()})]),
    "span nested too deep": Batch(spans=[span(9, attributes={"x": deep(100_000)})]),
    "sample that is no number": Batch(samples=[dataclasses.replace(SAMPLE, value=math.nan)]),
    "sample without a time": Batch(samples=[dataclasses.replace(SAMPLE, at=math.inf)]),
    "part without an id": Batch(parts=[part(None, model="m")]),  # type: ignore[arg-type]
    "miss of too many tokens": Batch(misses=[Miss(request_id="9", cause=MissCause.COLD, tokens=2**40)]),
}


@pytest.mark.parametrize("name", BAD_ITEMS)
def test_a_bad_item_does_not_take_the_others_with_it(store: Store, name: str) -> None:
    assert store.batches.write([BATCH, BAD_ITEMS[name]]) == 1
    assert [len(rows) for rows in contents(store).values()] == [2, 2, 1, 2, 2]


def test_large_attributes_and_huge_integers_are_kept(store: Store) -> None:
    attributes = {
        "huge": 2**100,
        "long": "x" * 1_000_000,
        **{f"key{number}": number for number in range(10_000)},
    }
    assert store.batches.write([Batch(spans=[span(1, attributes=attributes)])]) == 0
    (row,) = contents(store)["spans"]
    assert len(row.attributes) == 10_002
    assert row.attributes["long"] == attributes["long"]


def test_ids_longer_than_an_index_takes_are_shortened_in_one_way(store: Store) -> None:
    first, second = "é" * 50_000, "é" * 50_000 + "!"
    batch = Batch(
        parts=[
            part(first, route=first, experiment=first, arm=first),
            part(first, model="m"),
            part(second, model="n"),
        ],
        misses=[Miss(request_id=first, cause=MissCause.COLD, tokens=5)],
        spans=[dataclasses.replace(SPAN, trace_id=first, span_id=second)],
    )
    assert store.batches.write([batch]) == 0
    assert store.batches.write([batch]) == 0
    records = {record.model: record for record in store.reader.requests()}
    assert len(records["m"].request_id) == 256
    assert records["m"].request_id != records["n"].request_id
    assert [(row.route, row.tokens) for row in store.reader.misses()] == [(records["m"].route, 5)]
    assert [row.model for row in store.reader.requests(route=first)] == ["m"]
    assert [row.model for row in store.reader.requests(experiment=first)] == ["m"]


@pytest.mark.parametrize("bad", [{0}, {9}, {3, 4}, {0, 5, 9}, set(range(10)), set()])
def test_the_rows_that_the_database_refuses_are_found_by_halving(store: Store, bad: set[int]) -> None:
    """The database's own refusal: a missing name breaks NOT NULL."""
    sql = bulk.Statements(store.engines.writer.dialect).spans
    rows = [
        ("t", f"{number:02}", None, None if number in bad else "name", None, 1.0, 2.0, "{}", "{}")
        for number in range(10)
    ]
    with store.engines.writing() as connection:
        refused = bulk.run(connection, sql, rows)
    assert {int(row[1]) for row in refused} == bad
    assert {int(row.span_id) for row in contents(store)["spans"]} == set(range(10)) - bad


def test_a_sample_whose_series_is_gone_is_refused_alone(store: Store) -> None:
    other = dataclasses.replace(SAMPLE, name="other")
    store.batches.write([Batch(samples=[SAMPLE, other])])
    with store.engines.writing() as connection:
        connection.execute(text("DELETE FROM metric_samples"))
        connection.execute(text("DELETE FROM metric_series WHERE name = 'other'"))
    assert store.batches.write([Batch(samples=[SAMPLE, other])]) == 1
    assert len(contents(store)["metric_samples"]) == 1


def test_a_batch_that_breaks_our_own_code_is_refused_alone(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Batch(parts=[RequestPart(request_id="9", source="telepathy", values={"model": "m"})])  # type: ignore[arg-type]
    twice = [broken, dataclasses.replace(broken, parts=[*broken.parts, *broken.parts])]
    with caplog.at_level(logging.ERROR):
        assert store.batches.write([BATCH, *twice]) == 3
    assert [len(rows) for rows in contents(store).values()] == [2, 2, 1, 2, 2]
    assert "refused" in caplog.text


def test_a_locked_file_is_told_and_nothing_of_the_write_is_kept(sqlite_url: str, tmp_path: Path) -> None:
    store = open_store(sqlite_url, upgrade=True)
    other = open_store(sqlite_url)
    with other.engines.writing() as connection:
        connection.execute(insert(schema.requests), [{"request_id": "held", "sources": {}}])
        with store.engines.writer.connect() as raw:
            raw.connection.cursor().execute("PRAGMA busy_timeout=50")
        with pytest.raises(UnreachableError, match="database is locked"):
            store.batches.write([BATCH])
        assert [len(rows) for rows in contents(store).values()] == [0] * 5
    assert store.batches.write([BATCH]) == 0
    assert len(store.reader.requests()) == 3
    store.close()
    other.close()


def test_a_full_disk_is_told_and_the_same_write_works_when_there_is_room(sqlite_store: Store) -> None:
    big = Batch(spans=[span(number, attributes={"x": "y" * 5_000}) for number in range(100)])

    def limit(pages: int) -> None:
        with sqlite_store.engines.writer.connect() as connection:
            connection.connection.cursor().execute(f"PRAGMA max_page_count={pages}")

    limit(60)
    with pytest.raises(UnreachableError, match="database or disk is full"):
        sqlite_store.batches.write([BATCH, big])
    assert [len(rows) for rows in contents(sqlite_store).values()] == [0] * 5
    limit(10_000)
    assert sqlite_store.batches.write([BATCH, big]) == 0
    assert sqlite_store.reader.span_count() == 100
