"""The bounded queue and the one writer thread in front of the store.

The writer takes everything that waits (to a cap) and commits it in one transaction, so batches merge
when it is busy and commit at once when it is idle; there is no interval to tune. Receipts resolve after
the commit.

While the store fails or hangs, another thread puts what waits on disk and resolves its receipts then. What is
on disk is older than what waits in memory, so the writer takes it first.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import BaseModel, ConfigDict, Field

from kvscope.errors import RetryableIngestError
from kvscope.pipeline.contracts import Batch, BatchStore, Receipt
from kvscope.pipeline.spool import Backlog, Spool

_LOG = logging.getLogger(__name__)
_ITEMS_PER_COMMIT = 5_000
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_LAST_WRITE_SECONDS = 1.0  # for a try that began just before the drain time ended
_LOOK_SECONDS = 0.2  # between two looks for a store that fails or hangs


class _Queued(NamedTuple):
    batch: Batch
    receipt: Receipt
    since: float  # monotonic seconds
    copy: int | None  # what the spool settles its copy by


class WriterSettings(BaseModel):
    """Settings of the queue in front of the store."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue_items: int = Field(
        100_000,
        gt=0,
        description="Items that may wait for the store; twice as many of those that no sender sends again.",
    )
    drain_seconds: float = Field(
        10.0, ge=0, description="Seconds that shutdown waits for the queue to be written."
    )


class Writer:
    """Queues batches and writes them from one thread; ``offer`` may be called from any thread."""

    def __init__(
        self,
        store: BatchStore,
        settings: WriterSettings,
        registry: CollectorRegistry,
        *,
        spool: Spool | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._spool = spool
        self._queue: deque[_Queued] = deque()
        self._in_flight: list[_Queued] = []  # being written; whoever empties it answers for it
        self._items = 0
        self._refused_items = 0
        self._stopping = False
        self._spilling = False  # between the queue and the disk
        self._fault: str | None = None  # why the last commit failed
        self._began_at: float | None = None  # monotonic seconds: the write that is under way
        self._give_up_at = 0.0  # monotonic seconds
        self._ready = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="kvscope-writer", daemon=True)
        self._ended = threading.Event()
        self._spiller = threading.Thread(target=self._spill_late, name="kvscope-spool", daemon=True)
        self._listeners: list[Callable[[Batch], None]] = []
        self._telling = threading.Lock()
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
        """Call ``listener`` with each batch once it is safe, from one thread at a time."""
        self._listeners.append(listener)

    def health(self) -> tuple[bool, str]:
        """Return whether the last commit went well, how much waits, and how much was refused."""
        state = f"{self._items} items wait for the store"
        if self._spool is not None and (on_disk := self._spool.items):
            state += f", {on_disk} more on disk"
        if self._refused_items:
            state += f", {self._refused_items} were refused since the start"
        return (True, state) if self._fault is None else (False, f"{state}: {self._fault}")

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()
        if self._spool is not None:
            self._spiller.start()

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
            room = self._settings.queue_items * (2 if batch.only_copy else 1)
            if self._items + size > room and self._items:
                self._refused.inc(size)
                self._refused_items += size
                raise RetryableIngestError(f"the queue is full ({self._items} items wait)")
            copy = self._spool.keep(batch) if batch.only_copy and self._spool is not None else None
            self._queue.append(_Queued(batch, receipt, time.monotonic(), copy))
            self._items += size
            self._ready.notify()
        self._accepted.inc(size)
        return receipt

    def flush(self, *, timeout_seconds: float) -> bool:
        """Wait until all that was offered is safe and told; False when that takes too long."""
        with self._ready:
            return self._ready.wait_for(lambda: self._items == 0, timeout=timeout_seconds)

    def stop(self) -> int:
        """Refuse new batches, write what waits, and return how many items went neither there nor to disk."""
        with self._ready:
            self._stopping = True
            self._give_up_at = time.monotonic() + self._settings.drain_seconds
            self._ready.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._settings.drain_seconds + _LAST_WRITE_SECONDS)
        self._ended.set()
        if self._spiller.ident is not None:
            self._spiller.join()
        while self._spool is not None and self._spill(self._spool):
            pass
        if not self._thread.is_alive():
            self._abandon()
        with self._ready:
            return self._items

    def _run(self) -> None:
        while True:
            if (backlog := self._backlog()) is not None:
                if not self._write_backlog(backlog):
                    return
                continue
            taken = self._take()
            if taken is not None and (not taken or not self._write(taken)):
                return

    def _take(self) -> list[_Queued] | None:
        """Return what is written next, nothing at the end, and None where the disk has older data by now."""
        with self._ready:
            self._ready.wait_for(lambda: (self._queue or self._stopping) and not self._spilling)
            if self._spool is not None and self._spool.items:
                return None
            taken: list[_Queued] = []
            items = 0
            while self._queue and items < _ITEMS_PER_COMMIT:
                taken.append(self._queue.popleft())
                items += len(taken[-1].batch)
            self._in_flight = taken
            return taken

    def _write(self, taken: list[_Queued]) -> bool:
        """Commit ``taken``, unless it goes to disk first; False when there is no more time for it."""
        rejected = self._commit([queued.batch for queued in taken], taken)
        with self._ready:
            if self._in_flight is not taken:
                return True  # the spool has it
            if rejected is None:
                return False
            self._in_flight = []
        self._settle(taken, rejected)
        return True

    def _backlog(self) -> Backlog | None:
        return None if self._spool is None else self._spool.backlog(max_items=_ITEMS_PER_COMMIT)

    def _write_backlog(self, backlog: Backlog) -> bool:
        """Commit what is on disk; False when there is no more time for it, and it stays there."""
        if self._stopping and time.monotonic() > self._give_up_at:
            return False
        if backlog.batches and self._commit(backlog.batches) is None:
            return False
        for batch in backlog.batches if backlog.foreign else ():
            self._tell(batch)
        if self._spool is not None:
            self._spool.done(backlog)
        return True

    def _commit(self, batches: Sequence[Batch], held: list[_Queued] | None = None) -> int | None:
        """Write ``batches``, trying again until the store is back.

        None when there is no more time, or when the spool took over what is ``held`` in memory.
        """
        pause = _FIRST_PAUSE_SECONDS
        while True:
            self._began_at = time.monotonic()
            try:
                with self._commit_seconds.time():
                    rejected = self._store.write(batches)
            except Exception as error:  # noqa: BLE001 - whatever the driver raises, the data waits
                self._failures.inc()
                self._fault = str(error) or type(error).__name__
                _LOG.warning("the store did not take %d batches: %s", len(batches), error)
            else:
                self._fault = None
                self._rejected.inc(rejected)
                return rejected
            finally:
                self._began_at = None
            if not self._pause(pause) or (held is not None and self._in_flight is not held):
                return None
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _settle(self, queued: Sequence[_Queued], rejected: int) -> None:
        """Tell senders and listeners that a batch is safe."""
        for one in queued:
            one.receipt.set_result(rejected)
        if self._spool is not None:
            self._spool.settle(one.copy for one in queued if one.copy is not None)
        for one in queued:
            self._tell(one.batch)
        with self._ready:
            self._items -= sum(len(one.batch) for one in queued)
            self._ready.notify_all()

    def _spill_late(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            while self._spool is not None and self._is_late(self._spool) and self._spill(self._spool):
                pass

    def _is_late(self, spool: Spool) -> bool:
        """Tell whether the store fails, hangs, or is kept busy by what is on disk."""
        until = time.monotonic() - spool.after_seconds
        if self._fault is not None or (self._began_at or math.inf) < until:
            return True
        with self._ready:
            return bool(spool.items and self._queue and self._queue[0].since < until)

    def _spill(self, spool: Spool) -> bool:
        """Put the oldest of what waits on disk; False when nothing waits or the disk takes nothing."""
        with self._ready:
            self._spilling = True
            in_flight = self._in_flight
            taken = list(in_flight)
            items = sum(len(one.batch) for one in taken)
            while self._queue and items < _ITEMS_PER_COMMIT:
                taken.append(self._queue.popleft())
                items += len(taken[-1].batch)
        waited = taken[len(in_flight) :]
        spilled = bool(taken) and spool.put([one.batch for one in taken])
        with self._ready:
            self._spilling = False
            self._ready.notify_all()
            if not spilled:
                self._queue.extendleft(reversed(waited))
                return False
            if in_flight and self._in_flight is in_flight:
                self._in_flight = []
            else:  # the store took it meanwhile; that it is on disk as well changes nothing
                taken = waited
        self._settle(taken, 0)
        return True

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try, less long when stopping begins; False when there shall be none."""
        with self._ready:
            if not self._stopping:
                self._ready.wait_for(lambda: self._stopping, timeout=seconds)
                return True
            left = self._give_up_at - time.monotonic()
            if left <= 0 or self._spool is not None:
                return False
            self._ready.wait(timeout=min(seconds, left))
            return True

    def _abandon(self) -> None:
        """Tell the senders of what was not written that they may send it again."""
        with self._ready:
            abandoned = [*self._in_flight, *self._queue]
            self._in_flight = []
            self._queue.clear()
        for one in abandoned:
            one.receipt.set_exception(
                RetryableIngestError("the agent stopped before the store took the data")
            )

    def _tell(self, batch: Batch) -> None:
        with self._telling:
            for listener in self._listeners:
                try:
                    listener(batch)
                except Exception:  # noqa: BLE001 - a listener's fault must not end the thread that tells
                    _LOG.exception("a listener failed on a batch")
