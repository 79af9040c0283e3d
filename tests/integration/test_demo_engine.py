"""The built-in engine over the wire: what it answers, counts, sends and publishes."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec
import pytest
import zmq
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from typing_extensions import override

from kvscope.demo.engines import BUILTIN_MODEL, Engine, EngineOptions, free_port, start_builtin
from kvscope.errors import UnreachableError
from kvscope.prompts.tokenizing import ServerTokenizer, load_tokenizer

_QUESTION: dict[str, Any] = {
    "model": BUILTIN_MODEL,
    "max_tokens": 5,
    "temperature": 0.5,
    "messages": [{"role": "user", "content": "What is a prefix cache, and when does it help? " * 12}],
}
_RECORDED = Path(__file__).parents[1] / "data" / "engine" / "chunks.jsonl"


async def _post(url: str, body: Any, **headers: str) -> tuple[int, Any, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as http, http.post(url, data=data, headers=headers) as response:
        return response.status, response.headers, await response.read()


def _events(raw: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line]
    assert lines.pop() == b"[DONE]"
    return [json.loads(line) for line in lines]


def _shape(value: Any) -> Any:
    """Return the keys and kinds of a document, without its values."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(value[0])] if value else []
    return type(value).__name__


async def _counters(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
        page = await response.text()
    return {name: float(value) for name, value in re.findall(r"^(vllm:\w+)\{.*\} (\S+)$", page, re.MULTILINE)}


@pytest.fixture(scope="module")
def engine(tiny_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine for tests that do not mind what others sent."""
    options = EngineOptions(
        model=tiny_tokenizer, otlp_endpoint=f"http://127.0.0.1:{free_port()}", time_scale=0.2
    )
    engine = start_builtin(options, tmp_path_factory.mktemp("engine") / "log")
    yield engine
    engine.stop()


async def test_every_answer_says_that_no_model_made_it(engine: Engine) -> None:
    url = engine.url
    status, headers, raw = await _post(f"{url}/v1/chat/completions", _QUESTION)
    assert status == 200
    assert headers["x-kvscope-engine"] == "builtin"
    assert json.loads(raw)["system_fingerprint"] == "kvscope-builtin-engine"
    _, headers, raw = await _post(f"{url}/v1/chat/completions", _QUESTION | {"stream": True})
    assert headers["x-kvscope-engine"] == "builtin"
    assert _events(raw)[-1]["system_fingerprint"] == "kvscope-builtin-engine"
    async with aiohttp.ClientSession() as http, http.get(f"{url}/version") as response:
        assert "kvscope-builtin-engine" in (await response.json())["version"]


@pytest.mark.parametrize("line", range(5))
async def test_answers_have_the_shapes_that_vllm_sent(engine: Engine, line: int) -> None:
    recorded = json.loads(_RECORDED.read_text().splitlines()[line])
    status, headers, raw = await _post(
        engine.url + recorded["path"], recorded["body"] | {"model": BUILTIN_MODEL}
    )
    assert status == recorded["status"]
    assert headers["content-type"] == recorded["content_type"]
    if recorded["body"].get("stream"):
        ours, theirs = _events(raw), _events(recorded["raw"].encode())
        assert [_shape(event) for event in ours] == [_shape(event) for event in theirs]
        assert [event.get("usage") for event in ours] == [event.get("usage") for event in theirs]
    else:
        ours, theirs = json.loads(raw), json.loads(recorded["raw"])
        assert _shape(ours) == _shape(theirs)
        assert ours["usage"] == theirs["usage"]


async def test_tokens_are_those_of_the_models_files(engine: Engine, tiny_tokenizer: Path) -> None:
    server = ServerTokenizer(engine.url)
    local = load_tokenizer(tiny_tokenizer)
    for api, body in (("chat", _QUESTION), ("completion", {"model": BUILTIN_MODEL, "prompt": "hello world"})):
        assert await asyncio.to_thread(server.encode, api, body) == local.encode(api, body)
    _, _, raw = await _post(f"{engine.url}/v1/chat/completions", _QUESTION)
    assert json.loads(raw)["usage"]["prompt_tokens"] == len(local.encode("chat", _QUESTION))


async def test_cached_tokens_add_up_to_the_counter(builtin_engine: Engine) -> None:
    url = f"{builtin_engine.url}/v1/chat/completions"
    prompt, cached = 0, []
    for number in range(6):
        body = _QUESTION | {
            "messages": [*_QUESTION["messages"], {"role": "user", "content": f"{number % 3}"}]
        }
        usage = json.loads((await _post(url, body))[2])["usage"]
        prompt += usage["prompt_tokens"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    counters = await _counters(builtin_engine.url)
    assert cached[0] == 0
    assert all(tokens > 0 and tokens % 32 == 0 for tokens in cached[1:])
    assert counters["vllm:prefix_cache_hits_total"] == sum(cached)
    assert counters["vllm:prefix_cache_queries_total"] == prompt == counters["vllm:prompt_tokens_total"]
    assert counters["vllm:time_to_first_token_seconds_count"] == 6
    assert counters["vllm:num_requests_running"] == counters["vllm:num_requests_waiting"] == 0


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        (b'{"model": "tiny"', 400, "body"),
        (b"[1, 2]", 400, "body"),
        (b"\xff\xfe", 400, "body"),
        (b"[" * 100_000, 400, "body"),
        ({"messages": None}, 400, "body.messages"),
        ({"messages": "hello"}, 400, "messages"),
        ({"messages": [{"content": "no role"}]}, 400, "messages"),
        ({"model": "other"}, 404, "model"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"max_tokens": 10_000}, 400, "max_tokens"),
        ({"n": 3}, 400, "n"),
        ({"cache_salt": 5}, 400, "cache_salt"),
        ({"stream_options": True}, 400, "stream_options"),
    ],
)
async def test_a_bad_body_is_answered_with_openais_error(
    engine: Engine, change: Any, status: int, param: str
) -> None:
    body = change if isinstance(change, bytes) else _QUESTION | change
    answered, _, raw = await _post(f"{engine.url}/v1/chat/completions", body)
    error = json.loads(raw)["error"]
    assert (answered, error["code"], error["param"]) == (status, status, param)
    assert error["message"]


class _Receiver(TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list[Any] = []

    @override
    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return ExportTraceServiceResponse()


@pytest.fixture
def receiver(builtin_engine: Engine) -> Iterator[_Receiver]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    receiver = _Receiver()
    add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(builtin_engine.options.otlp_endpoint.removeprefix("http://"))
    server.start()
    yield receiver
    server.stop(None).wait()


async def _eventually(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


async def test_a_span_tells_each_finished_request(builtin_engine: Engine, receiver: _Receiver) -> None:
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"X-Request-Id": "abc", "traceparent": f"00-{trace}-{parent}-01"}
    await _post(f"{builtin_engine.url}/v1/chat/completions", _QUESTION, **headers)
    await _eventually(lambda: receiver.spans)
    (span,) = receiver.spans
    values = {item.key: item.value for item in span.attributes}
    assert (span.name, span.kind) == ("llm_request", 2)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace, parent)
    assert values["gen_ai.request.id"].string_value == "chatcmpl-abc"
    assert values["gen_ai.usage.completion_tokens"].int_value == 5
    phases = [
        values[f"gen_ai.latency.time_in_{name}"].double_value
        for name in ("queue", "model_prefill", "model_decode", "model_inference")
    ]
    ttft = values["gen_ai.latency.time_to_first_token"].double_value
    assert ttft == pytest.approx(phases[0] + phases[1])
    assert phases[3] == pytest.approx(phases[1] + phases[2])
    assert not [key for key in values if "cached" in key]  # vLLM's spans do not tell it either


async def test_events_tell_what_is_cached(builtin_engine: Engine, tiny_tokenizer: Path) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    try:
        socket.subscribe(b"kv")
        socket.connect(builtin_engine.kv_events)
        await asyncio.sleep(0.3)  # a subscription needs a moment to arrive
        await _post(f"{builtin_engine.url}/v1/chat/completions", _QUESTION)
        assert await asyncio.to_thread(socket.poll, 5_000)
        topic, sequence, payload = socket.recv_multipart()
    finally:
        socket.close(0)
        context.term()
    _, events, rank = msgspec.msgpack.decode(payload)
    tokens = load_tokenizer(tiny_tokenizer).encode("chat", _QUESTION)
    assert (topic, int.from_bytes(sequence, "big"), rank) == (b"kv", 0, 0)
    (event,) = events
    assert (event["type"], event["parent_block_hash"], event["medium"]) == ("BlockStored", None, "GPU")
    assert event["token_ids"] == tokens[: len(tokens) // 32 * 32]
    assert len(event["block_hashes"]) == len(tokens) // 32


async def test_a_client_that_leaves_aborts_its_request(builtin_engine: Engine) -> None:
    body = _QUESTION | {"stream": True, "max_tokens": 4_000, "ignore_eos": True}
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{builtin_engine.url}/v1/chat/completions", json=body) as response:
            assert await response.content.readline()
            assert (await _counters(builtin_engine.url))["vllm:num_requests_running"] == 1
        deadline = time.monotonic() + 5
        while (await _counters(builtin_engine.url))["vllm:num_requests_running"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
    assert (await _counters(builtin_engine.url))["vllm:kv_cache_usage_perc"] == 0


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    options = EngineOptions(model=tmp_path, otlp_endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UnreachableError, match=r"(?s)stopped while starting.*no tokenizer at"):
        start_builtin(options, tmp_path / "log")
