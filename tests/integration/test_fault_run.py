"""One run with every fault in it: what was answered is recorded exactly once, and differences are told."""

import json
import os
import resource
import signal
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from kvscope.agent.checks import run_checks
from kvscope.demo.engines import BUILTIN_MODEL, Engine, EngineOptions, answers, free_port
from kvscope.demo.process import ChildProcess
from kvscope.demo.sidecar import Sidecar, start_sidecar
from kvscope.model.request import Source, Status
from kvscope.reports.disagreement import Why
from kvscope.store.database import Store, open_store
from tests.support.databases import PostgresqlServer

CLIENTS = 4
PREFIX = "A prefix cache keeps blocks of tokens that many prompts share. " * 10
DEADLINE = 60.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


class Traffic:
    """Clients that ask through the gateway and keep the usage of each answer that came to its end."""

    def __init__(self, gateway: str, model: str) -> None:
        self._model = model
        self._url = f"{gateway}/v1/chat/completions"
        self._ended = threading.Event()
        self.answered: dict[str, tuple[int, int, int]] = {}
        self.failed = 0
        self._threads = [threading.Thread(target=self._ask_on, args=(one,)) for one in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def more(self, count: int) -> None:
        """Return once ``count`` more were answered."""
        wanted = len(self.answered) + count
        until(lambda: len(self.answered) >= wanted, f"{count} more answers")

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, client: int) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            name = f"client{client}-{number}"
            try:
                self.answered[name] = self._ask(name, streams=bool(number % 2))
            except (OSError, ValueError, HTTPException):
                self.failed += 1
                time.sleep(0.05)

    def _ask(self, name: str, *, streams: bool) -> tuple[int, int, int]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": PREFIX + name}],
            "max_tokens": 4,
        }
        if streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"Content-Type": "application/json", "X-Request-Id": name}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            raw = answer.read().decode()
        if streams:
            events = [line[6:] for line in raw.splitlines() if line.startswith("data: ")]
            if events[-1] != "[DONE]":
                raise ValueError("cut off")
            raw = events[-2]
        usage = json.loads(raw)["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], usage["completion_tokens"], cached


class Parts:
    """The engine, the agent and the database, to be broken and mended in place."""

    def __init__(self, folder: Path, tokenizer: Path, server: PostgresqlServer, db: str) -> None:
        self._folder = folder
        self._server = server
        port, events, otlp = free_port(), free_port(), free_port()
        self._engine_argv = [
            *(sys.executable, "-m", "kvscope.demo.engine", "--tokenizer", str(tokenizer)),
            *("--port", str(port), "--kv-events", f"tcp://127.0.0.1:{events}", "--time-scale", "0.2"),
            *("--otlp-endpoint", f"http://127.0.0.1:{otlp}"),
        ]
        self.engine = Engine(
            name="builtin",
            process=ChildProcess("the engine", self._engine_argv, folder / "engine.log"),
            model=BUILTIN_MODEL,
            url=f"http://127.0.0.1:{port}",
            kv_events=f"tcp://127.0.0.1:{events}",
            kv_replay=None,
            options=EngineOptions(model=tokenizer, otlp_endpoint=f"http://127.0.0.1:{otlp}"),
        )
        self._engines = [self.engine.process]
        until(lambda: answers(f"{self.engine.url}/health"), "the engine")

        def change(config: dict[str, Any]) -> None:
            config["spool"] = {"folder": str(folder / "spool")}
            config["writer"] = {"queue_items": 300}

        self.agent: Sidecar = start_sidecar(self.engine, folder, db=db, change=change)
        self._agents = [self.agent.process]

    def stop(self) -> None:
        for process in (*self._agents, *self._engines):
            process.stop(grace_seconds=5.0)

    def kill_agent(self) -> None:
        os.killpg(self._agents[-1].pid, signal.SIGKILL)

    def start_agent(self) -> None:
        run = "from kvscope.cli.main import main; main()"
        argv = [sys.executable, "-c", run, "agent", "--config", str(self._folder / "agent.yaml")]
        self._agents.append(ChildProcess("the agent", argv, self._folder / "agent.log"))
        until(lambda: answers(f"{self.agent.admin}/healthz"), "the agent")

    def restart_engine(self) -> None:
        os.killpg(self._engines[-1].pid, signal.SIGKILL)
        until(lambda: not self._engines[-1].running(), "the engine's end")
        self._engines.append(ChildProcess("the engine", self._engine_argv, self._folder / "engine.log"))
        until(lambda: answers(f"{self.engine.url}/health"), "the engine again")

    def fill_disk(self, *, full: bool) -> None:
        """Let no file of the agent grow any more, or let them again: what a full disk does to it."""
        _, hard = resource.prlimit(self._agents[-1].pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._agents[-1].pid, resource.RLIMIT_FSIZE, (1 if full else hard, hard))

    def health(self, part: str) -> tuple[bool, str]:
        with urllib.request.urlopen(f"{self.agent.admin}/healthz", timeout=5) as answer:
            state = json.loads(answer.read())["parts"][part]
        return state["ok"], state["detail"]


@pytest.fixture
def parts(
    tiny_tokenizer: Path, tmp_path: Path, postgresql_process: PostgresqlServer, postgresql_url: str
) -> Iterator[Parts]:
    store = open_store(postgresql_url, upgrade=True)
    with store.engines.writing() as connection:
        # the test server was told that nothing crashes; here it does, so commits are as by default
        database = connection.execute(text("SELECT current_database()")).scalar()
        connection.execute(text(f"ALTER DATABASE {database} SET synchronous_commit = on"))
    store.close()
    made = Parts(tmp_path, tiny_tokenizer, postgresql_process, postgresql_url)
    yield made
    made.stop()


@pytest.mark.postgres
def test_every_answered_request_is_recorded_exactly_once(
    parts: Parts, postgresql_process: PostgresqlServer, postgresql_url: str
) -> None:
    traffic = Traffic(parts.agent.gateway, parts.engine.model)
    try:
        traffic.more(20)
        postgresql_process.stop("immediate")
        try:
            until(lambda: not parts.health("writer")[0], "health tells that the store is away")
            traffic.more(20)
            until(lambda: "on disk" in parts.health("writer")[1], "records go to disk")

            parts.fill_disk(full=True)
            until(lambda: not parts.health("spool")[0], "health tells that the disk is full")
            traffic.more(20)
            parts.fill_disk(full=False)
            until(lambda: parts.health("spool")[0], "the disk takes data again")

            parts.kill_agent()
            failed = traffic.failed
            until(lambda: traffic.failed > failed, "clients see that the agent is gone")
            parts.start_agent()  # the store is still away
            traffic.more(20)
        finally:
            postgresql_process.start()
        traffic.more(20)

        parts.restart_engine()
        traffic.more(20)

        parts.kill_agent()
        parts.start_agent()
        traffic.more(20)
    finally:
        traffic.end()
    _leave(parts)
    until(lambda: _all_is_written(*parts.health("writer")), "all is written")

    store = open_store(postgresql_url)
    try:
        _assert_each_once(store, traffic)
        _assert_sums_are_told(store, parts)
    finally:
        store.close()


def _all_is_written(ok: bool, detail: str) -> bool:
    return ok and detail.startswith("0 items wait") and "on disk" not in detail


def _leave(parts: Parts) -> None:
    """Close the connection in the middle of an answer: the engine counts its hits and tells them nowhere."""
    body = {
        "model": parts.engine.model,
        "messages": [{"role": "user", "content": PREFIX}],
        "stream": True,
        "max_tokens": 2_000,
    }
    url = f"{parts.agent.gateway}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read1(100)


def _assert_each_once(store: Store, traffic: Traffic) -> None:
    records = store.reader.requests()
    assert max(Counter(record.request_id for record in records).values()) == 1
    by_id = {record.request_id: record for record in records}
    assert set(traffic.answered) <= set(by_id)
    for name, told in traffic.answered.items():
        record = by_id[name]
        assert record.status is Status.OK
        assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == told
        assert len(record.pieces[Source.GATEWAY]) == 1, "written once, however often it was sent"
    with store.engines.reading() as connection:
        spans = connection.execute(text("SELECT count(*), count(DISTINCT span_id) FROM spans")).one()
    assert spans[0] == spans[1] > 0


def _assert_sums_are_told(store: Store, parts: Parts) -> None:
    checks = run_checks(store, vllm=parts.engine.url, agent=parts.agent.admin, patience_seconds=5)
    (sums,) = [check for check in checks if check.name == "sums agree"]
    assert not sums.ok
    assert sums.difference_tokens
    assert Why.ABORTED in {reason.why for reason in sums.reasons}
    assert sums.fix
