"""The real agent when things around it fail: traffic goes on, records stay, errors are the protocol's."""

import json
import os
import signal
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvscope.agent.checks import run_checks
from kvscope.demo.engines import Engine, EngineOptions, free_port, start_builtin
from kvscope.demo.sidecar import Sidecar, start_sidecar
from kvscope.model.request import RequestRecord, Status
from kvscope.store.database import open_store


@pytest.fixture
def slow_engine(tiny_tokenizer: Path, tmp_path: Path) -> Iterator[Engine]:
    """A built-in engine that takes long enough to be killed while it answers."""
    options = EngineOptions(
        model=tiny_tokenizer, otlp_endpoint=f"http://127.0.0.1:{free_port()}", time_scale=3.0
    )
    engine = start_builtin(options, tmp_path / "engine.log")
    yield engine
    engine.stop()


@pytest.fixture
def sidecar(slow_engine: Engine, tmp_path: Path) -> Iterator[Sidecar]:
    agent = start_sidecar(slow_engine, tmp_path)
    yield agent
    agent.stop()


def post(url: str, body: bytes, request_id: str) -> tuple[int, bytes]:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=body,
        headers={"Content-Type": "application/json", "X-Request-Id": request_id},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def chat(engine: Engine, text: str, **more: Any) -> bytes:
    message = {"role": "user", "content": text}
    return json.dumps({"model": engine.model, "messages": [message], "max_tokens": 4} | more).encode()


def record(db: str, request_id: str, ready: Callable[[RequestRecord], bool]) -> RequestRecord:
    store = open_store(db)
    deadline = time.monotonic() + 15
    try:
        while True:
            found = [row for row in store.reader.requests() if row.request_id == request_id]
            if found and (ready(found[0]) or time.monotonic() > deadline):
                return found[0]
            assert time.monotonic() < deadline, f"no record of {request_id}"
            time.sleep(0.1)
    finally:
        store.close()


def test_bodies_that_are_not_json_are_the_engine_s_to_refuse(slow_engine: Engine, sidecar: Sidecar) -> None:
    for number, body in enumerate((b"not json", b"[]", b"\xff\xfe", b"", b'{"messages": 5}')):
        direct, through = (post(url, body, f"bad-{number}") for url in (slow_engine.url, sidecar.gateway))
        assert direct[0] == through[0] == 400
        assert json.loads(direct[1]) == json.loads(through[1])
    status, answer = post(sidecar.gateway, chat(slow_engine, "still there?"), "good-1")
    assert status == 200
    assert json.loads(answer)["usage"]["completion_tokens"] == 4


def test_an_engine_that_dies_in_mid_stream(slow_engine: Engine, sidecar: Sidecar) -> None:
    post(sidecar.gateway, chat(slow_engine, "the one before"), "before")
    body = chat(slow_engine, "a long answer, please", stream=True, max_tokens=500)
    request = urllib.request.Request(
        f"{sidecar.gateway}/v1/chat/completions",
        data=body,
        headers={"Content-Type": "application/json", "X-Request-Id": "cut"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        first = answer.read1(4096)
        os.killpg(slow_engine.process.pid, signal.SIGKILL)
        text = (first + answer.read()).decode()
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    error = json.loads(events[-1])["error"]
    assert slow_engine.url in error["message"]
    assert record(sidecar.db, "cut", lambda row: row.status is not None).status is Status.ERROR

    status, answered = post(sidecar.gateway, chat(slow_engine, "anyone?"), "after")
    assert status == 502
    assert slow_engine.url in json.loads(answered)["error"]["message"]
    assert record(sidecar.db, "after", lambda row: row.status is not None).status is Status.ERROR
    post(sidecar.gateway, chat(slow_engine, "still nobody?"), "after-that")
    log = sidecar.process.tail(200)
    assert log.count(f"{slow_engine.url} does not answer") == 1, "said once, not for each request"
    assert "ASGI" not in log, "the server has no line of its own"
    assert "Traceback" not in log
    # what was served before the fault is all there
    kept = record(sidecar.db, "before", lambda row: row.causes is not None)
    assert kept.status is Status.OK
    assert kept.prompt_tokens == (kept.cached_tokens or 0) + sum((kept.causes or {}).values())


def test_an_agent_beside_an_engine_that_is_not_there(tiny_tokenizer: Path, tmp_path: Path) -> None:
    options = EngineOptions(model=tiny_tokenizer, otlp_endpoint=f"http://127.0.0.1:{free_port()}")
    engine = start_builtin(options, tmp_path / "engine.log")
    engine.stop()
    agent = start_sidecar(engine, tmp_path, ready=False)
    try:
        status, answer = post(agent.gateway, chat(engine, "hello"), "lost")
        assert status == 502
        assert engine.url in json.loads(answer)["error"]["message"]
        assert record(agent.db, "lost", lambda row: row.status is not None).status is Status.ERROR
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{agent.admin}/readyz", timeout=5)
        assert caught.value.code == 503
        parts = json.loads(caught.value.read())["parts"]
        assert not parts["prometheus"]["ok"]
        assert engine.url in parts["prometheus"]["detail"]
    finally:
        agent.stop()


def test_a_killed_agent_has_kept_what_it_recorded(slow_engine: Engine, tmp_path: Path) -> None:
    agent = start_sidecar(slow_engine, tmp_path)
    try:
        for number in range(5):
            assert post(agent.gateway, chat(slow_engine, f"question {number}"), f"kept-{number}")[0] == 200
        record(agent.db, "kept-4", lambda row: row.status is not None)
        os.killpg(agent.process.pid, signal.SIGKILL)
    finally:
        agent.stop()
    store = open_store(agent.db)
    rows = {row.request_id: row for row in store.reader.requests()}
    store.close()
    assert set(rows) == {f"kept-{number}" for number in range(5)}
    assert all(row.status is Status.OK and row.prompt_tokens for row in rows.values())


def test_hits_of_an_aborted_request_make_the_sums_differ_and_the_doctor_says_why(
    slow_engine: Engine, sidecar: Sidecar
) -> None:
    text = "A prefix cache keeps blocks of tokens. " * 20
    assert post(sidecar.gateway, chat(slow_engine, text), "warm")[0] == 200
    request = urllib.request.Request(
        f"{sidecar.gateway}/v1/chat/completions",
        data=chat(slow_engine, text, stream=True, max_tokens=200),
        headers={"Content-Type": "application/json", "X-Request-Id": "left"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read1(4096)
    left = record(sidecar.db, "left", lambda row: row.status is not None)
    assert (left.status, left.cached_tokens) == (Status.ABORTED, None)
    store = open_store(sidecar.db)
    try:
        found = run_checks(store, vllm=slow_engine.url, agent=sidecar.admin, patience_seconds=4)
    finally:
        store.close()
    (sums,) = (check for check in found if check.name == "sums agree")
    assert not sums.ok
    assert "1 requests were aborted: vLLM counts their hits and tells them nowhere" in sums.detail
    assert sums.fix


def test_a_locked_store_shows_in_health_and_does_not_hold_up_the_end(
    slow_engine: Engine, tmp_path: Path
) -> None:
    def short_drain(config: dict[str, Any]) -> None:
        config["writer"] = {"drain_seconds": 1.0}

    agent = start_sidecar(slow_engine, tmp_path, change=short_drain)
    lock = sqlite3.connect(agent.db.removeprefix("sqlite:///"), isolation_level=None)
    try:
        lock.execute("BEGIN IMMEDIATE")
        assert post(agent.gateway, chat(slow_engine, "hello"), "while-locked")[0] == 200
        deadline = time.monotonic() + 30
        while True:
            with urllib.request.urlopen(f"{agent.admin}/healthz", timeout=5) as answer:
                writer = json.loads(answer.read())["parts"]["writer"]
            if not writer["ok"] or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        assert "database is locked" in writer["detail"]
        begun = time.monotonic()
        agent.process.stop(grace_seconds=30.0)
        assert time.monotonic() - begun < 15
    finally:
        lock.close()
        agent.stop()
    assert "items wait on disk; the next start writes them" in (tmp_path / "agent.log").read_text()
