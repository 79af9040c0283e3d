"""The gateway's own metrics, and the guard that lets traffic pass whatever fails beside it."""

import logging
import time
from types import TracebackType

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
        self.left_as_sent = Counter(
            "kvscope_gateway_left_as_sent",
            "Requests that a change or an experiment would have been for, but for their API.",
            ["api"],
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
        self._guards: dict[str, _FailOpen] = {}

    def fail_open(self, part: str) -> "_FailOpen":
        """Swallow and count what ``part`` raises. Its text is not logged: it may hold a prompt."""
        guard = self._guards.get(part)
        if guard is None:
            guard = self._guards[part] = _FailOpen(self, part)
        return guard

    def failed_open(self, part: str, kind: str, times: int = 1) -> None:
        """Count failures of ``part``; each kind is told in the log once a minute at most."""
        self._fail_open.labels(part).inc(times)
        now = time.monotonic()
        if now - self._told_at.get((part, kind), -_QUIET_SECONDS) >= _QUIET_SECONDS:
            self._told_at[part, kind] = now
            _LOG.warning("gateway: %s failed with %s; requests go on without it", part, kind)


class _FailOpen:
    """Lets a request go on whatever is raised inside it; one for each part, as it holds no state."""

    __slots__ = ("_metrics", "_part")

    def __init__(self, metrics: GatewayMetrics, part: str) -> None:
        self._metrics = metrics
        self._part = part

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._metrics.failed_open(self._part, type(error).__name__)
        return True
