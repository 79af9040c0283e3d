"""The queue and its one writer: nothing that was accepted is lost or answered before its commit."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kvscope.errors import RetryableIngestError, UnreachableError
from kvscope.model.request import RequestPart, Source
from kvscope.pipeline.contracts import Batch
from kvscope.pipeline.writer import Writer, WriterSettings

DEADLINE = 10.0


class FaultyStore:
    """A store in memory whose faults and pauses a test decides."""

    def __init__(self) -> None:
        self.written: list[list[str]] = []
        self.failures = 0
        self.rejected = 0
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def write(self, batches: Sequence[Batch]) -> int:
        self.entered.set()
        assert self.gate.wait(DEADLINE)
        if self.failures:
            self.failures -= 1
            raise UnreachableError("the store is away")
        self.written.append([part.request_id for batch in batches for part in batch.parts])
        return self.rejected

    @property
    def ids(self) -> list[str]:
        return [request_id for commit in self.written for request_id in commit]


def batch(*ids: str) -> Batch:
    return Batch(parts=[RequestPart(request_id=one, source=Source.SPAN, values={}) for one in ids])


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


Make = Callable[..., Writer]


@pytest.fixture
def make(store: FaultyStore, registry: CollectorRegistry) -> Iterator[Make]:
    made: list[Writer] = []

    def build(**settings: Any) -> Writer:
        made.append(Writer(store, WriterSettings(**settings), registry))
        return made[-1]

    yield build
    store.gate.set()
    for writer in made:
        writer.stop()


def value(registry: CollectorRegistry, name: str) -> float:
    found = registry.get_sample_value(name)
    assert found is not None
    return found


def test_a_receipt_resolves_after_the_commit(make: Make, store: FaultyStore) -> None:
    store.gate.clear()
    writer = make()
    writer.start()
    receipt = writer.offer(batch("a"))
    assert store.entered.wait(DEADLINE)
    assert not receipt.done()
    store.gate.set()
    assert receipt.result(DEADLINE) == 0
    assert store.ids == ["a"]


def test_an_empty_batch_is_answered_at_once(make: Make) -> None:
    assert make().offer(Batch()).result(0) == 0


def test_what_waits_is_committed_together_in_order(make: Make, store: FaultyStore) -> None:
    writer = make()
    receipts = [writer.offer(batch(str(number))) for number in range(20)]
    writer.start()
    assert [receipt.result(DEADLINE) for receipt in receipts] == [0] * 20
    assert store.written == [[str(number) for number in range(20)]]


def test_a_full_queue_refuses_and_takes_again_later(
    make: Make, store: FaultyStore, registry: CollectorRegistry
) -> None:
    writer = make(queue_items=3)
    first = writer.offer(batch("a", "b"))
    with pytest.raises(RetryableIngestError, match=r"the queue is full \(2 items wait\)"):
        writer.offer(batch("c", "d"))
    assert value(registry, "kvscope_items_refused_total") == 2
    assert value(registry, "kvscope_queue_items") == 2
    writer.start()
    assert first.result(DEADLINE) == 0
    assert writer.offer(batch("c", "d")).result(DEADLINE) == 0
    assert store.ids == ["a", "b", "c", "d"]


def test_what_no_sender_sends_again_has_room_when_others_are_refused(make: Make, store: FaultyStore) -> None:
    writer = make(queue_items=2)
    writer.offer(batch("a", "b"))
    with pytest.raises(RetryableIngestError, match="the queue is full"):
        writer.offer(batch("c"))
    for name in ("d", "e"):
        writer.offer(dataclasses.replace(batch(name), only_copy=True))
    with pytest.raises(RetryableIngestError, match="the queue is full"):
        writer.offer(dataclasses.replace(batch("f"), only_copy=True))
    writer.start()
    assert writer.flush(timeout_seconds=DEADLINE)
    assert store.ids == ["a", "b", "d", "e"]


def test_a_batch_larger_than_the_queue_is_taken_when_nothing_waits(make: Make) -> None:
    writer = make(queue_items=1)
    receipt = writer.offer(batch("a", "b", "c"))
    writer.start()
    assert receipt.result(DEADLINE) == 0


def test_a_store_that_fails_and_recovers_loses_nothing(
    make: Make, store: FaultyStore, registry: CollectorRegistry
) -> None:
    store.failures = 3
    writer = make()
    writer.start()
    receipts = [writer.offer(batch(str(number))) for number in range(5)]
    assert [receipt.result(DEADLINE) for receipt in receipts] == [0] * 5
    assert store.ids == ["0", "1", "2", "3", "4"]
    assert value(registry, "kvscope_commit_failures_total") == 3


def test_health_tells_while_the_store_fails(make: Make, store: FaultyStore) -> None:
    writer = make()
    writer.start()
    store.gate.clear()
    store.failures = 1
    receipt = writer.offer(batch("a"))
    assert store.entered.wait(DEADLINE)
    assert writer.health() == (True, "1 items wait for the store")
    store.entered.clear()
    store.gate.set()
    assert store.entered.wait(DEADLINE)  # the second try
    receipt.result(timeout=DEADLINE)
    assert writer.flush(timeout_seconds=DEADLINE)
    assert writer.health() == (True, "0 items wait for the store")
    store.failures = 1_000
    writer.offer(batch("b"))
    deadline = time.monotonic() + DEADLINE
    while writer.health()[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert writer.health() == (False, "1 items wait for the store: the store is away")
    store.failures = 0


def test_new_batches_do_not_hurry_the_next_try(
    make: Make, store: FaultyStore, registry: CollectorRegistry
) -> None:
    store.failures = 4  # pauses of 0.05, 0.1, 0.2 and 0.4 seconds
    writer = make()
    writer.start()
    receipt = writer.offer(batch("first"))
    assert store.entered.wait(DEADLINE)
    for number in range(200):
        writer.offer(batch(str(number)))
    assert value(registry, "kvscope_commit_failures_total") <= 2
    assert receipt.result(DEADLINE) == 0


def test_refused_items_are_told_and_counted(
    make: Make, store: FaultyStore, registry: CollectorRegistry
) -> None:
    store.rejected = 2
    writer = make()
    writer.start()
    assert writer.offer(batch("a", "b", "c")).result(DEADLINE) == 2
    assert value(registry, "kvscope_items_rejected_total") == 2
    assert value(registry, "kvscope_items_accepted_total") == 3


def test_stop_writes_what_waits_and_refuses_what_comes(make: Make, store: FaultyStore) -> None:
    writer = make()
    receipts = [writer.offer(batch(str(number))) for number in range(3)]
    writer.start()
    assert writer.stop() == 0
    assert [receipt.result(0) for receipt in receipts] == [0, 0, 0]
    with pytest.raises(RetryableIngestError, match="stopping"):
        writer.offer(batch("late"))
    assert store.ids == ["0", "1", "2"]
    assert writer.stop() == 0


def test_stop_with_the_store_away_tells_the_senders_and_counts(make: Make, store: FaultyStore) -> None:
    store.failures = 1_000_000
    writer = make(drain_seconds=0.2)
    writer.start()
    receipts = [writer.offer(batch("a", "b"))]
    assert store.entered.wait(DEADLINE)
    receipts.append(writer.offer(batch("c")))
    assert writer.stop() == 3
    for receipt in receipts:
        with pytest.raises(RetryableIngestError, match="before the store took"):
            receipt.result(DEADLINE)


def test_stop_without_start_tells_the_senders(make: Make) -> None:
    writer = make()
    receipt = writer.offer(batch("a"))
    assert writer.stop() == 1
    with pytest.raises(RetryableIngestError):
        receipt.result(0)


def test_listeners_hear_of_batches_after_the_commit_and_may_fail(
    make: Make, store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[str, int]] = []
    told = threading.Event()

    def broken(_: Batch) -> None:
        raise RuntimeError("a listener's own fault")

    def listen(one: Batch) -> None:
        heard.append((one.parts[0].request_id, len(store.written)))
        if len(heard) == 2:
            told.set()

    writer = make()
    writer.subscribe(broken)
    writer.subscribe(listen)
    writer.start()
    writer.offer(batch("a")).result(DEADLINE)
    writer.offer(batch("b")).result(DEADLINE)
    assert told.wait(DEADLINE)
    assert heard == [("a", 1), ("b", 2)]
    assert "a listener failed" in caplog.text


async def test_a_sender_that_goes_away_does_not_disturb_the_writer(make: Make, store: FaultyStore) -> None:
    store.gate.clear()
    writer = make()
    writer.start()
    waiting = asyncio.wrap_future(writer.offer(batch("a")))
    waiting.cancel()
    with pytest.raises((CancelledError, asyncio.CancelledError)):
        await waiting
    store.gate.set()
    assert await asyncio.wrap_future(writer.offer(batch("b"))) == 0
    assert store.ids == ["a", "b"]
