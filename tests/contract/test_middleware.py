"""The middleware inside an engine's server: clients get every byte as before, the agent gets the records."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
from starlette.responses import Response, StreamingResponse

from collectors.gateway.middleware import Observe
from collectors.gateway.reporting import Reporter
from collectors.gateway.reports import CONTENT_TYPE, PATH, Reports, encode
from collectors.gateway.reports_receiver import FACTORY, Receiver
from kvscope.demo.engines import free_port
from kvscope.errors import RetryableIngestError
from kvscope.model.prompt import Prompt
from kvscope.model.request import Status
from kvscope.pipeline.listen import AsgiListener, bind
from tests.support.gateway import CHAT, PromptLog
from tests.support.telemetry import AnsweringSink, context, eventually

USAGE = {"prompt_tokens": 70, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 64}}
BODY = {
    "model": "m",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
}


def _event(delta: Mapping[str, Any], reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice], **more}, separators=(",", ":")).encode() + b"\n\n"


EVENTS = (
    _event({"role": "assistant", "content": ""}),
    _event({"content": "Hello"}),
    _event({"content": " you"}, "stop"),
    b"data: " + json.dumps({"choices": [], "usage": USAGE}, separators=(",", ":")).encode() + b"\n\n",
    b"data: [DONE]\n\n",
)


class Server:
    """A plain ASGI application in place of an engine's; it keeps what it heard."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.pause = 0.0
        self.fault: Exception | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        if b'"stream"' in body:
            answer: Response = StreamingResponse(self._events(), media_type="text/event-stream")
        else:
            answer = Response(self.document, media_type="application/json")
        await answer(scope, receive, send)

    async def _events(self) -> AsyncIterator[bytes]:
        for part in EVENTS:
            yield part
            await asyncio.sleep(self.pause)
            if self.fault is not None:
                raise self.fault

    document = json.dumps({"choices": [{"finish_reason": "stop", "message": {}}], "usage": USAGE}).encode()


class Running:
    """The server with the middleware in it, beside an agent's receiver."""

    def __init__(self, url: str, sink: AnsweringSink, prompts: PromptLog, receiver: Receiver) -> None:
        self.url = url
        self.sink = sink
        self.prompts = prompts
        self.receiver = receiver

    @property
    def records(self) -> list[dict[str, Any]]:
        parts = [part for batch in self.sink.accepted for part in batch.parts]
        return [{"request_id": part.request_id, **part.values} for part in parts]

    async def ask(self, body: Any = BODY, *, path: str = CHAT, **headers: str) -> bytes:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.url}{path}", json=body, headers=headers) as answer,
        ):
            return await answer.read()


@contextlib.asynccontextmanager
async def _running(
    server: Server, *, sink: AnsweringSink | None = None, port: int | None = None
) -> AsyncIterator[Running]:
    """Run the server; with ``port`` nobody listens for its reports there."""
    taken = sink or AnsweringSink()
    prompts = PromptLog()
    receiver_port = free_port()
    given = context(taken, upstreams=["http://engine:8000"])
    object.__setattr__(given, "prompts", prompts)
    receiver = FACTORY.create(FACTORY.settings(port=receiver_port), given)
    await receiver.start()
    reporter = Reporter(f"http://127.0.0.1:{port or receiver_port}")
    socket = bind("127.0.0.1", 0, setting="--port")
    listener = AsgiListener(Observe(server, reporter=reporter), socket, drain_seconds=1.0)
    await listener.start()
    try:
        yield Running(f"http://127.0.0.1:{listener.port}", taken, prompts, receiver)  # type: ignore[arg-type]
    finally:
        await listener.stop()
        await asyncio.to_thread(reporter.stop)
        await receiver.stop()


async def test_a_stream_passes_unchanged_and_is_recorded() -> None:
    server = Server()
    server.pause = 0.02
    async with _running(server) as running:
        answer = await running.ask({**BODY, "stream": True}, **{"X-Request-Id": "r-1", "X-Session-Id": "s"})
        assert answer == b"".join(EVENTS)
        await eventually(lambda: len(running.records) == 1)
        (record,) = running.records
    assert record["request_id"] == "r-1"
    assert (record["status"], record["finish_reason"], record["session"]) == (Status.OK, "stop", "s")
    assert (record["prompt_tokens"], record["output_tokens"], record["cached_tokens"]) == (70, 2, 64)
    assert record["engine"] == "http://engine:8000"
    assert record["model"] == "m"
    assert 0.02 <= record["ttft_client_seconds"] < 1
    assert 0.02 <= record["itl_p50_seconds"] < 1
    assert record["requests_in_flight"] == 0
    (prompt,) = running.prompts.prompts
    assert isinstance(prompt, Prompt)
    assert (prompt.request_id, prompt.body, prompt.route) == (
        "r-1",
        {**BODY, "stream": True},
        record["route"],
    )


async def test_a_document_without_ids_gets_ids_that_all_sources_share() -> None:
    server = Server()
    async with _running(server) as running:
        assert await running.ask() == server.document
        await eventually(lambda: len(running.records) == 1)
        (record,) = running.records
    (heard,) = server.headers
    assert heard["x-request-id"] == record["request_id"]
    assert heard["traceparent"].split("-")[1] == record["trace_id"]
    assert json.loads(server.bodies[0]) == BODY
    assert (record["status"], record["cached_tokens"]) == (Status.OK, 64)


async def test_what_a_gateway_has_observed_is_not_observed_again() -> None:
    async with _running(Server()) as running:
        await running.ask(**{"X-Kvscope-Observed": "gateway"})
        await running.ask(path="/tokenize")
        await running.ask(**{"X-Request-Id": "r-2"})
        await eventually(lambda: len(running.records) == 1)
        assert running.records[0]["request_id"] == "r-2"


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b"\xff", b'{"messages": 5}', b"[" * 10_000])
async def test_any_body_reaches_the_server_and_is_recorded(body: bytes) -> None:
    server = Server()
    async with _running(server) as running:
        async with aiohttp.ClientSession() as http, http.post(f"{running.url}{CHAT}", data=body) as answer:
            assert await answer.read() == server.document
        await eventually(lambda: len(running.records) == 1)
    assert server.bodies == [body]


async def test_a_body_too_large_to_keep_passes_unobserved() -> None:
    server = Server()
    async with _running(server) as running:
        large = b" " * (17 * 2**20)
        url = f"{running.url}{CHAT}"
        async with aiohttp.ClientSession() as http, http.post(url, data=io.BytesIO(large)) as answer:
            assert await answer.read() == server.document
        await running.ask()
        await eventually(lambda: len(running.records) == 1)
    assert len(server.bodies[0]) == len(large)


async def test_a_client_that_goes_away_is_aborted_and_a_fault_of_the_server_an_error() -> None:
    server = Server()
    server.pause = 0.3
    async with _running(server) as running:
        body = {**BODY, "stream": True}
        async with aiohttp.ClientSession() as http, http.post(f"{running.url}{CHAT}", json=body) as answer:
            await answer.content.read(10)
            answer.close()
        await eventually(lambda: len(running.records) == 1)
        server.fault = RuntimeError("the engine's own")
        with contextlib.suppress(aiohttp.ClientError):
            await running.ask(body)
        await eventually(lambda: len(running.records) == 2)
        assert [record["status"] for record in running.records] == [Status.ABORTED, Status.ERROR]


async def test_an_agent_that_is_away_costs_nothing() -> None:
    server = Server()
    async with _running(server, port=free_port()) as running:
        answers = await asyncio.gather(*(running.ask() for _ in range(20)))
        assert set(answers) == {server.document}
        assert running.records == []


async def test_an_agent_that_was_full_gets_the_same_reports_again_and_counts_them_once() -> None:
    tries: list[int] = []

    def answer(_: Any) -> int | Exception:
        tries.append(1)
        return RetryableIngestError("full") if len(tries) < 3 else 0

    async with _running(Server(), sink=AnsweringSink(answer)) as running:
        await running.ask()
        await eventually(lambda: len(running.records) == 1)
        await running.ask()
        await eventually(lambda: len(running.records) == 2)
        assert len(running.prompts.prompts) == 2
        assert running.receiver.health() == (
            True,
            f"listens on 127.0.0.1:{running.receiver._settings.port}; 2 requests reported",
        )


async def test_an_id_that_was_used_before_is_told_apart() -> None:
    server = Server()
    async with _running(server) as running:
        for _ in range(2):
            await running.ask(**{"X-Request-Id": "same"})
        await eventually(lambda: len(running.records) == 2)
    assert {record["request_id"] for record in running.records} == {"same", "same~2"}
    assert [heard["x-request-id"] for heard in server.headers] == ["same", "same~2"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not a message of kvscope's middleware"),
        (b"\xc1", "not a message of kvscope's middleware"),
        (b"\x81\xa7version\x63", "speaks version 99 and the agent 1"),
        (encode(Reports()) + b"x", "not a message of kvscope's middleware"),
    ],
)
async def test_what_is_no_report_is_refused_in_one_line(body: bytes, says: str) -> None:
    async with _running(Server()) as running:
        url = f"http://127.0.0.1:{running.receiver._settings.port}{PATH}"
        headers = {"Content-Type": CONTENT_TYPE}
        async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
            assert answer.status == 400
            text = await answer.text()
    assert says in text
    assert "\n" not in text


async def test_a_server_that_refuses_makes_the_middleware_step_aside() -> None:
    """Another version's agent answers 400; requests go on and nothing more is kept."""
    other = Server()

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"another version"})

    listener = AsgiListener(refusing, bind("127.0.0.1", 0, setting="--port"))
    await listener.start()
    reporter = Reporter(f"http://127.0.0.1:{listener.port}")
    observe = Observe(other, reporter=reporter)
    served = AsgiListener(observe, bind("127.0.0.1", 0, setting="--port"))
    await served.start()
    try:
        async with aiohttp.ClientSession() as http:
            url = f"http://127.0.0.1:{served.port}{CHAT}"
            async with http.post(url, json=BODY) as answer:
                assert await answer.read() == other.document
            await eventually(lambda: reporter.refused)
            async with http.post(url, json=BODY) as answer:
                assert await answer.read() == other.document
        assert "x-request-id" not in other.headers[1]
    finally:
        await served.stop()
        await listener.stop()
        await asyncio.to_thread(reporter.stop)


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.gateway.reporting._MOST_REPORTS", 0)
    reporter = Reporter("http://127.0.0.1:9")
    reporter.offer(None)  # type: ignore[arg-type]
    assert reporter.lost == 1


@pytest.mark.parametrize("endpoint", ["agent:8802", "https://agent", "", "http://"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="is not a URL such as"):
        Reporter(endpoint)
