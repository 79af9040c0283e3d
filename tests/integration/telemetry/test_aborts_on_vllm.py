"""Many clients at once on the real vLLM, some of which leave: sums are exact, or why not is told."""

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from collectors.prometheus.page import parse_page
from kvscope.agent.checks import Check, run_checks
from kvscope.demo.engines import Engine
from kvscope.demo.sidecar import Sidecar, start_sidecar
from kvscope.model.request import RequestRecord, Source, Status
from kvscope.reports.disagreement import Why
from kvscope.store.database import open_store

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
REQUESTS, CLIENTS = 32, 8


async def _counters(http: aiohttp.ClientSession, engine: Engine) -> dict[str, int]:
    async with http.get(f"{engine.url}/metrics") as page:
        samples = parse_page(await page.text(), "", 0.0)
    return {sample.name: round(sample.value) for sample in samples if not sample.labels}


def _goes(number: int) -> bool:
    """Return whether the client of this request leaves after the first event, where clients leave."""
    return number % 3 != 0 and number % 2 == 1


def _body(engine: Engine, number: int, chance: random.Random, *, leaving: bool) -> dict[str, Any]:
    """Four system prompts, each with its own questions: hits of all lengths.

    Where the client will leave, the answer is so long that the engine cannot be done before.
    """
    system = f"You are assistant {number % 4}. " + "Answer politely and check the order first. " * 40
    question = " ".join(chance.choice(["refund", "order", "ship", "late", "paid"]) for _ in range(60))
    return {
        "model": engine.model,
        "stream": number % 3 != 0,
        "max_tokens": 1_000 if leaving and _goes(number) else 16,
        "ignore_eos": leaving and _goes(number),
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
    }


async def _traffic(
    http: aiohttp.ClientSession, sidecar: Sidecar, engine: Engine, tag: str, *, leaving: bool
) -> dict[str, Mapping[str, Any] | None]:
    """Send all requests; return of those that were answered in full the usage, where it was told."""
    chance, answered = random.Random(5), dict[str, Mapping[str, Any] | None]()
    gate = asyncio.Semaphore(CLIENTS)

    async def one(number: int, body: dict[str, Any]) -> None:
        name, url = f"{tag}-{number}", f"{sidecar.gateway}/v1/chat/completions"
        async with gate, http.post(url, json=body, headers={"X-Request-Id": name}) as answer:
            assert answer.status == 200
            if leaving and _goes(number):
                await answer.content.readline()  # the first event, then the connection is closed
                answer.close()
                return
            if body["stream"]:
                await answer.read()
            answered[name] = None if body["stream"] else (await answer.json())["usage"]

    async def impatient(number: int, body: dict[str, Any]) -> None:
        """Leave before the first byte: while queued, or in the middle of the prompt."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await one(number, body)

    async with asyncio.TaskGroup() as group:
        for number in range(REQUESTS):
            body = _body(engine, number, chance, leaving=leaving)
            send = impatient if leaving and number % 7 == 6 else one
            group.create_task(send(number, body))
    return answered


async def _idle(http: aiohttp.ClientSession, engine: Engine) -> dict[str, int]:
    async with asyncio.timeout(60):
        while True:
            found = await _counters(http, engine)
            if not found["vllm:num_requests_running"] + found["vllm:num_requests_waiting"]:
                return found
            await asyncio.sleep(0.1)


def _settled(sidecar: Sidecar, engine: Engine, names: set[str]) -> tuple[dict[str, RequestRecord], Check]:
    """Return the records, once the plugin has told of all that were answered, and the doctor's comparison."""
    store = open_store(sidecar.db)
    try:
        deadline = time.monotonic() + 60
        while True:
            records = {record.request_id: record for record in store.reader.requests()}
            if all(name in records and Source.PLUGIN in records[name].pieces for name in names):
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        checks = run_checks(store, vllm=engine.url, agent=sidecar.admin)
        return records, next(check for check in checks if check.name == "sums agree")
    finally:
        store.close()


@pytest.mark.parametrize("leaving", [False, True])
async def test_sums_are_the_counters_or_the_difference_is_explained(
    vllm_server: Engine, tmp_path: Path, leaving: bool
) -> None:
    tag = "left" if leaving else "stayed"
    sidecar = await asyncio.to_thread(start_sidecar, vllm_server, tmp_path)
    try:
        async with aiohttp.ClientSession() as http:
            before = await _counters(http, vllm_server)
            answered = await _traffic(http, sidecar, vllm_server, tag, leaving=leaving)
            after = await _idle(http, vllm_server)
        records, check = await asyncio.to_thread(_settled, sidecar, vllm_server, set(answered))
    finally:
        await asyncio.to_thread(sidecar.stop)

    ours = {name: record for name, record in records.items() if name.startswith(f"{tag}-")}
    for name, usage in answered.items():
        record = ours[name]
        assert record.status is Status.OK
        assert record.cached_tokens is not None
        if usage is not None:
            told = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
            assert (record.prompt_tokens, record.cached_tokens) == told
    known = [record for record in ours.values() if record.cached_tokens is not None]
    cached = sum(record.cached_tokens or 0 for record in known)
    prompt = sum(record.prompt_tokens or 0 for record in known)
    hits, queries = after[HITS] - before[HITS], after[QUERIES] - before[QUERIES]
    assert cached > 0
    if not leaving:
        assert (len(answered), cached, prompt) == (REQUESTS, hits, queries)
        assert (check.ok, check.difference_tokens, check.reasons) == (True, 0, ())
        return
    aborted = [record for record in ours.values() if record.status is Status.ABORTED]
    assert len(answered) + len(aborted) <= REQUESTS
    assert any(record.cached_tokens is None for record in aborted)
    assert cached < hits
    assert prompt < queries
    assert check.ok is False
    assert check.difference_tokens == hits - cached
    assert [reason.why for reason in check.reasons] == [Why.ABORTED]
    untold = sum(record.cached_tokens is None for record in aborted)
    assert check.detail.count(f"{untold} requests were aborted") == 1
