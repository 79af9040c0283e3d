"""The plugin's real exporters against the running receiver, and against agents that are not there."""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from typing_extensions import override

from collectors.otlp.receiver import OtlpReceiver
from collectors.otlp.settings import OtlpSettings
from collectors.vllm_plugin.finished import finished_request
from collectors.vllm_plugin.otlp import OtlpSender
from collectors.vllm_plugin.reporter import Reporter
from kvscope.errors import RetryableIngestError
from kvscope.model.request import Status
from kvscope.pipeline.contracts import Batch, Sink
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.store.database import Store, open_store
from tests.support.telemetry import AnsweringSink, context, eventually
from tests.support.vllm_stats import FinishedRequestStats, FinishReason


@contextlib.asynccontextmanager
async def _receiver(sink: Sink) -> AsyncIterator[OtlpReceiver]:
    settings = OtlpSettings.model_validate({"grpc_port": -1, "http_port": -1})
    receiver = OtlpReceiver(settings, context(sink))
    await receiver.start()
    yield receiver
    await receiver.stop()


@contextlib.contextmanager
def _reporter(endpoint: str) -> Iterator[Reporter]:
    reporter = Reporter(lambda: OtlpSender(endpoint), target=endpoint, delay_seconds=0.05)
    reporter.start()
    yield reporter
    reporter.stop()


def _offer(reporter: Reporter, **changes: object) -> None:
    stats = FinishedRequestStats(**changes)  # type: ignore[arg-type]
    request = finished_request(stats, finished_at=1_795_966_295.5, engine_index=0, model="tiny")
    assert request is not None
    reporter.offer(request)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'plugin.db'}", upgrade=True)
    yield opened
    opened.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_finished_requests_reach_the_store(
    store: Store, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # these are meant for vLLM's own spans
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    writer = Writer(store.batches, WriterSettings.model_validate({}), CollectorRegistry())
    writer.start()
    async with _receiver(writer) as receiver:
        ports = {"http": f"{receiver.http_port}/v1/traces", "grpc": str(receiver.grpc_port)}
        with _reporter(f"http://127.0.0.1:{ports[protocol]}") as reporter:
            _offer(reporter, request_id="chatcmpl-a")
            _offer(reporter, request_id="cmpl-b-0", finish_reason=FinishReason.ABORT, num_cached_tokens=0)
            await eventually(lambda: reporter.sent == 2)
    assert writer.stop() == 0
    first, second = sorted(store.reader.requests(), key=lambda record: record.request_id)
    assert (first.request_id, first.cached_tokens, first.prompt_tokens) == ("a", 64, 100)
    assert (first.tpot_seconds, first.preemptions, first.replica) == (0.05, 1, "0")
    assert (first.finish_reason, first.status, first.model) == ("length", Status.OK, "tiny")
    assert first.arrived_at == pytest.approx(1_795_966_295.0, abs=1e-6)
    assert first.trace_id is None
    assert (second.request_id, second.cached_tokens, second.status) == ("b", 0, Status.ABORTED)


async def test_an_agent_that_was_full_gets_the_same_spans_again(log_of_exporters: list[str]) -> None:
    tries: list[str] = []

    def answer(batch: Batch) -> int | Exception:
        tries.extend(span.span_id for span in batch.spans)
        return RetryableIngestError("full") if len(tries) < 3 else 0

    sink = AnsweringSink(answer)
    async with _receiver(sink) as receiver:
        with _reporter(f"http://127.0.0.1:{receiver.http_port}/v1/traces") as reporter:
            _offer(reporter)
            await eventually(lambda: reporter.sent == 1)
    (batch,) = sink.accepted
    assert tries == [batch.spans[0].span_id] * 3
    assert log_of_exporters == []


@pytest.fixture
def log_of_exporters() -> Iterator[list[str]]:
    """What OpenTelemetry's exporters log from now on."""
    heard: list[str] = []

    class Listener(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener = Listener()
    logger = logging.getLogger("opentelemetry.exporter")
    logger.addHandler(listener)
    yield heard
    logger.removeHandler(listener)


async def test_the_plugins_failures_are_quiet_and_those_of_other_exporters_are_not(
    log_of_exporters: list[str],
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces"
        with _reporter(endpoint) as reporter:
            _offer(reporter)
            await eventually(lambda: reporter._failing)
        assert log_of_exporters == []
        logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").warning("from vLLM")
        assert log_of_exporters == ["from vLLM"]


def _blackhole() -> tuple[socket.socket, int]:
    """A server that takes connections and says nothing."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener, listener.getsockname()[1]


_ENGINE = """
import os, sys, time
from collectors.vllm_plugin.stat_logger import stat_logger_class
from tests.support.vllm_stats import FinishedRequestStats, IterationStats
logger = stat_logger_class(object)(None, 0)
for number in range(2000):
    logger.record(None, IterationStats([FinishedRequestStats(request_id=f"chatcmpl-{number}")]))
time.sleep(1.5)
print("leaving", flush=True)
"""


@pytest.mark.parametrize("path", ["/v1/traces", ""], ids=["http", "grpc"])
@pytest.mark.parametrize("there", ["absent", "silent"])
async def test_an_engine_leaves_without_delay_whatever_the_agent_does(there: str, path: str) -> None:
    listener, port = _blackhole()
    if there == "absent":
        listener.close()

    def leave() -> tuple[float, int, str]:
        engine = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_ENGINE)],
            env={"KVSCOPE_OTLP_ENDPOINT": f"http://127.0.0.1:{port}{path}", "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert engine.stdout is not None
        assert engine.stdout.readline() == "leaving\n"
        began = time.monotonic()
        _, errors = engine.communicate(timeout=30)
        return time.monotonic() - began, engine.returncode, errors

    seconds, code, errors = await asyncio.to_thread(leave)
    listener.close()
    assert code == 0
    assert seconds < 3.0  # a second for the plugin, the rest for a busy machine
    assert errors.count("does not answer") <= 1
    assert "Traceback" not in errors
