"""PostgreSQL's partitions: made ahead, filled from the default one, dropped with what must stay moved out."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, text

from kvscope.model.telemetry import MetricSample, Span
from kvscope.pipeline.contracts import Batch
from kvscope.store import migrate
from kvscope.store.counters import QUERIES
from kvscope.store.database import Store, open_store
from kvscope.store.engines import connect
from kvscope.store.partitions import DAY
from kvscope.store.urls import locate

pytestmark = pytest.mark.postgres

NOON = 20_000.5 * DAY  # 2024-10-04


@pytest.fixture
def postgresql_store(postgresql_url: str) -> Iterator[Store]:
    opened = open_store(postgresql_url, upgrade=True)
    yield opened
    opened.close()


def span(number: int, at: float) -> Span:
    return Span(
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        parent_span_id=None,
        name="llm_request",
        service=None,
        start_at=at,
        end_at=at + 1,
        attributes={"n": number},
        resource={},
    )


def sample(at: float, value: float, name: str = QUERIES) -> MetricSample:
    return MetricSample(engine="e", replica="0", name=name, labels={}, at=at, value=value)


def rows_by_partition(store: Store, table: str) -> dict[str, int]:
    query = text(f"SELECT tableoid::regclass::text, count(*) FROM {table} GROUP BY 1")
    with store.engines.reading() as connection:
        return {name: count for name, count in connection.execute(query)}  # noqa: C416 - rows, not pairs


def test_partitions_are_made_for_today_and_the_days_after_once(postgresql_store: Store) -> None:
    days = ["20241004", "20241005", "20241006", "20241007"]
    expected = [f"{table}_{day}" for table in ("spans", "metric_samples") for day in days]
    assert postgresql_store.partitions.make_ahead(NOON) == expected
    assert postgresql_store.partitions.make_ahead(NOON) == []
    again = open_store(postgresql_store.engines.location.url.render_as_string(hide_password=False))
    assert again.partitions.make_ahead(NOON) == []
    assert again.partitions.make_ahead(NOON + DAY) == ["spans_20241008", "metric_samples_20241008"]
    again.close()


def test_what_came_before_its_partition_moves_into_it(postgresql_store: Store) -> None:
    times = [0.0, 20_000 * DAY, NOON, 20_001 * DAY, 1e12]
    spans = [span(number, at) for number, at in enumerate(times)]
    samples = [sample(at, number) for number, at in enumerate(times)]
    assert postgresql_store.batches.write([Batch(spans=spans, samples=samples)]) == 0
    postgresql_store.partitions.make_ahead(NOON)
    for table in ("spans", "metric_samples"):
        assert rows_by_partition(postgresql_store, table) == {
            f"{table}_default": 2,
            f"{table}_20241004": 2,
            f"{table}_20241005": 1,
        }
    assert postgresql_store.batches.write([Batch(spans=spans, samples=samples)]) == 0
    assert postgresql_store.reader.span_count() == len(spans)


def test_a_day_that_is_over_is_dropped_but_for_where_counters_began(postgresql_store: Store) -> None:
    postgresql_store.partitions.make_ahead(NOON)
    day = 20_000 * DAY
    samples = [sample(day + hour * 3_600, 10.0 * hour) for hour in range(48)]
    spans = [span(hour, day + hour * 3_600) for hour in range(48)]
    postgresql_store.batches.write([Batch(spans=spans, samples=samples)])
    before = postgresql_store.reader.counters()
    assert [row.queries for row in before] == [470.0]
    pruned = postgresql_store.retention.prune(day + 1.5 * DAY)
    # of the day that has begun all stay: it goes as a whole
    assert (pruned.spans, pruned.samples) == (24, 23)
    assert rows_by_partition(postgresql_store, "spans") == {"spans_20241005": 24}
    kept = {"metric_samples_default": 1, "metric_samples_20241005": 24}
    assert rows_by_partition(postgresql_store, "metric_samples") == kept
    assert postgresql_store.reader.counters() == before
    assert postgresql_store.partitions.make_ahead(NOON + DAY) == ["spans_20241008", "metric_samples_20241008"]


def test_a_lock_that_others_hold_puts_it_off(postgresql_store: Store) -> None:
    postgresql_store.partitions.make_ahead(NOON)
    postgresql_store.batches.write([Batch(spans=[span(1, NOON)], samples=[sample(NOON, 1.0)])])

    def prune_beside(connection: Connection) -> Any:
        connection.execute(text("SELECT count(*) FROM spans"))
        return postgresql_store.retention.prune(NOON + 2 * DAY)

    with postgresql_store.engines.reading() as connection:
        assert prune_beside(connection).spans == 0
    assert postgresql_store.retention.prune(NOON + 2 * DAY).spans == 1


def test_rows_of_an_unpartitioned_store_are_there_after_up_down_and_up(postgresql_url: str) -> None:
    migrate.upgrade(postgresql_url)
    migrate.downgrade(postgresql_url, "0008")
    plain = connect(locate(postgresql_url))
    with plain.writing() as connection:
        connection.execute(text("INSERT INTO metric_series VALUES (1, 'e', '0', 'm', '{}')"))
        for day in (0, 20_000, 20_001):
            sample_row = f"(1, {day * DAY}, {day})"
            span_row = f"('t{day}', 's', NULL, 'n', NULL, {day * DAY}, 1, '{{}}', '{{}}')"
            for table, row in (("metric_samples", sample_row), ("spans", span_row)):
                connection.execute(text(f"INSERT INTO {table} VALUES {row}"))
    plain.close()
    for _ in range(2):
        migrate.upgrade(postgresql_url)
        opened = open_store(postgresql_url)
        opened.partitions.make_ahead(NOON)
        for table in ("spans", "metric_samples"):
            found = rows_by_partition(opened, table)
            assert found == {f"{table}_default": 1, f"{table}_20241004": 1, f"{table}_20241005": 1}
        opened.close()
        migrate.downgrade(postgresql_url, "0008")
    plain = connect(locate(postgresql_url))
    with plain.reading() as connection:
        for table in ("spans", "metric_samples"):
            query = text(f"SELECT count(*) FROM {table}")
            assert connection.execute(query).scalar() == 3
    plain.close()
