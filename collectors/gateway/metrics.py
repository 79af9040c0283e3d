"""The gateway's own metrics, and the guard that lets traffic pass whatever fails beside it."""

import contextlib
import logging
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LOG = logging.getLogger(__name__)
_QUIET_SECONDS = 60.0
_OVERHEAD_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class GatewayMetrics:
    """Counters of the gateway; ``in_flight`` is the number of inference requests inside it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.in_flight = 0
        self.requests = Counter(
            "kvscope_gateway_requests",
            "Inference requests that ended, by status.",
            ["status"],
            registry=registry,
        )
        self.overhead_seconds = Histogram(
            "kvscope_gateway_overhead_seconds",
            "Own work on one request before it is sent and on its first byte.",
            buckets=_OVERHEAD_BUCKETS,
            registry=registry,
        )
        self.lost_records = Counter(
            "kvscope_gateway_lost_records", "Records that the queue would not take.", registry=registry
        )
        self.late = Counter(
            "kvscope_gateway_late",
            "Requests whose first token was foretold to miss their deadline, by what was done.",
            ["action"],
            registry=registry,
        )
        self._fail_open = Counter(
            "kvscope_gateway_fail_open",
            "Failures beside the traffic; the request went on without that part.",
            ["part"],
            registry=registry,
        )
        waiting = Gauge(
            "kvscope_gateway_in_flight", "Inference requests inside the gateway.", registry=registry
        )
        waiting.set_function(lambda: self.in_flight)
        self._told_at: dict[tuple[str, str], float] = {}

    @contextlib.contextmanager
    def fail_open(self, part: str) -> Iterator[None]:
        """Swallow and count what ``part`` raises. Its text is not logged: it may hold a prompt."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the request goes on whatever fails beside it
            self.failed_open(part, type(error).__name__)

    def failed_open(self, part: str, kind: str, times: int = 1) -> None:
        """Count failures of ``part``; each kind is told in the log once a minute at most."""
        self._fail_open.labels(part).inc(times)
        now = time.monotonic()
        if now - self._told_at.get((part, kind), -_QUIET_SECONDS) >= _QUIET_SECONDS:
            self._told_at[part, kind] = now
            _LOG.warning("gateway: %s failed with %s; requests go on without it", part, kind)
