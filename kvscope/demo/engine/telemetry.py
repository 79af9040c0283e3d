"""What the built-in engine tells of itself: vLLM's metric names, and its `llm_request` spans over OTLP."""

from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from kvscope.clock import Clock
from kvscope.demo.engine.core import EngineCore, Run
from kvscope.demo.engine.settings import FINGERPRINT, EngineSettings

_LABELS = ("engine", "model_name")
_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class EngineMetrics:
    """The metrics of one engine in a registry of their own."""

    def __init__(self, settings: EngineSettings, core: EngineCore) -> None:
        self.registry = CollectorRegistry()
        self._values = {"engine": "0", "model_name": settings.model}
        ProcessCollector(registry=self.registry)
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found.")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self._generated = self._counter("generation_tokens", "Generated tokens.")
        self._preemptions = self._counter("num_preemptions", "Preemptions.")
        self._success = Counter(
            "vllm:request_success",
            "Finished requests.",
            [*_LABELS, "finished_reason"],
            registry=self.registry,
        )
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.")
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.")
        self._queue = self._histogram("request_queue_time_seconds", "Queued to scheduled.")
        self._prefill = self._histogram("request_prefill_time_seconds", "Scheduled to first token.")
        self._decode = self._histogram("request_decode_time_seconds", "First to last token.")
        self._gauge("num_requests_running", "Running requests.").set_function(lambda: core.running)
        self._gauge("num_requests_waiting", "Waiting requests.").set_function(lambda: core.waiting)
        self._gauge("kv_cache_usage_perc", "Share of blocks in use.").set_function(lambda: core.cache_usage)
        self._cache_config(settings)

    def first_token(self, run: Run) -> None:
        """Count a request's prompt and its time to the first token, as soon as both are certain."""
        prompt = len(run.job.tokens)
        self._prompt.inc(prompt)
        if run.job.lookup:
            self._queries.inc(prompt)
            self._hits.inc(run.cached_tokens)
        self._ttft.observe((run.first_token or run.queued) - run.queued)

    def finished(self, run: Run) -> None:
        """Count a request that came to its end."""
        self._success.labels(**self._values, finished_reason=run.finish_reason).inc()
        self._generated.inc(len(run.output))
        self._preemptions.inc(run.preemptions)
        phases = Phases(run)
        self._e2e.observe(phases.e2e)
        self._queue.observe(phases.queue)
        self._prefill.observe(phases.prefill)
        self._decode.observe(phases.decode)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(**self._values)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(**self._values)

    def _histogram(self, name: str, text: str) -> Histogram:
        family = Histogram(f"vllm:{name}", text, _LABELS, buckets=_BUCKETS, registry=self.registry)
        return family.labels(**self._values)

    def _cache_config(self, settings: EngineSettings) -> None:
        config = {
            "engine": "0",
            "block_size": str(settings.block_size),
            "num_gpu_blocks": str(settings.blocks),
            "kv_cache_size_tokens": str(settings.block_size * settings.blocks),
            "enable_prefix_caching": "True",
            "prefix_caching_hash_algo": FINGERPRINT,
        }
        info = Gauge("vllm:cache_config_info", "The cache's set-up.", list(config), registry=self.registry)
        info.labels(**config).set(1)


class Phases:
    """The times of a finished run in seconds, as vLLM defines them (``v1/metrics/stats.py``)."""

    def __init__(self, run: Run) -> None:
        scheduled = run.scheduled or run.queued
        first = run.first_token or scheduled
        last = run.last_token or first
        self.ttft = first - run.queued
        self.queue = scheduled - run.queued
        self.prefill = first - scheduled
        self.decode = last - first
        self.inference = last - scheduled
        self.e2e = last - run.queued


class RequestTracer:
    """Sends a span for each finished request; the sender runs in a thread of its own."""

    def __init__(self, endpoint: str, clock: Clock) -> None:
        self._clock = clock
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": FINGERPRINT}), shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=1)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=200))
        self._tracer = self._provider.get_tracer(__name__)
        self._propagator = TraceContextTextMapPropagator()

    def finished(self, run: Run, headers: Mapping[str, str]) -> None:
        """Send the span of ``run``, below the caller's span if ``headers`` name one."""
        phases = Phases(run)
        attributes: dict[str, str | int | float] = {
            "gen_ai.request.id": run.job.id if run.job.api == "chat" else f"{run.job.id}-0",
            "gen_ai.usage.prompt_tokens": len(run.job.tokens),
            "gen_ai.usage.completion_tokens": len(run.output),
            "gen_ai.latency.time_to_first_token": phases.ttft,
            "gen_ai.latency.e2e": phases.e2e,
            "gen_ai.latency.time_in_queue": phases.queue,
            "gen_ai.latency.time_in_model_prefill": phases.prefill,
            "gen_ai.latency.time_in_model_decode": phases.decode,
            "gen_ai.latency.time_in_model_inference": phases.inference,
            "gen_ai.request.n": 1,
        }
        attributes |= {f"gen_ai.request.{key}": value for key, value in run.job.parameters.items()}
        if run.job.max_tokens:
            attributes["gen_ai.request.max_tokens"] = run.job.max_tokens
        span = self._tracer.start_span(
            "llm_request",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=int(run.arrived_at * 1e9),
        )
        span.end(int(self._clock() * 1e9))

    def close(self) -> None:
        """Send what waits, then stop."""
        self._provider.shutdown()
