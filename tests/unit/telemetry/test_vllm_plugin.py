"""The plugin as the engine meets it: quick, quiet, and harmless whatever it is given."""

import abc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.otlp.request_part import PLUGIN_SPAN
from collectors.vllm_plugin import stat_logger
from collectors.vllm_plugin.finished import (
    SPAN_NAME,
    FinishedRequest,
    UnknownShapeError,
    finish_reason,
    finished_request,
)
from collectors.vllm_plugin.reporter import Reporter, settings
from tests.support.vllm_stats import FinishedRequestStats, FinishReason, IterationStats


class Base(abc.ABC):
    """As vLLM's: it cannot be instantiated before all of these are there."""

    @abc.abstractmethod
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...
    @abc.abstractmethod
    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None) -> None: ...
    @abc.abstractmethod
    def log_engine_initialized(self) -> None: ...
    @abc.abstractmethod
    def asked_for_by_a_later_version(self, what: int) -> None: ...

    def log(self) -> None:
        return


class SenderFake:
    """Answers as told; its answers are the fault under test."""

    def __init__(self, answer: Callable[[], bool] = lambda: True) -> None:
        self._answer = answer
        self.sent: list[FinishedRequest] = []
        self.calls = 0

    def send(self, requests: Sequence[FinishedRequest]) -> bool:
        self.calls += 1
        arrived = self._answer()
        if arrived:
            self.sent.extend(requests)
        return arrived

    def close(self) -> None:
        return


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Hear the plugin's logger also where vLLM's logging is set up and keeps it to itself."""
    logger = logging.getLogger("vllm.kvscope")
    logger.addHandler(caplog.handler)
    propagate, logger.propagate = logger.propagate, False
    with caplog.at_level(logging.INFO, logger="vllm.kvscope"):
        yield caplog
    logger.propagate = propagate
    logger.removeHandler(caplog.handler)


def _warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]


def _request(name: str = "r") -> FinishedRequest:
    return FinishedRequest(start_at=1.0, end_at=2.0, attributes={"gen_ai.request.id": name})


def _reporter(sender: SenderFake, **changes: Any) -> Reporter:
    return Reporter(lambda: sender, target="http://agent", **{"delay_seconds": 0.01, **changes})


def _until(holds: Callable[[], bool], within_seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + within_seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.005)
    return holds()


def _attributes(stats: Any, **more: Any) -> dict[str, Any]:
    request = finished_request(stats, **{"finished_at": 10.0, "engine_index": 0, "model": None, **more})
    return dict(request.attributes) if request else {}


def test_a_finished_request_becomes_attributes_and_times() -> None:
    request = finished_request(FinishedRequestStats(), finished_at=10.0, engine_index=3, model="tiny")
    assert request is not None
    assert (request.start_at, request.end_at) == (9.5, 10.0)
    assert request.attributes == {
        "gen_ai.request.id": "chatcmpl-a",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 64,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.request.model": "tiny",
        "kvscope.e2e_seconds": 0.5,
        "kvscope.queue_seconds": 0.01,
        "kvscope.prefill_seconds": 0.2,
        "kvscope.decode_seconds": 0.2,
        "kvscope.tpot_seconds": 0.05,
        "kvscope.preemptions": 1,
        "kvscope.engine_index": 3,
    }
    assert SPAN_NAME == PLUGIN_SPAN


def test_one_token_has_no_time_per_token_and_none_has_no_phases() -> None:
    one = FinishedRequestStats(num_generation_tokens=1, decode_time=0.0, mean_time_per_output_token=0)
    assert "kvscope.tpot_seconds" not in _attributes(one)
    assert _attributes(one)["kvscope.decode_seconds"] == 0.0
    # aborted in the queue: vLLM subtracts from times that stayed 0
    none = FinishedRequestStats(num_generation_tokens=0, queued_time=-5e3, prefill_time=0.0, decode_time=0.0)
    told = _attributes(none)
    assert [name for name in told if name.endswith("_seconds")] == ["kvscope.e2e_seconds"]


@pytest.mark.parametrize(
    ("reason", "word"),
    [*((reason, reason.name.lower()) for reason in FinishReason), ("stop", "stop"), (7, None)],
)
def test_reasons_are_said_in_the_apis_words(reason: Any, word: str | None) -> None:
    assert finish_reason(reason) == word


def test_another_shape_is_told_from_a_request_without_id() -> None:
    old = SimpleNamespace(request_id="a", num_prompt_tokens=1, num_generation_tokens=1)
    with pytest.raises(UnknownShapeError, match="num_cached_tokens"):
        _attributes(old)
    assert _attributes(FinishedRequestStats(request_id=None)) == {}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (True, "http://127.0.0.1:4318/v1/traces")),
        ({"KVSCOPE_PLUGIN": "OFF"}, (False, "http://127.0.0.1:4318/v1/traces")),
        ({"KVSCOPE_PLUGIN": "on", "KVSCOPE_OTLP_ENDPOINT": " http://a:1/x "}, (True, "http://a:1/x")),
    ],
)
def test_the_environment_says_where_to_and_whether(
    environment: dict[str, str], expected: tuple[bool, str]
) -> None:
    assert settings(environment) == expected


def test_requests_are_sent_in_order() -> None:
    sender = SenderFake()
    reporter = _reporter(sender)
    reporter.start()
    requests = [_request(str(number)) for number in range(1500)]
    for request in requests:
        reporter.offer(request)
    reporter.stop()
    assert sender.sent == requests
    assert (reporter.sent, reporter.dropped) == (1500, 0)


def test_a_full_queue_drops_counts_and_says_so_once(log: pytest.LogCaptureFixture) -> None:
    reporter = _reporter(SenderFake(), queue_requests=3)
    for number in range(10):
        reporter.offer(_request(str(number)))
    assert reporter.dropped == 7
    assert len(_warnings(log)) == 1
    assert "requests are dropped" in _warnings(log)[0]


def test_an_absent_agent_is_said_once_and_nothing_is_lost_when_it_comes(
    log: pytest.LogCaptureFixture,
) -> None:
    answers = [False, False, False]
    sender = SenderFake(lambda: answers.pop() if answers else True)
    reporter = _reporter(sender)
    reporter.start()
    reporter.offer(_request())
    assert _until(lambda: reporter.sent == 1)
    reporter.stop()
    assert sender.calls == 4
    assert len(_warnings(log)) == 1
    assert "http://agent does not answer" in _warnings(log)[0]
    assert "answers again" in log.records[-1].getMessage()


def test_a_batch_that_nobody_takes_is_given_up_and_the_next_is_sent() -> None:
    refused = 0

    def answer() -> bool:
        nonlocal refused
        refused += 1
        if refused <= 8:
            raise ValueError("a bug in the exporter")
        return True

    sender = SenderFake(answer)
    reporter = _reporter(sender, delay_seconds=0.001)
    reporter.start()
    reporter.offer(_request("poison"))
    assert _until(lambda: reporter.dropped == 1)
    reporter.offer(_request("good"))
    assert _until(lambda: reporter.sent == 1)
    reporter.stop()
    assert sender.sent == [_request("good")]


def test_an_exporter_that_cannot_be_made_turns_the_plugin_off(log: pytest.LogCaptureFixture) -> None:
    def fail() -> SenderFake:
        raise ImportError("no opentelemetry")

    reporter = Reporter(fail, target="http://agent", delay_seconds=0.01)
    reporter.start()
    assert _until(lambda: bool(_warnings(log)))
    for _ in range(3):
        reporter.offer(_request())
    reporter.stop()
    assert "steps aside" in _warnings(log)[0]
    assert (reporter.sent, reporter.dropped) == (0, 3)


def test_stopping_does_not_wait_for_an_answer() -> None:
    hanging = threading.Event()

    def hang() -> bool:
        return hanging.wait(30)

    reporter = _reporter(SenderFake(hang), exit_seconds=0.1)
    reporter.start()
    reporter.offer(_request())
    began = time.monotonic()
    reporter.stop()
    assert time.monotonic() - began < 1.0
    hanging.set()


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> Iterator[SenderFake]:
    """The class's reporter sends to a fake, through the seam that the real one connects by."""
    sender = SenderFake()
    monkeypatch.setattr(stat_logger, "_connect", lambda _: sender)
    stat_logger.shared_reporter.cache_clear()
    yield sender
    if reporter := stat_logger.shared_reporter():
        reporter.stop()
    stat_logger.shared_reporter.cache_clear()


def test_the_class_is_of_vllms_kind_and_reports_what_finished(reporting: SenderFake) -> None:
    cls = stat_logger.stat_logger_class(Base)
    assert issubclass(cls, Base)
    config = SimpleNamespace(model_config=SimpleNamespace(served_model_name=["tiny", "t"]))
    logger: Any = cls(config, 2)
    logger.log_engine_initialized()
    logger.asked_for_by_a_later_version(3)
    logger.log()
    logger.record(None, None)
    logger.record(None, IterationStats([]), None, 2)
    logger.record(
        scheduler_stats=None,
        iteration_stats=IterationStats([FinishedRequestStats(), FinishedRequestStats(request_id=None)]),
        mm_cache_stats=None,
        engine_idx=5,
        new_in_a_later_version=1,
    )
    assert _until(lambda: len(reporting.sent) == 1)
    (request,) = reporting.sent
    assert request.end_at == 1_795_966_295.5
    assert request.attributes["kvscope.engine_index"] == 5
    assert request.attributes["gen_ai.request.model"] == "tiny"


@pytest.mark.parametrize(
    "stats",
    [
        object(),
        SimpleNamespace(finished_requests=3),
        SimpleNamespace(finished_requests=[object()]),
        IterationStats([FinishedRequestStats(num_cached_tokens="many")]),  # type: ignore[arg-type]
    ],
)
def test_an_unknown_shape_is_one_warning_and_the_plugin_steps_aside(
    reporting: SenderFake, log: pytest.LogCaptureFixture, stats: Any
) -> None:
    logger = stat_logger.stat_logger_class(Base)(None, 0)
    for _ in range(3):
        logger.record(None, stats)
    logger.record(None, IterationStats([FinishedRequestStats()]))
    assert len(_warnings(log)) == 1
    assert "steps aside" in _warnings(log)[0]
    assert reporting.calls == 0


def test_the_environment_turns_it_off(reporting: SenderFake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCOPE_PLUGIN", "off")
    logger = stat_logger.stat_logger_class(Base)(None, 0)
    logger.record(None, IterationStats([FinishedRequestStats()]))
    assert stat_logger.shared_reporter() is None
    assert reporting.calls == 0


def test_recording_is_quick(reporting: SenderFake) -> None:
    logger = stat_logger.stat_logger_class(Base)(None, 0)
    stats = IterationStats([FinishedRequestStats()])
    began = time.perf_counter()
    for _ in range(2000):
        logger.record(None, stats)
    # measured: about 10 microseconds; an engine's step takes milliseconds
    assert (time.perf_counter() - began) / 2000 < 0.001
    assert _until(lambda: len(reporting.sent) == 2000)


def test_importing_the_module_imports_neither_vllm_nor_opentelemetry() -> None:
    code = (
        "import sys, collectors.vllm_plugin.stat_logger;"
        "heavy = {'vllm', 'torch', 'opentelemetry', 'requests', 'pydantic'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = stat_logger.Other
