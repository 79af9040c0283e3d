"""The store goes away under traffic and comes back: what was accepted is written, once, in all its parts."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from kvscope.errors import RetryableIngestError
from kvscope.model.request import RequestPart, Source
from kvscope.model.telemetry import MetricSample, Span
from kvscope.pipeline.contracts import Batch
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.store.database import Store, open_store
from tests.support.databases import PostgresqlServer

DEADLINE = 40.0
SENDERS = 3
START_AT = 1_764_000_000.0


def batch(sender: int, number: int) -> Batch:
    """Two parts of a request, a span and a sample; both parts are needed for the whole record."""
    name, at = f"{sender}-{number}", START_AT + number
    return Batch(
        parts=[
            RequestPart(request_id=name, source=Source.GATEWAY, values={"route": "a", "arrived_at": at}),
            RequestPart(request_id=name, source=Source.SPAN, values={"prompt_tokens": 5, "cached_tokens": 3}),
        ],
        spans=[
            Span(
                trace_id=name,
                span_id="1",
                parent_span_id=None,
                name="llm_request",
                service=None,
                start_at=at,
                end_at=at,
                attributes={},
                resource={},
            )
        ],
        samples=[MetricSample(engine="e", replica=str(sender), name="m", labels={}, at=at, value=1.0)],
    )


class Traffic:
    """Senders that keep what they are told to keep and send it again, as OTLP exporters do."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._ended = threading.Event()
        self.told_to_wait = 0
        self.receipts: list[Future[int]] = []
        self._threads = [threading.Thread(target=self._send, args=(one,)) for one in range(SENDERS)]
        for thread in self._threads:
            thread.start()

    def _send(self, sender: int) -> None:
        number = 0
        while not self._ended.is_set():
            try:
                self.receipts.append(self._writer.offer(batch(sender, number)))
                number += 1
            except RetryableIngestError:
                self.told_to_wait += 1
            self._ended.wait(0.005)

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def answered(self) -> int:
        return sum(receipt.done() for receipt in self.receipts)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def writer_of(store: Store, registry: CollectorRegistry) -> Iterator[Writer]:
    writer = Writer(store.batches, WriterSettings(queue_items=400, drain_seconds=20.0), registry)
    writer.start()
    yield writer
    writer.stop()


def failures(registry: CollectorRegistry) -> float:
    return registry.get_sample_value("kvscope_commit_failures_total") or 0.0


def assert_all_is_there_once(store: Store, traffic: Traffic) -> None:
    assert [receipt.result(DEADLINE) for receipt in traffic.receipts] == [0] * len(traffic.receipts)
    sent = len(traffic.receipts)
    records = store.reader.requests()
    assert len(records) == len({record.request_id for record in records}) == sent
    assert {(record.route, record.prompt_tokens, record.cached_tokens) for record in records} == {("a", 5, 3)}
    assert store.reader.span_count() == sent
    (total,) = store.reader.hits("total")
    assert (total.requests, total.cached_tokens) == (sent, 3 * sent)
    with store.engines.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM metric_samples")).scalar() == sent


@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_postgresql_is_stopped_and_started_under_traffic(
    postgresql_process: PostgresqlServer, postgresql_url: str, registry: CollectorRegistry, mode: str
) -> None:
    store = open_store(postgresql_url, upgrade=True)
    with store.engines.writing() as connection:
        # the test server was told that nothing crashes; here it does, so commits are as by default
        database = connection.execute(text("SELECT current_database()")).scalar()
        connection.execute(text(f"ALTER DATABASE {database} SET synchronous_commit = on"))
    store.engines.writer.dispose()
    writers = writer_of(store, registry)
    writer = next(writers)
    traffic = Traffic(writer)
    try:
        until(lambda: traffic.answered() > 20)
        postgresql_process.stop(mode)
        before = traffic.answered()
        try:
            until(lambda: failures(registry) >= 2 and traffic.told_to_wait > 0)
            assert traffic.answered() - before <= SENDERS  # nothing is answered that is not written
        finally:
            postgresql_process.start()
        until(lambda: traffic.answered() > before + 20)
    finally:
        traffic.end()
    assert_all_is_there_once(store, traffic)
    next(writers, None)
    store.close()


def test_a_full_disk_is_waited_out(sqlite_store: Store, registry: CollectorRegistry) -> None:
    def limit(pages: int) -> None:
        with sqlite_store.engines.writer.connect() as connection:
            connection.connection.cursor().execute(f"PRAGMA max_page_count={pages}")

    writers = writer_of(sqlite_store, registry)
    traffic = Traffic(next(writers))
    try:
        until(lambda: traffic.answered() > 20)
        limit(1)  # no page more than there are
        until(lambda: failures(registry) >= 2 and traffic.told_to_wait > 0)
        limit(100_000)
        before = traffic.answered()
        until(lambda: traffic.answered() > before + 20)
    finally:
        traffic.end()
    assert_all_is_there_once(sqlite_store, traffic)
    next(writers, None)
