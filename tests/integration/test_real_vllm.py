"""The agent on a real vLLM: every record equals what the engine itself said, and the sums are exact."""

import asyncio
import dataclasses
import json
import re
import sqlite3
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvscope.agent.checks import run_checks
from kvscope.demo.engines import Engine
from kvscope.demo.sidecar import Sidecar, start_sidecar
from kvscope.demo.workload import Workload
from kvscope.model.ids import request_id_of_engine
from kvscope.model.request import RequestRecord
from kvscope.store.database import open_store

pytestmark = pytest.mark.vllm

_HITS = "vllm:prefix_cache_hits_total"
_QUERIES = "vllm:prefix_cache_queries_total"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request as its client saw it."""

    request_id: str
    text: str
    usage: Mapping[str, Any] | None  # where the client asked for it, or did not stream


def _counter(engine: Engine, name: str) -> int:
    page = urllib.request.urlopen(f"{engine.url}/metrics", timeout=10).read().decode()
    return sum(int(float(value)) for value in re.findall(rf"^{name}\{{[^}}]*\}} (\S+)$", page, re.MULTILINE))


@contextmanager
def _agent(
    engine: Engine, folder: Path, change: Callable[[dict[str, Any]], None] = lambda _: None
) -> Iterator[Sidecar]:
    sidecar = start_sidecar(engine, folder, change=change)
    try:
        yield sidecar
    finally:
        sidecar.stop()


async def _send(http: aiohttp.ClientSession, url: str, name: str, body: dict[str, Any], **more: str) -> Sent:
    headers = {"X-Request-Id": name, **more}
    pieces, usage = [], None
    async with http.post(url, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        if not body.get("stream"):
            answer = await response.json()
            return Sent(request_id=name, text=_text(answer["choices"][0]), usage=answer["usage"])
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                pieces += [_text(choice) for choice in event["choices"]]
    return Sent(request_id=name, text="".join(pieces), usage=usage)


def _text(choice: Mapping[str, Any]) -> str:
    return (choice.get("message") or choice.get("delta") or choice).get("content") or choice.get("text") or ""


async def _conversations(gateway: str, engine: Engine, *, tag: str, sessions: int = 16) -> list[Sent]:
    """Send a mix of all routes, three conversations at a time, and some completions."""
    workload = Workload(seed=7, phase=tag, model=engine.model)
    sent: list[Sent] = []
    gate = asyncio.Semaphore(3)

    async def converse(http: aiohttp.ClientSession, session: Any) -> None:
        async with gate:
            replies: list[str] = []
            for turn in range(len(session.turns)):
                call = workload.call(session, turn, replies, sent=len(sent))
                name = f"{tag}-{session.id[:8]}-{turn}"
                url = f"{gateway}/v1/chat/completions"
                one = await _send(http, url, name, dict(call.body), **call.headers)
                replies.append(one.text)
                sent.append(one)

    async def complete(http: aiohttp.ClientSession, number: int) -> None:
        body = {"model": engine.model, "max_tokens": 4, "stream": bool(number % 2)}
        prompt = f"completion {number // 2}: " + "a prefix cache keeps blocks of tokens. " * 30
        url = f"{gateway}/v1/completions"
        sent.append(await _send(http, url, f"{tag}-completion-{number}", body | {"prompt": prompt}))

    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        for session, _ in zip(workload.sessions(), range(sessions), strict=False):
            group.create_task(converse(http, session))
        for number in range(4):
            group.create_task(complete(http, number))
    return sent


def _records(sidecar: Sidecar, ids: set[str]) -> dict[str, RequestRecord]:
    """Return the records of ``ids``, once spans and analysis have told their part of all of them."""
    store = open_store(sidecar.db)
    deadline = time.monotonic() + 30
    try:
        while True:
            found = {record.request_id: record for record in store.reader.requests()}
            done = [
                name
                for name in ids
                if name in found
                and None not in (found[name].causes, found[name].ttft_seconds, found[name].preemptions)
            ]
            if len(done) == len(ids) or time.monotonic() > deadline:
                assert ids <= set(found)
                # the engine is shared: its plugin may bring reports that it kept from tests before
                return {name: found[name] for name in ids}
            time.sleep(0.1)
    finally:
        store.close()


def _spans(sidecar: Sidecar, name: str, ids: set[str]) -> dict[str, dict[str, Any]]:
    """Return the attributes of stored spans called ``name``, by the request's id, of ``ids`` alone."""
    connection = sqlite3.connect(sidecar.db.removeprefix("sqlite:///"))
    try:
        rows = connection.execute("SELECT attributes FROM spans WHERE name = ?", (name,)).fetchall()
    finally:
        connection.close()
    found = [json.loads(row[0]) for row in rows]
    by_id = {request_id_of_engine(attributes["gen_ai.request.id"]): attributes for attributes in found}
    return {name: attributes for name, attributes in by_id.items() if name in ids}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Some traffic through an agent, and what was found out about it afterwards."""

    sent: Mapping[str, Sent]
    records: Mapping[str, RequestRecord]
    spans: Mapping[str, Mapping[str, Any]]
    plugin: Mapping[str, Mapping[str, Any]]
    hits: int  # by which the engine's counters grew
    queries: int
    sums_agree: tuple[bool, str]


@pytest.fixture(scope="module")
def run(vllm_server: Engine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("agent")
    with _agent(vllm_server, folder) as sidecar:
        before = _counter(vllm_server, _HITS), _counter(vllm_server, _QUERIES)
        sent = {
            one.request_id: one
            for one in asyncio.run(_conversations(sidecar.gateway, vllm_server, tag="whole"))
        }
        records = _records(sidecar, set(sent))
        after = _counter(vllm_server, _HITS), _counter(vllm_server, _QUERIES)
        store = open_store(sidecar.db)
        try:
            (check,) = (
                check
                for check in run_checks(store, vllm=vllm_server.url, agent=sidecar.admin)
                if check.name == "sums agree"
            )
        finally:
            store.close()
        return Run(
            sent=sent,
            records=records,
            spans=_spans(sidecar, "llm_request", set(sent)),
            plugin=_spans(sidecar, "kvscope.request", set(sent)),
            hits=after[0] - before[0],
            queries=after[1] - before[1],
            sums_agree=(check.ok, check.detail),
        )


def test_every_request_has_a_record_a_span_and_a_plugin_report(run: Run) -> None:
    assert len(run.sent) > 40
    assert set(run.records) == set(run.spans) == set(run.plugin) == set(run.sent)


def test_tokens_are_those_of_the_answers(run: Run) -> None:
    told = {name: one.usage for name, one in run.sent.items() if one.usage is not None}
    assert len(told) > 20
    for name, usage in told.items():
        record = run.records[name]
        assert record.prompt_tokens == usage["prompt_tokens"]
        assert record.output_tokens == usage["completion_tokens"]
        assert record.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]
    assert any(run.records[name].cached_tokens for name in told)


def test_clients_that_asked_for_no_usage_got_none(run: Run) -> None:
    without = [name for name, one in run.sent.items() if one.usage is None]
    assert without
    assert all(run.records[name].cached_tokens is not None for name in without)


def test_times_are_those_of_the_engines_spans(run: Run) -> None:
    for name, span in run.spans.items():
        record = run.records[name]
        assert record.ttft_seconds == span["gen_ai.latency.time_to_first_token"]
        assert record.queue_seconds == span["gen_ai.latency.time_in_queue"]
        assert record.prefill_seconds == span["gen_ai.latency.time_in_model_prefill"]
        assert record.decode_seconds == span["gen_ai.latency.time_in_model_decode"]
        assert record.e2e_seconds == span["gen_ai.latency.e2e"]
        assert record.prompt_tokens == span["gen_ai.usage.prompt_tokens"]
        output = span["gen_ai.usage.completion_tokens"]
        assert record.output_tokens == output
        expected = None if output < 2 else span["gen_ai.latency.time_in_model_decode"] / (output - 1)
        assert record.tpot_seconds == pytest.approx(expected)
        if run.sent[name].usage is None:  # it streamed: the gateway, outside the engine, saw the first token
            assert record.ttft_client_seconds is not None
            ttft = span["gen_ai.latency.time_to_first_token"]
            assert record.ttft_client_seconds > ttft - 0.05  # two clocks, two processes


def test_the_plugin_tells_the_same_tokens_as_the_answers(run: Run) -> None:
    for name, report in run.plugin.items():
        record = run.records[name]
        assert report["gen_ai.usage.cache_read.input_tokens"] == record.cached_tokens
        assert record.preemptions == 0
        assert record.replica == "0"


def test_the_sum_of_cached_tokens_is_the_engines_counter_exactly(run: Run) -> None:
    assert sum(record.cached_tokens or 0 for record in run.records.values()) == run.hits > 0
    assert sum(record.prompt_tokens or 0 for record in run.records.values()) == run.queries
    assert run.sums_agree[0], run.sums_agree[1]


def test_hits_and_causes_are_the_prompt_exactly(run: Run) -> None:
    causes: dict[str, int] = {}
    for record in run.records.values():
        assert record.causes is not None
        assert record.cached_tokens is not None
        assert record.cached_tokens + sum(record.causes.values()) == record.prompt_tokens
        for cause, tokens in record.causes.items():
            causes[cause] = causes.get(cause, 0) + tokens
    assert causes["diverged"] > causes["granularity"] > 0


def test_requests_keep_their_session_and_route(run: Run) -> None:
    routes = {record.route for record in run.records.values()}
    assert {"support", "agent", "chat"} < routes
    for name, record in run.records.items():
        if "completion" not in name:
            assert record.session is not None
            assert record.session.startswith(name.split("-")[1])


def test_the_plugin_alone_tells_cached_tokens_where_no_usage_was_asked(
    vllm_server: Engine, tmp_path: Path
) -> None:
    def observe_only(config: dict[str, Any]) -> None:
        config["collectors"]["gateway"]["ask_usage"] = False

    body = {
        "model": vllm_server.model,
        "stream": True,
        "max_tokens": 3,
        "messages": [{"role": "user", "content": "Nobody asks what this costs. " * 60}],
    }

    async def send(url: str) -> list[Sent]:
        async with aiohttp.ClientSession() as http:
            return [
                await _send(http, f"{url}/v1/chat/completions", f"quiet-{n}", dict(body)) for n in range(3)
            ]

    with _agent(vllm_server, tmp_path, observe_only) as sidecar:
        before = _counter(vllm_server, _HITS)
        sent = asyncio.run(send(sidecar.gateway))
        records = _records(sidecar, {one.request_id for one in sent})
        grown = _counter(vllm_server, _HITS) - before
    assert all(one.usage is None for one in sent)
    assert all(record.sources["cached_tokens"] == "plugin" for record in records.values())
    cached = [records[f"quiet-{number}"].cached_tokens for number in range(3)]
    assert None not in cached
    assert cached[1] == cached[2]
    assert (cached[1] or 0) > 200
    assert sum(tokens or 0 for tokens in cached) == grown


def test_several_sequences_and_shared_ids_add_up_to_the_counters(vllm_server: Engine, tmp_path: Path) -> None:
    text = "Several answers to one question share its prompt. " * 40
    chat = {
        "model": vllm_server.model,
        "max_tokens": 3,
        "messages": [{"role": "user", "content": text}],
    }
    prompts = [text, text + "And more. " * 20, "short"]
    completion = {"model": vllm_server.model, "max_tokens": 3, "prompt": prompts, "n": 2}

    async def send(url: str) -> None:
        async with aiohttp.ClientSession() as http:
            for body in (chat, chat | {"n": 3}, chat | {"n": 3, "stream": True}):
                await _send(http, f"{url}/v1/chat/completions", "shared", body)
            await _send(http, f"{url}/v1/completions", "several", completion)
            await _send(http, f"{url}/v1/completions", "streamed", completion | {"stream": True})

    ids = {"shared": 1, "shared~2": 3, "shared~3": 3, "several": 6, "streamed": 6}
    with _agent(vllm_server, tmp_path) as sidecar:
        before = _counter(vllm_server, _HITS), _counter(vllm_server, _QUERIES)
        asyncio.run(send(sidecar.gateway))
        records = _records(sidecar, set(ids))
        grown = (
            _counter(vllm_server, _HITS) - before[0],
            _counter(vllm_server, _QUERIES) - before[1],
        )
    assert {name: record.sequences for name, record in records.items()} == ids
    assert sum(record.cached_tokens or 0 for record in records.values()) == grown[0] > 0
    assert sum(record.prompt_tokens or 0 for record in records.values()) == grown[1]
    for record in records.values():
        assert record.causes is not None
        assert record.cached_tokens is not None
        assert record.cached_tokens + sum(record.causes.values()) == record.prompt_tokens
