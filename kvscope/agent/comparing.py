"""Shows in the agent's metrics how far engines' counters and the records are apart, and likely why."""

import asyncio

from prometheus_client import CollectorRegistry, Gauge

from kvscope.reports.disagreement import Why, reasons
from kvscope.reports.sums import engine_sums
from kvscope.store.database import Store


class Comparing:
    """Compares now and then; while requests are under way the two differ by theirs."""

    def __init__(self, store: Store, registry: CollectorRegistry) -> None:
        self._store = store
        self._difference = Gauge(
            "kvscope_sums_difference_tokens",
            "Cached tokens that the engine counted beyond those of the records, since its counters began.",
            ["engine"],
            registry=registry,
        )
        self._unknown = Gauge(
            "kvscope_sums_unknown_requests",
            "Requests of the same time whose cached tokens no source told.",
            ["engine"],
            registry=registry,
        )
        self._reasons = Gauge(
            "kvscope_sums_likely_reason",
            "1 for each likely reason of the difference.",
            ["engine", "reason"],
            registry=registry,
        )

    async def compare(self) -> None:
        """Compare each engine's counters; raises ``UnreachableError`` when the store is away."""
        await asyncio.to_thread(self._compare)

    def _compare(self) -> None:
        for line in engine_sums(self._store):
            self._difference.labels(line.engine).set(line.difference_tokens)
            self._unknown.labels(line.engine).set(line.unknown_requests)
            likely = {reason.why for reason in reasons(self._store, line)}
            for why in Why:
                self._reasons.labels(line.engine, why.value).set(why in likely)
