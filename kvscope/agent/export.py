"""Sends each finished request whose cached tokens are known to the fleet's own telemetry, over OTLP.

The writer's thread only queues what it committed. One thread joins the parts of a request until it has been
quiet for a while, another sends; both queues are bounded and what finds no place is counted.
"""

import itertools
import logging
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry, Counter, Gauge

from kvscope.agent.export_spans import SENDER, otlp_exporter, span_of
from kvscope.analysis.worker import Worker
from kvscope.clock import Clock
from kvscope.config.settings import ExportSettings
from kvscope.model.merge import merge
from kvscope.model.request import RequestPart, RequestRecord
from kvscope.pipeline.contracts import Batch

_LOG = logging.getLogger(__name__)
_WAITING_BATCHES = 5_000
_REMEMBERED_IDS = 50_000
_SPANS_A_CALL = 512
_LONGEST_PAUSE_SECONDS = 30.0
_TRIES = 10  # of one call; a backend that is away that long, or refuses it, loses these spans
_STOP_SECONDS = 5.0
_LOOK_SECONDS = 0.5

Fate = Callable[[str, int], None]


class Joiner:
    """Joins parts to records; a request is whole once it has ended and no part came for ``wait_seconds``."""

    def __init__(self, *, wait_seconds: float, max_open: int, fate: Fate) -> None:
        self._wait_seconds = wait_seconds
        self._max_open = max_open
        self._fate = fate
        self._open: OrderedDict[str, tuple[RequestRecord, float]] = OrderedDict()  # the quietest first
        self._done: OrderedDict[str, None] = OrderedDict()

    def take(self, parts: Sequence[RequestPart], at: float) -> None:
        """Join ``parts``; those of requests that were handed on are too late."""
        for part in parts:
            if part.request_id in self._done:
                continue
            record = self._open.pop(part.request_id, (None, 0.0))[0]
            self._open[part.request_id] = (merge(record, part), at)
            if len(self._open) > self._max_open:
                self._open.popitem(last=False)
                self._fate("given up", 1)

    def whole(self, at: float, *, all_of_them: bool = False) -> Iterator[RequestRecord]:
        """Hand on the records that are whole by now; at the end, all that have ended."""
        until = math.inf if all_of_them else at - self._wait_seconds
        quiet = itertools.takewhile(lambda item: item[1][1] <= until, self._open.items())
        for request_id, (record, _) in [item for item in quiet if _ended(item[1][0])]:
            del self._open[request_id]
            self._done[request_id] = None
            if len(self._done) > _REMEMBERED_IDS:
                self._done.popitem(last=False)
            if record.prompt_tokens is None or record.cached_tokens is None:
                self._fate("cached tokens unknown", 1)
            else:
                yield record


def _ended(record: RequestRecord) -> bool:
    return record.status is not None or record.e2e_seconds is not None


class Exporter:
    """Exports finished requests; ``on_committed`` returns at once and never raises."""

    def __init__(
        self,
        settings: ExportSettings,
        *,
        clock: Clock,
        registry: CollectorRegistry,
        exporter: SpanExporter | None = None,
        note: Callable[[RequestRecord], None] = lambda _: None,
    ) -> None:
        """Hand each record whose span is made to ``note`` as well."""
        self._settings = settings
        self._clock = clock
        self._exporter = exporter
        self._note = note
        self._spans = Counter(
            "kvscope_export_spans",
            "Finished requests by what became of their span.",
            ["fate"],
            registry=registry,
        )
        self._parts_dropped = Counter(
            "kvscope_export_parts_dropped",
            "Parts of requests that were not joined for export: the queue was full.",
            registry=registry,
        )
        self._failures = Counter(
            "kvscope_export_failures", "Calls that the telemetry backend did not take.", registry=registry
        )
        self._joiner = Joiner(
            wait_seconds=settings.wait_seconds, max_open=settings.open_requests, fate=self._fate
        )
        self._worker = Worker[Sequence[RequestPart]](
            self._join, lambda _: None, name="kvscope-export", max_items=_WAITING_BATCHES
        )
        self._waiting: deque[ReadableSpan] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._sender = threading.Thread(target=self._send_all, name=SENDER, daemon=True)
        self._looked_at = 0.0
        self._sent = 0
        self._problem = False
        waiting = Gauge("kvscope_export_queue_spans", "Spans that wait to be sent.", registry=registry)
        waiting.set_function(lambda: len(self._waiting))

    def start(self) -> None:
        """Begin; does nothing where no endpoint is named."""
        if self._settings.endpoint is None:
            return
        if self._exporter is None:
            self._exporter = otlp_exporter(
                self._settings.endpoint, timeout_seconds=self._settings.timeout_seconds
            )
        self._worker.start()
        self._sender.start()

    def stop(self) -> None:
        """Send what has ended, for some seconds at most, and end; safe without start and twice."""
        self._worker.stop(timeout_seconds=_STOP_SECONDS)
        if self._sender.ident is None or self._exporter is None:
            return
        self._hand_on(all_of_them=True)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._sender.join(timeout=_STOP_SECONDS)
        self._exporter.shutdown()
        self._fate("dropped", len(self._waiting))

    def on_committed(self, batch: Batch) -> None:
        """Queue the parts of a committed batch."""
        if batch.parts and self._settings.endpoint is not None and not self._worker.put(batch.parts):
            self._parts_dropped.inc(len(batch.parts))

    def health(self) -> tuple[bool, str]:
        """Return true and how it goes: that a backend is away is no reason to take traffic elsewhere."""
        if self._settings.endpoint is None:
            return True, "not configured"
        trouble = "; the last call failed" if self._problem else ""
        return True, f"{self._sent} spans sent to {self._settings.endpoint}{trouble}"

    def _fate(self, fate: str, spans: int) -> None:
        self._spans.labels(fate).inc(spans)

    def _join(self, parts: Sequence[RequestPart] | None) -> None:
        now = self._clock()
        if parts is not None:
            self._joiner.take(parts, now)
        if abs(now - self._looked_at) >= _LOOK_SECONDS:
            self._looked_at = now
            self._hand_on()

    def _hand_on(self, *, all_of_them: bool = False) -> None:
        now = self._clock()
        records = list(self._joiner.whole(now, all_of_them=all_of_them))
        for record in records:
            self._note(record)
        spans = [span_of(record, now=now) for record in records]
        if not spans:
            return
        with self._changed:
            self._waiting.extend(spans)
            dropped = max(len(self._waiting) - self._settings.queue_spans, 0)
            for _ in range(dropped):
                self._waiting.popleft()
            self._changed.notify_all()
        if dropped:
            self._fate("dropped", dropped)

    def _send_all(self) -> None:
        while spans := self._take():
            self._send(spans)

    def _take(self) -> list[ReadableSpan]:
        """Return the next spans to send, or none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _SPANS_A_CALL))]

    def _send(self, spans: Sequence[ReadableSpan]) -> None:
        """Send ``spans``, again and again with growing pauses while the backend does not take them."""
        pause = 1.0
        for _ in range(_TRIES):
            if self._is_taken(spans):
                self._fate("sent", len(spans))
                self._sent += len(spans)
                return
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, timeout=pause)
                if self._stopping:
                    break
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        self._fate("failed", len(spans))

    def _is_taken(self, spans: Sequence[ReadableSpan]) -> bool:
        if self._exporter is None:
            return False
        try:
            taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises, the next call may go well
            _LOG.debug("the exporter raised %s", type(error).__name__)
            taken = False
        if not taken:
            self._failures.inc()
            if not self._problem:
                _LOG.warning("%s does not take spans; they wait, bounded", self._settings.endpoint)
        self._problem = not taken
        return taken
