"""Removes what is older than the settings keep, a little at a time."""

import asyncio
import logging
import threading

from kvscope.clock import Clock
from kvscope.store.retention import Retention

_LOG = logging.getLogger(__name__)
_DAY_SECONDS = 86_400.0


class Pruner:
    """Prunes the store when told to; ``close`` ends what is under way at its next pause."""

    def __init__(self, retention: Retention, *, days: float, clock: Clock) -> None:
        self._retention = retention
        self._keep_seconds = days * _DAY_SECONDS
        self._clock = clock
        self._stopping = threading.Event()
        self._at_work = threading.Lock()

    async def prune(self) -> None:
        """Remove what is too old; raises ``UnreachableError`` when the store is away."""
        await asyncio.to_thread(self._prune)

    def _prune(self) -> None:
        with self._at_work:
            if self._stopping.is_set():
                return
            before_at = self._clock() - self._keep_seconds
            pruned = self._retention.prune(before_at, stop=self._stopping.is_set)
        if pruned.requests or pruned.spans or pruned.samples:
            _LOG.info(
                "removed %d old requests, %d spans and %d samples",
                pruned.requests,
                pruned.spans,
                pruned.samples,
            )

    def close(self) -> None:
        """Return when no transaction of ours is open any more."""
        self._stopping.set()
        with self._at_work:
            return
