"""The middleware inside a real vLLM: without a hop, the agent knows of its requests what a gateway knows."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvscope.demo.engines import Engine
from kvscope.demo.sidecar import Sidecar, start_sidecar
from kvscope.model.request import RequestRecord, Source, Status
from kvscope.store.database import open_store

pytestmark = pytest.mark.vllm

PROMPT = "A prefix cache keeps blocks of tokens that many prompts share. " * 12


@pytest.fixture
def agent(vllm_server: Engine, tmp_path: Path) -> Iterator[Sidecar]:
    """An agent that no request passes: its gateway is off."""
    endpoint = vllm_server.options.middleware_endpoint
    assert endpoint is not None

    def change(config: dict[str, Any]) -> None:
        config["collectors"]["gateway"] = {"port": 0}
        config["collectors"]["middleware"] = {"port": int(endpoint.rpartition(":")[2])}

    sidecar = start_sidecar(vllm_server, tmp_path, change=change)
    yield sidecar
    sidecar.stop()


async def _ask(http: aiohttp.ClientSession, engine: Engine, name: str, **more: Any) -> dict[str, Any]:
    """Ask the engine itself; return what its answer said of tokens, nothing where it was told not to."""
    message = {"role": "user", "content": PROMPT + name}
    body = {"model": engine.model, "messages": [message], "max_tokens": 5, **more}
    headers = {"X-Request-Id": name, "X-Kvscope-Route": "inside"}
    async with http.post(f"{engine.url}/v1/chat/completions", json=body, headers=headers) as answer:
        text = await answer.text()
        assert answer.status == 200
    if "stream" not in body:
        usage: dict[str, Any] = json.loads(text)["usage"]
        return usage
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert text.endswith("data: [DONE]\n\n")
    return events[-1].get("usage") or {}


def _records(agent: Sidecar, ids: set[str], refused: str) -> dict[str, RequestRecord]:
    """Return the records of ``ids`` and ``refused`` once engine and middleware have told all of them.

    Those of ``ids`` with their causes; of a refused request the middleware alone tells, when it comes to it.

    The middleware may still be trying to send what earlier tests asked while nobody listened.
    """
    wanted = {*ids, refused}
    store = open_store(agent.db)
    deadline = time.monotonic() + 60
    try:
        while True:
            found = {row.request_id: row for row in store.reader.requests() if row.request_id in wanted}
            known = [row for row in found.values() if _is_told(row) or row.request_id == refused]
            if len(known) == len(wanted) or time.monotonic() > deadline:
                return found
            time.sleep(0.1)
    finally:
        store.close()


def _mined(agent: Sidecar) -> list[dict[str, Any]]:
    """Return what ``kvscope layout mine --agent`` prints."""
    run = "from kvscope.cli.main import main; main()"
    command = [sys.executable, "-c", run, "layout", "mine", "--agent", agent.admin, "--json"]
    found = subprocess.run(command, capture_output=True, check=True)
    routes: list[dict[str, Any]] = json.loads(found.stdout)["routes"]
    return routes


def _is_told(row: RequestRecord) -> bool:
    """Whether all three have told of a request: the analysis, the middleware, and the engine's plugin."""
    return bool(row.causes and row.route and row.ttft_seconds)


async def test_requests_that_pass_no_gateway_are_recorded_as_if_they_had(
    vllm_server: Engine, agent: Sidecar
) -> None:
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    async with aiohttp.ClientSession() as http:
        tag = agent.db[-24:-11].replace("/", "-")  # the engine is shared, and so are its ids
        asks = {f"{tag}-{number}": streamed if number % 2 else {} for number in range(8)}
        told = {name: await _ask(http, vllm_server, name, **more) for name, more in asks.items()}
        silent = f"{tag}-silent"  # no usage in its answer: the plugin tells
        await _ask(http, vllm_server, silent, stream=True)
        bad = f"{tag}-bad"
        body = {"model": "no such model", "messages": []}
        url = f"{vllm_server.url}/v1/chat/completions"
        async with http.post(url, json=body, headers={"X-Request-Id": bad}) as answer:
            assert answer.status == 404
    records = await asyncio.to_thread(_records, agent, {*told, silent}, bad)
    assert set(records) == {*told, silent, bad}
    for name, usage in told.items():
        record = records[name]
        assert (record.status, record.route, record.engine) == (Status.OK, "inside", vllm_server.url)
        assert record.prompt_tokens == usage["prompt_tokens"]
        assert record.output_tokens == usage["completion_tokens"] == 5
        assert record.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]
        assert record.sources["status"] == Source.GATEWAY
        assert set(record.pieces[Source.GATEWAY]) != {""}
        assert record.prompt_chars
        assert record.prompt_chars > len(PROMPT)
        assert record.causes is not None
        assert record.cached_tokens is not None
        assert record.prompt_tokens == record.cached_tokens + sum(record.causes.values())
        if asks[name]:
            assert record.ttft_client_seconds is not None
            assert record.ttft_seconds is not None
            # it is measured around the engine, which sits inside
            assert record.ttft_client_seconds >= record.ttft_seconds - 0.01
            assert record.itl_p50_seconds is not None
    assert records[silent].cached_tokens is not None
    assert records[bad].status is Status.REJECTED
    # the routes of live traffic are mined of it too, and told without their text
    (route,) = [row for row in await asyncio.to_thread(_mined, agent) if row["route"] == "inside"]
    text = route["texts"][0]
    assert (route["requests"], text["role"], text["static_prefix_chars"]) == (9, "user", len(PROMPT))
