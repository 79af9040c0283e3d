"""kvscope's own counters of the event streams."""

from prometheus_client import CollectorRegistry, Counter

from collectors.kv_events.decode import DecodedBatch


class EventMetrics:
    """Counts batches and events by engine and by what became of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._batches = Counter(
            "kvscope_kv_event_batches",
            "Batches of cache events by what became of them.",
            ["engine", "fate"],
            registry=registry,
        )
        self._events = Counter(
            "kvscope_kv_events", "Cache events by what became of them.", ["engine", "fate"], registry=registry
        )
        self._breaks = Counter(
            "kvscope_kv_event_breaks",
            "Gaps, engine restarts and listener failures in a stream of cache events.",
            ["engine", "kind"],
            registry=registry,
        )

    def taken(self, engine: str, batch: DecodedBatch) -> None:
        """Count a batch that was handed on, and its events."""
        self._batches.labels(engine, "taken").inc()
        self._events.labels(engine, "taken").inc(batch.taken)
        self._events.labels(engine, "unknown type").inc(batch.skipped)
        self._events.labels(engine, "malformed").inc(batch.malformed)

    def replayed(self, engine: str) -> None:
        """Count a batch that came by replay; it is also counted as taken."""
        self._batches.labels(engine, "replayed").inc()

    def malformed(self, engine: str) -> None:
        """Count a message that is no batch."""
        self._batches.labels(engine, "malformed").inc()

    def lost(self, engine: str, batches: int) -> None:
        """Count batches that nobody has any more."""
        self._batches.labels(engine, "lost").inc(batches)

    def gap(self, engine: str) -> None:
        """Count a jump in the sequence."""
        self._breaks.labels(engine, "gap").inc()

    def restart(self, engine: str) -> None:
        """Count an engine that began again."""
        self._breaks.labels(engine, "restart").inc()

    def listener_failed(self, engine: str) -> None:
        """Count a batch that a listener could not take."""
        self._breaks.labels(engine, "listener failed").inc()
