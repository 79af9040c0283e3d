"""Metrics reach a real OTLP metrics service, over gRPC and HTTP; the counts are those of the records."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent import futures
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service_grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from typing_extensions import override

from kvscope.agent.export_metrics import MetricsSender, RequestMeasures
from kvscope.config.settings import ExportSettings
from kvscope.demo.engines import free_port
from kvscope.model.request import RequestRecord, Status
from tests.support.telemetry import eventually


class Received:
    """What a metrics service was sent; the newest point of each metric and set of attributes counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.points: dict[tuple[str, tuple[tuple[str, Any], ...]], Any] = {}
        self.metrics: dict[str, Any] = {}
        self.services: set[str] = set()

    def take(self, request: Any) -> None:
        for resource in request.resource_metrics:
            self.services |= {
                each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
            }
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                self.metrics[metric.name] = metric
                kind = metric.WhichOneof("data")
                for point in getattr(metric, kind).data_points:
                    named = tuple(sorted((each.key, each.value.string_value) for each in point.attributes))
                    self.points[metric.name, named] = point
        self.calls += 1

    def point(self, name: str, attributes: Mapping[str, str] | None = None) -> Any:
        return self.points[name, tuple(sorted((attributes or {}).items()))]


class Service(service_grpc.MetricsServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    @override
    def Export(self, request: Any, _: Any) -> Any:
        self._received.take(request)
        return service.ExportMetricsServiceResponse()


@contextlib.contextmanager
def _grpc_backend(received: Received) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    add: Any = service_grpc.add_MetricsServiceServicer_to_server  # its text has no types
    add(Service(received), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(0).wait()


@contextlib.contextmanager
def _http_backend(received: Received) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = service.ExportMetricsServiceRequest()
            if self.path == "/v1/metrics":
                request.ParseFromString(body)
                received.take(request)
            self.send_response(200 if self.path == "/v1/metrics" else 404)
            self.end_headers()

        @override
        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()
        thread.join()


BACKENDS = {"grpc": _grpc_backend, "http": _http_backend}
OF = {"gen_ai.request.model": "m", "kvscope.route": "support", "kvscope.engine": "http://e:8000"}


def _record(number: int) -> RequestRecord:
    return RequestRecord(
        request_id=str(number),
        model="m",
        route="support",
        engine="http://e:8000",
        status=Status.OK,
        prompt_tokens=100,
        output_tokens=5,
        cached_tokens=64,
        ttft_seconds=0.03 * (number + 1),
        e2e_seconds=0.5,
        causes={"diverged": 30, "granularity": 6},
    )


@contextlib.asynccontextmanager
async def _sender(
    endpoint: str, registry: CollectorRegistry, **more: Any
) -> AsyncIterator[tuple[MetricsSender, RequestMeasures]]:
    measures = RequestMeasures()
    settings = ExportSettings.model_validate(
        {"endpoint": endpoint, "metrics_seconds": 0.05, "timeout_seconds": 2.0, **more}
    )
    sender = MetricsSender(settings, measures=measures, clock=time.time, registry=registry)
    sender.start()
    yield sender, measures
    await asyncio.to_thread(sender.stop)
    sender.stop()


@pytest.mark.parametrize("protocol", BACKENDS)
async def test_sums_by_route_and_own_metrics_arrive(protocol: str) -> None:
    received, registry = Received(), CollectorRegistry()
    taken = Counter("kvscope_items_accepted", "Items queued.", registry=registry)
    taken.inc(7)
    Gauge("kvscope_queue_items", "Items that wait.", registry=registry).set(3)
    times = Histogram(
        "kvscope_commit_seconds", "Time of one commit.", ["kind"], buckets=(0.1, 1.0), registry=registry
    )
    for seconds in (0.05, 0.5, 0.6, 5.0):
        times.labels("x").observe(seconds)
    with BACKENDS[protocol](received) as endpoint:
        async with _sender(endpoint, registry) as (_, measures):
            for number in range(4):
                measures.note(_record(number))
            await eventually(lambda: received.calls >= 2)
            taken.inc(1)
    assert received.services == {"kvscope"}
    assert received.point("kvscope_items_accepted").as_double == 8, "sent a last time at the end"
    accepted = received.metrics["kvscope_items_accepted"].sum
    assert accepted.is_monotonic
    assert accepted.aggregation_temporality == 2  # cumulative
    assert received.point("kvscope_queue_items").as_double == 3
    commits = received.point("kvscope_commit_seconds", {"kind": "x"})
    assert (commits.count, commits.sum) == (4, pytest.approx(6.15))
    assert (list(commits.bucket_counts), list(commits.explicit_bounds)) == ([1, 2, 1], [0.1, 1.0])
    assert received.metrics["kvscope_commit_seconds"].unit == "s"
    assert received.point("kvscope.requests", OF).as_int == 4
    assert received.point("kvscope.prompt_tokens", OF).as_int == 400
    assert received.point("kvscope.cached_tokens", OF).as_int == 256
    missed = [
        received.point("kvscope.missed_tokens", {**OF, "kvscope.miss.cause": cause}).as_int
        for cause in ("diverged", "granularity")
    ]
    assert missed == [120, 24]
    assert sum(missed) + 256 == 400
    first = received.point("gen_ai.server.time_to_first_token", OF)
    assert (first.count, first.sum) == (4, pytest.approx(0.3))
    output = received.point("gen_ai.client.token.usage", {**OF, "gen_ai.token.type": "output"})
    assert (output.count, output.sum) == (4, 20)
    assert ("gen_ai.server.time_per_output_token", tuple(sorted(OF.items()))) not in received.points


@pytest.mark.parametrize("path", ["", "/v1/traces"], ids=["grpc", "http"])
async def test_a_backend_that_is_away_is_told_of_once(path: str, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    endpoint = f"http://127.0.0.1:{free_port()}{path}"
    async with _sender(endpoint, registry, timeout_seconds=0.2):
        await eventually(
            lambda: (registry.get_sample_value("kvscope_export_metric_failures_total") or 0) >= 2
        )
    (line,) = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert line == f"{endpoint} does not take metrics; they are sent again"


async def test_without_an_interval_nothing_is_sent() -> None:
    async with _sender("http://127.0.0.1:1", CollectorRegistry(), metrics_seconds=0.0) as (sender, _):
        assert sender._exporter is None
