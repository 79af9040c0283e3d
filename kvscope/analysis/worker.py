"""A bounded queue and the one thread that works it off."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_LOG = logging.getLogger(__name__)
_TICK_SECONDS = 1.0

Item = TypeVar("Item")


class Worker(Generic[Item]):
    """Hands items to ``work`` in the order in which they were put, one at a time.

    ``work`` is called with None at least once a second while nothing comes. What it raises is handed to
    ``failed`` and ends nothing.
    """

    def __init__(
        self,
        work: Callable[[Item | None], None],
        failed: Callable[[Exception], None],
        *,
        name: str,
        max_items: int,
    ) -> None:
        self._work = work
        self._failed = failed
        self._max_items = max_items
        self._queue: deque[Item] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __len__(self) -> int:
        """Return the number of items that wait."""
        return len(self._queue)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def put(self, item: Item) -> bool:
        """Queue an item from any thread; False when the queue is full or the worker is stopping."""
        with self._changed:
            if self._stopping or len(self._queue) >= self._max_items:
                return False
            self._queue.append(item)
            self._changed.notify_all()
            return True

    def drain(self, *, timeout_seconds: float) -> bool:
        """Wait until all items are worked off; False when that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, timeout=timeout_seconds)

    def stop(self, *, timeout_seconds: float) -> None:
        """Take nothing more, work off what waits for at most that long, end; safe without start and twice."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout=timeout_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._stopping, timeout=_TICK_SECONDS)
                if self._stopping and not self._queue:
                    return
                item = self._queue.popleft() if self._queue else None
                self._busy = True
            try:
                self._work(item)
            except Exception as error:  # noqa: BLE001 - the supervisor: a fault costs this item, not the thread
                _LOG.warning("%s: one item failed: %s: %s", self._thread.name, type(error).__name__, error)
                self._failed(error)
