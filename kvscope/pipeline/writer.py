"""The bounded queue and the one writer thread in front of the store.

The writer takes everything that waits (to a cap) and commits it in one transaction, so batches merge
when it is busy and commit at once when it is idle; there is no interval to tune. Receipts resolve after
the commit.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import BaseModel, ConfigDict, Field

from kvscope.errors import RetryableIngestError
from kvscope.pipeline.contracts import Batch, BatchStore, Receipt

_LOG = logging.getLogger(__name__)
_ITEMS_PER_COMMIT = 5_000
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_LAST_WRITE_SECONDS = 1.0  # for a try that began just before the drain time ended

_Queued = tuple[Batch, Receipt]


class WriterSettings(BaseModel):
    """Settings of the queue in front of the store."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue_items: int = Field(100_000, gt=0, description="Items that may wait for the store.")
    drain_seconds: float = Field(
        10.0, ge=0, description="Seconds that shutdown waits for the queue to be written."
    )


class Writer:
    """Queues batches and writes them from one thread; ``offer`` may be called from any thread."""

    def __init__(self, store: BatchStore, settings: WriterSettings, registry: CollectorRegistry) -> None:
        self._store = store
        self._settings = settings
        self._queue: deque[_Queued] = deque()
        self._items = 0
        self._stopping = False
        self._fault: str | None = None  # why the last commit failed
        self._give_up_at = 0.0  # monotonic seconds
        self._ready = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="kvscope-writer", daemon=True)
        self._listeners: list[Callable[[Batch], None]] = []
        self._accepted = Counter("kvscope_items_accepted", "Items queued.", registry=registry)
        self._refused = Counter("kvscope_items_refused", "Items refused: queue full.", registry=registry)
        self._rejected = Counter(
            "kvscope_items_rejected", "Items that the store would not take.", registry=registry
        )
        self._failures = Counter(
            "kvscope_commit_failures",
            "Commits that failed and were tried again.",
            registry=registry,
        )
        self._commit_seconds = Histogram("kvscope_commit_seconds", "Time of one commit.", registry=registry)
        waiting = Gauge("kvscope_queue_items", "Items that wait for the store.", registry=registry)
        waiting.set_function(lambda: self._items)

    def subscribe(self, listener: Callable[[Batch], None]) -> None:
        """Call ``listener`` with each batch after its commit, from the writer's thread."""
        self._listeners.append(listener)

    def health(self) -> tuple[bool, str]:
        """Return whether the last commit went well, and how much waits."""
        waiting = f"{self._items} items wait for the store"
        return (True, waiting) if self._fault is None else (False, f"{waiting}: {self._fault}")

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def offer(self, batch: Batch) -> Receipt:
        """Queue ``batch``; raises ``RetryableIngestError`` when full or stopping."""
        receipt: Receipt = Future()
        receipt.set_running_or_notify_cancel()  # a sender that goes away cannot take back what is queued
        size = len(batch)
        if size == 0:
            receipt.set_result(0)
            return receipt
        with self._ready:
            if self._stopping:
                raise RetryableIngestError("the agent is stopping")
            if self._items + size > self._settings.queue_items and self._items:
                self._refused.inc(size)
                raise RetryableIngestError(f"the queue is full ({self._items} items wait)")
            self._queue.append((batch, receipt))
            self._items += size
            self._ready.notify()
        self._accepted.inc(size)
        return receipt

    def flush(self, *, timeout_seconds: float) -> bool:
        """Wait until all that was offered is committed and told; False when that takes too long."""
        with self._ready:
            return self._ready.wait_for(lambda: self._items == 0, timeout=timeout_seconds)

    def stop(self) -> int:
        """Refuse new batches, write what waits, and return how many items could not be written."""
        with self._ready:
            self._stopping = True
            self._give_up_at = time.monotonic() + self._settings.drain_seconds
            self._ready.notify_all()
        if self._thread.ident is None:
            self._abandon([])
        else:
            self._thread.join(timeout=self._settings.drain_seconds + _LAST_WRITE_SECONDS)
        with self._ready:
            return self._items

    def _run(self) -> None:
        while taken := self._take():
            if not self._write(taken):
                self._abandon(taken)
                return

    def _take(self) -> list[_Queued]:
        with self._ready:
            self._ready.wait_for(lambda: self._queue or self._stopping)
            taken: list[_Queued] = []
            items = 0
            while self._queue and items < _ITEMS_PER_COMMIT:
                taken.append(self._queue.popleft())
                items += len(taken[-1][0])
            return taken

    def _write(self, taken: list[_Queued]) -> bool:
        """Commit ``taken``, trying again until the store is back; False when there is no more time for it."""
        batches = [batch for batch, _ in taken]
        pause = _FIRST_PAUSE_SECONDS
        rejected: int | None = None
        while rejected is None:
            try:
                with self._commit_seconds.time():
                    rejected = self._store.write(batches)
            except Exception as error:  # noqa: BLE001 - whatever the driver raises, the data waits
                self._failures.inc()
                self._fault = str(error) or type(error).__name__
                _LOG.warning("the store did not take %d batches: %s", len(batches), error)
                if not self._pause(pause):
                    return False
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        self._fault = None
        self._rejected.inc(rejected)
        for _, receipt in taken:
            receipt.set_result(rejected)
        for batch in batches:
            self._tell(batch)
        with self._ready:
            self._items -= sum(len(batch) for batch in batches)
            self._ready.notify_all()
        return True

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try, less long when stopping begins; False when there shall be none."""
        with self._ready:
            if not self._stopping:
                self._ready.wait_for(lambda: self._stopping, timeout=seconds)
                return True
            left = self._give_up_at - time.monotonic()
            if left <= 0:
                return False
            self._ready.wait(timeout=min(seconds, left))
            return True

    def _abandon(self, taken: list[_Queued]) -> None:
        """Tell the senders of what was not written that they may send it again."""
        with self._ready:
            abandoned = [*taken, *self._queue]
            self._queue.clear()
        for _, receipt in abandoned:
            receipt.set_exception(RetryableIngestError("the agent stopped before the store took the data"))

    def _tell(self, batch: Batch) -> None:
        for listener in self._listeners:
            try:
                listener(batch)
            except Exception:  # noqa: BLE001 - a listener's fault must not end the thread that writes
                _LOG.exception("a listener failed on a committed batch")
