"""Metrics over OTLP: kvscope's own, and what finished requests tell of the cache, by model, route and engine.

Requests are measured under the names of OpenTelemetry's GenAI conventions where those have one, else under
``kvscope.``. All sums begin with the agent's start, as on its ``/metrics`` page.
"""

import logging
import math
import threading
from collections.abc import Iterator, Sequence

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from kvscope.agent.export_spans import METRICS_SENDER, RESOURCE, SCOPE, attribute_text, metric_exporter
from kvscope.clock import Clock
from kvscope.config.settings import ExportSettings
from kvscope.model.request import RequestRecord

_LOG = logging.getLogger(__name__)
_NANOSECONDS = 1e9
_CUMULATIVE = AggregationTemporality.CUMULATIVE
_NOT_ATTRIBUTES = frozenset({"le", "quantile"})
# of the GenAI conventions (November 2026)
_DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)
_NEXT_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKEN_BUCKETS = tuple(float(4**power) for power in range(14))


class RequestMeasures:
    """Counts finished requests as the SDK's own instruments do."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        provider = MeterProvider(metric_readers=[self._reader], resource=RESOURCE, shutdown_on_exit=False)
        meter = provider.get_meter(SCOPE.name, SCOPE.version)
        self._requests = meter.create_counter("kvscope.requests", "{request}", "Finished requests.")
        self._prompt = meter.create_counter(
            "kvscope.prompt_tokens", "{token}", "Prompt tokens of finished requests."
        )
        self._cached = meter.create_counter(
            "kvscope.cached_tokens", "{token}", "Prompt tokens that were prefix hits."
        )
        self._missed = meter.create_counter(
            "kvscope.missed_tokens", "{token}", "Prompt tokens that were not, by miss cause."
        )
        self._usage = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Tokens of a request, input and output.",
            explicit_bucket_boundaries_advisory=_TOKEN_BUCKETS,
        )
        timed = (
            ("e2e_seconds", "request.duration", "Time of a request in the engine.", _DURATION_BUCKETS),
            ("ttft_seconds", "time_to_first_token", "Arrival to first token.", _FIRST_TOKEN_BUCKETS),
            ("tpot_seconds", "time_per_output_token", "Time of a token after it.", _NEXT_TOKEN_BUCKETS),
        )
        self._times = {
            field: meter.create_histogram(
                f"gen_ai.server.{name}", "s", text, explicit_bucket_boundaries_advisory=buckets
            )
            for field, name, text, buckets in timed
        }

    def note(self, record: RequestRecord) -> None:
        """Count one request whose prompt and cached tokens are known."""
        named = {
            "gen_ai.request.model": record.model,
            "kvscope.route": record.route,
            "kvscope.engine": record.engine,
        }
        of = {name: attribute_text(value) for name, value in named.items() if value is not None}
        self._requests.add(1, of)
        self._prompt.add(record.prompt_tokens or 0, of)
        self._cached.add(record.cached_tokens or 0, of)
        for cause, tokens in (record.causes or {}).items():
            self._missed.add(tokens, {**of, "kvscope.miss.cause": str(cause)})
        for kind, count in (("input", record.prompt_tokens), ("output", record.output_tokens)):
            if count is not None:
                self._usage.record(count, {**of, "gen_ai.token.type": kind})
        for field, histogram in self._times.items():
            if (seconds := getattr(record, field)) is not None:
                histogram.record(seconds, of)

    def collect(self) -> Sequence[Metric]:
        """Return all sums so far."""
        data = self._reader.get_metrics_data()
        if data is None:
            return ()
        return [
            metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]


class MetricsSender:
    """Sends all metrics every so often, from a thread of its own; a backend that is away is told of once."""

    def __init__(
        self,
        settings: ExportSettings,
        *,
        measures: RequestMeasures,
        clock: Clock,
        registry: CollectorRegistry,
        exporter: MetricExporter | None = None,
    ) -> None:
        self._settings = settings
        self._measures = measures
        self._clock = clock
        self._registry = registry
        self._exporter = exporter
        self._started_at = clock()
        self._problem = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=METRICS_SENDER, daemon=True)
        self._failures = Counter(
            "kvscope_export_metric_failures",
            "Exports of metrics that the telemetry backend did not take.",
            registry=registry,
        )

    def start(self) -> None:
        """Begin; does nothing where no endpoint or no interval is set."""
        if self._settings.endpoint is None or not self._settings.metrics_seconds:
            return
        if self._exporter is None:
            self._exporter = metric_exporter(
                self._settings.endpoint, timeout_seconds=self._settings.timeout_seconds
            )
        self._thread.start()

    def stop(self) -> None:
        """Send a last time and end; safe without start and twice."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._settings.timeout_seconds * 2)

    def _run(self) -> None:
        while self._exporter is not None:
            last = self._stopping.wait(self._settings.metrics_seconds)
            self._send(self._exporter)
            if last:
                self._exporter.shutdown()
                return

    def _send(self, exporter: MetricExporter) -> None:
        taken = self._is_taken(exporter)
        if not taken:
            self._failures.inc()
            if not self._problem:
                _LOG.warning("%s does not take metrics; they are sent again", self._settings.endpoint)
        self._problem = not taken

    def _is_taken(self, exporter: MetricExporter) -> bool:
        now = self._clock()
        metrics = [*own_metrics(self._registry, since=self._started_at, at=now), *self._measures.collect()]
        scope = ScopeMetrics(scope=SCOPE, metrics=metrics, schema_url="")
        resource = ResourceMetrics(resource=RESOURCE, scope_metrics=[scope], schema_url="")
        try:
            result = exporter.export(
                MetricsData(resource_metrics=[resource]),
                timeout_millis=self._settings.timeout_seconds * 1_000,
            )
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises, the next call may go well
            _LOG.debug("the exporter raised %s", type(error).__name__)
            return False
        return result is MetricExportResult.SUCCESS


def own_metrics(registry: CollectorRegistry, *, since: float, at: float) -> Iterator[Metric]:
    """Yield the metrics of ``registry`` as OTLP knows them; times are Unix seconds."""
    times = round(since * _NANOSECONDS), round(at * _NANOSECONDS)
    for family in registry.collect():
        if family.type == "histogram":
            histogram = Histogram(
                data_points=list(_histogram_points(family, times)), aggregation_temporality=_CUMULATIVE
            )
            yield _metric(family, histogram)
        elif family.type == "counter":
            points = [_number(sample, times) for sample in family.samples if sample.name.endswith("_total")]
            counted = Sum(data_points=points, aggregation_temporality=_CUMULATIVE, is_monotonic=True)
            yield _metric(family, counted)
        elif family.type == "gauge":
            yield _metric(family, Gauge(data_points=[_number(sample, times) for sample in family.samples]))


def _metric(family: Family, data: Sum | Gauge | Histogram) -> Metric:
    unit = "s" if family.name.endswith("_seconds") else "By" if family.name.endswith("_bytes") else "1"
    return Metric(name=family.name, description=family.documentation, unit=unit, data=data)


def _number(sample: Sample, times: tuple[int, int]) -> NumberDataPoint:
    return NumberDataPoint(
        attributes=dict(sample.labels),
        start_time_unix_nano=times[0],
        time_unix_nano=times[1],
        value=sample.value,
    )


def _histogram_points(family: Family, times: tuple[int, int]) -> Iterator[HistogramDataPoint]:
    """Yield a point for each set of labels: Prometheus' buckets hold all below them, OTLP's their own."""
    by_labels: dict[tuple[tuple[str, str], ...], dict[str, list[Sample]]] = {}
    for sample in family.samples:
        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in _NOT_ATTRIBUTES))
        kind = sample.name.removeprefix(family.name)
        by_labels.setdefault(labels, {}).setdefault(kind, []).append(sample)
    for labels, kinds in by_labels.items():
        buckets = sorted((float(one.labels["le"]), int(one.value)) for one in kinds["_bucket"])
        counts = [count for _, count in buckets]
        own = [count - before for before, count in zip([0, *counts[:-1]], counts, strict=True)]
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=times[0],
            time_unix_nano=times[1],
            count=counts[-1],
            sum=kinds["_sum"][0].value,
            bucket_counts=own,
            explicit_bounds=[bound for bound, _ in buckets if math.isfinite(bound)],
            # Prometheus keeps neither; None leaves both out of the message
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
        )
