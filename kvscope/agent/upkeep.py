"""The store's own recurring work: rolls up what has ended, removes what is too old."""

import asyncio
import logging
import threading
from collections.abc import Callable

from kvscope.clock import Clock
from kvscope.store.database import Store

_LOG = logging.getLogger(__name__)
_DAY_SECONDS = 86_400.0

Stop = Callable[[], bool]


class Upkeep:
    """Does the work in another thread; ``close`` ends what is under way at its next pause."""

    def __init__(self, store: Store, *, keep_days: float, clock: Clock) -> None:
        self._store = store
        self._keep_seconds = keep_days * _DAY_SECONDS
        self._clock = clock
        self._stopping = threading.Event()
        self._at_work = threading.Lock()

    async def roll_up(self) -> None:
        """Roll up the minutes that have ended, and make room for the days to come.

        Raises ``UnreachableError`` when the store is away.
        """
        await asyncio.to_thread(self._work, self._roll_up)

    async def prune(self) -> None:
        """Remove what is older than is kept; raises ``UnreachableError`` when the store is away."""
        await asyncio.to_thread(self._work, self._prune)

    def close(self) -> None:
        """Return when no transaction of ours is open any more."""
        self._stopping.set()
        with self._at_work:
            return

    def _work(self, work: Callable[[Stop], None]) -> None:
        with self._at_work:
            if not self._stopping.is_set():
                work(self._stopping.is_set)

    def _roll_up(self, stop: Stop) -> None:
        self._store.partitions.make_ahead(self._clock())
        self._store.rollups.refresh(self._clock(), stop=stop)

    def _prune(self, stop: Stop) -> None:
        pruned = self._store.retention.prune(self._clock() - self._keep_seconds, stop=stop)
        if pruned.requests or pruned.spans or pruned.samples:
            _LOG.info(
                "removed %d old requests, %d spans and %d samples",
                pruned.requests,
                pruned.spans,
                pruned.samples,
            )
