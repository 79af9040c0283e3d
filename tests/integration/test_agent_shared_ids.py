"""The real agent when clients give one id to several requests: each keeps its record, and sums agree."""

import concurrent.futures
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from kvscope.agent.checks import Check, run_checks
from kvscope.demo.engines import Engine
from kvscope.demo.sidecar import Sidecar, start_sidecar
from kvscope.model.request import RequestRecord
from kvscope.store.database import open_store


def ask(url: str, engine: Engine, text: str, request_id: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"{text} " + "A prefix cache keeps blocks of tokens. " * 30}
    body = {"model": engine.model, "messages": [message], "max_tokens": 4} | more
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "X-Request-Id": request_id},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return {"asked": answer.headers["x-kvscope-request-id"], **json.loads(answer.read())}


def settled(agent: Sidecar, count: int) -> list[RequestRecord]:
    """Return the records once there are ``count`` with spans and causes."""
    store = open_store(agent.db)
    deadline = time.monotonic() + 15
    try:
        while True:
            found = store.reader.requests()
            done = [row for row in found if row.causes is not None and row.queue_seconds is not None]
            if len(done) == count or time.monotonic() > deadline:
                assert len(found) == count
                return found
            time.sleep(0.1)
    finally:
        store.close()


def checks(agent: Sidecar, engine: Engine) -> dict[str, Check]:
    store = open_store(agent.db)
    try:
        return {check.name: check for check in run_checks(store, vllm=engine.url, agent=agent.admin)}
    finally:
        store.close()


def test_requests_of_one_id_keep_their_records(builtin_engine: Engine, tmp_path: Path) -> None:
    agent = start_sidecar(builtin_engine, tmp_path)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(
                pool.map(lambda n: ask(agent.gateway, builtin_engine, f"{n % 3}", "constant"), range(8))
            )
        found = settled(agent, 8)
        names = {"constant", *(f"constant~{number}" for number in range(2, 9))}
        assert {row.request_id for row in found} == names
        assert {answer["asked"] for answer in answers} == names
        usage = sorted(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
        assert sorted(row.cached_tokens or 0 for row in found) == usage
        assert sum(usage) > 0
        told = checks(agent, builtin_engine)
        assert told["sums agree"].ok, told["sums agree"].detail
        assert "request ids" not in told
    finally:
        agent.stop()


def test_an_id_that_comes_again_after_a_restart_is_told_of(builtin_engine: Engine, tmp_path: Path) -> None:
    def one_life() -> tuple[RequestRecord, dict[str, Check]]:
        agent = start_sidecar(builtin_engine, tmp_path)
        try:
            ask(agent.gateway, builtin_engine, "again", "constant")
            (row,) = settled(agent, 1)
            return row, checks(agent, builtin_engine)
        finally:
            agent.stop()

    assert one_life()[0].sequences == 1
    row, told = one_life()
    assert row.sequences == 2
    assert row.prompt_tokens is not None
    assert row.cached_tokens is not None
    assert row.prompt_tokens / 2 > row.cached_tokens > 0
    assert not told["request ids"].ok
    assert "1 of the last 1 records" in told["request ids"].detail
    assert told["sums agree"].ok, told["sums agree"].detail


def test_odd_ids_of_header_and_body_join_the_engine_s_span(builtin_engine: Engine, tmp_path: Path) -> None:
    agent = start_sidecar(builtin_engine, tmp_path)
    try:
        long = "l" * 3_000
        for header in ("日本-1".encode().decode("latin-1"), long):
            ask(agent.gateway, builtin_engine, "odd", header)
        found = settled(agent, 2)
        assert {len(row.pieces["span"]) for row in found} == {1}
    finally:
        agent.stop()
