"""Faults on every side: traffic goes on where it can, the client is told where not, losses are counted."""

import asyncio
import json
from typing import Any

import pytest

from collectors.gateway.factory import FACTORY
from collectors.gateway.settings import GatewaySettings
from kvscope.errors import ConfigError, PermanentIngestError, RetryableIngestError
from kvscope.model.prompt import TransformSpec
from kvscope.pipeline.contracts import Batch, Decision
from kvscope.pipeline.listen import bind
from tests.support.gateway import (
    CHAT,
    FixedPolicy,
    Heard,
    PromptLog,
    Wire,
    chunked,
    document,
    fake_server,
    hear,
    recording,
    request,
    running_gateway,
    saying,
)
from tests.support.telemetry import AnsweringSink, context, eventually

STREAM = {"stream": True}
ASKED = {"stream": True, "stream_options": {"include_usage": True}}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
FAIL_OPEN = "kvscope_gateway_fail_open_total"


def events_of(body: bytes) -> list[Any]:
    return [json.loads(part.removeprefix(b"data: ")) for part in body.strip().split(b"\n\n")]


@pytest.mark.parametrize("body", [STREAM, ASKED])
async def test_an_upstream_that_dies_mid_stream_ends_it_with_an_error_event(body: dict[str, Any]) -> None:
    async def die(heard: Heard, wire: Wire) -> None:
        if heard.json.get("seed"):
            await wire.send(recording("chat"))
            return
        await wire.send(chunked(EVENT, EVENT, end=False))
        wire.cut()

    async with fake_server(die) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask(body)
        after = await gateway.ask({"seed": 1})
        records = gateway.records
    assert answer.complete
    events = events_of(answer.body)
    assert len(events) == 3
    assert (events[2]["error"]["type"], events[2]["error"]["code"]) == ("UpstreamError", 502)
    assert server.url in events[2]["error"]["message"]
    assert records[0]["status"] == "error"
    assert records[0]["ttft_client_seconds"] > 0
    assert (after.status, records[1]["status"]) == (200, "ok")


@pytest.mark.parametrize(("body", "parts"), [(ASKED, 3), (STREAM, 2)])
async def test_a_broken_event_does_not_swallow_the_error(body: dict[str, Any], parts: int) -> None:
    """The part of an event that has gone out is closed off; one that is held is not sent at all."""

    async def die(_: Heard, wire: Wire) -> None:
        await wire.send(chunked(EVENT, b'data: {"choices":[{"ind', end=False))
        wire.cut()

    async with fake_server(die) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask(body)
    blocks = answer.body.strip().split(b"\n\n")
    assert len(blocks) == parts
    assert b"UpstreamError" in blocks[-1]


async def test_a_held_last_chunk_is_not_lost_with_the_upstream() -> None:
    last = b'data: {"choices":[{"index":0,"delta":{"content":"y"},"finish_reason":"stop"}]}\n\n'

    async def die(_: Heard, wire: Wire) -> None:
        await wire.send(chunked(EVENT, last, end=False))
        wire.cut()

    async with fake_server(die) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask(STREAM)
    assert answer.body.startswith(EVENT + last)


async def test_a_document_that_breaks_off_breaks_off_for_the_client() -> None:
    async def die(_: Heard, wire: Wire) -> None:
        await wire.send(document(b"x" * 1000)[:-500])
        wire.cut()

    async with fake_server(die) as server, running_gateway(server.url) as gateway:
        answers = [await gateway.ask({}, target=target) for target in (CHAT, "/v1/models")]
        records = gateway.records
    assert [answer.complete for answer in answers] == [False, False]
    assert [record["status"] for record in records] == ["error"]


async def test_an_upstream_that_hangs_up_before_answering() -> None:
    async def hang_up(_: Heard, wire: Wire) -> None:
        wire.cut()

    async with fake_server(hang_up) as server, running_gateway(server.url) as gateway:
        for target in (CHAT, "/v1/models"):
            answer = await gateway.ask({}, target=target)
            assert (answer.status, answer.json["error"]["type"]) == (502, "UpstreamError")
        assert [record["status"] for record in gateway.records] == ["error"]


async def test_an_unreachable_upstream_is_named() -> None:
    async with fake_server() as server:
        url = server.url
    async with running_gateway(url) as gateway:
        for target in (CHAT, "/metrics"):
            answer = await gateway.ask(STREAM, target=target)
            error = answer.json["error"]
            assert (answer.status, error["type"], error["code"], error["param"]) == (
                502,
                "UpstreamUnreachable",
                502,
                None,
            )
            assert url in error["message"]
        assert gateway.records[0]["status"] == "error"
        assert gateway.records[0]["prompt_chars"] == 0


@pytest.mark.parametrize("begins", [False, True])
async def test_an_upstream_that_says_nothing_runs_into_the_timeout(begins: bool) -> None:
    async def silent(_: Heard, wire: Wire) -> None:
        if begins:
            await wire.send(chunked(EVENT, end=False))
        await wire.peer_closed()

    async with (
        fake_server(silent) as server,
        running_gateway(server.url, settings={"read_timeout_seconds": 0.1}) as gateway,
    ):
        answer = await gateway.ask(STREAM)
        assert gateway.records[0]["status"] == "error"
    error = events_of(answer.body)[-1]["error"] if begins else answer.json["error"]
    assert (answer.status, error["type"]) == (200 if begins else 504, "UpstreamTimeout")


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("target", [CHAT, "/v1/responses"])
async def test_a_client_that_goes_away_aborts_the_upstream_at_once(begins: bool, target: str) -> None:
    aborted = asyncio.Event()

    async def script(_: Heard, wire: Wire) -> None:
        if begins:
            await wire.send(chunked(EVENT, EVENT, end=False))
        await wire.peer_closed()
        aborted.set()

    async with fake_server(script) as server, running_gateway(server.url) as gateway:
        reader, writer = await gateway.connect()
        writer.write(request(STREAM, target=target))
        await eventually(lambda: bool(server.heard))
        if begins:
            await reader.readuntil(EVENT)
        writer.transport.abort()
        async with asyncio.timeout(1):
            await aborted.wait()
        if target == CHAT:
            await eventually(lambda: bool(gateway.records))
            assert gateway.records[0]["status"] == "aborted"
            assert ("ttft_client_seconds" in gateway.records[0]) == begins
        assert gateway.metric("kvscope_gateway_in_flight") == 0


async def test_a_client_that_goes_away_while_sending_never_reaches_the_server() -> None:
    async with fake_server() as server, running_gateway(server.url) as gateway:
        _, writer = await gateway.connect()
        writer.write(request(b"{", headers=[("Content-Length", "100")]))
        await eventually(lambda: gateway.metric("kvscope_gateway_in_flight") == 1)
        writer.transport.abort()
        await eventually(lambda: gateway.metric("kvscope_gateway_in_flight") == 0)
        assert (await gateway.ask({})).status == 200
    assert len(server.heard) == 1


@pytest.mark.parametrize("chunked_body", [False, True])
async def test_a_huge_body_is_refused(chunked_body: bool) -> None:
    async with (
        fake_server() as server,
        running_gateway(server.url, settings={"body_limit_bytes": 1000}) as gateway,
    ):
        body = b'"' + b"x" * 2000 + b'"'
        if chunked_body:
            raw = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            answer = await gateway.ask(raw, headers=[("Transfer-Encoding", "chunked")])
        else:
            answer = await gateway.ask(body)
        assert (answer.status, answer.json["error"]["code"]) == (413, 413)
        assert "1000 bytes" in answer.json["error"]["message"]
        assert gateway.records[0]["status"] == "rejected"
        assert (await gateway.ask(b'"' + b"x" * 998 + b'"')).status == 200
    assert len(server.heard) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff\xfe",
        b'{"messages": [',
        b"[1]",
        b"null",
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b'{"temperature": NaN}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        "{'a': 1}".encode("utf-16"),
    ],
)
async def test_what_is_not_a_json_object_is_the_servers_to_refuse(body: bytes) -> None:
    async with fake_server(saying(recording("not_json"))) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask(body)
        record = gateway.records[0]
        assert gateway.prompts.prompts == []
    assert server.heard[0].body == body
    assert answer.status == 400
    assert record["status"] == "rejected"
    assert "prompt_layout" not in record


BODIES: list[dict[str, Any]] = [
    {"messages": "text", "tools": 5, "stream": "yes", "n": "two", "prompt": {"a": 1}},
    {
        "messages": [None, {"role": 5, "content": {"a": 1}}],
        "tools": [None],
        "stream_options": [],
        "stream": True,
    },
    {"model": 7, "user": [], "session_id": {}, "request_id": 3},
]


@pytest.mark.parametrize("body", BODIES)
async def test_an_odd_body_passes_unchanged(body: dict[str, Any]) -> None:
    policy = FixedPolicy(
        Decision(transforms=[TransformSpec(kind="sort_tools"), TransformSpec(kind="normalize_whitespace")])
    )
    async with fake_server() as server, running_gateway(server.url, policy=policy) as gateway:
        answer = await gateway.ask(body)
        assert gateway.metric(FAIL_OPEN, part="transforms") == 0
    assert answer.status == 200
    assert server.heard[0].json == body


class Broken:
    """A decision that is none."""


@pytest.mark.parametrize(
    ("part", "neighbours"),
    [
        ("policy", {"policy": FixedPolicy(RuntimeError("secret prompt"))}),
        ("transforms", {"policy": FixedPolicy(Decision(transforms=[TransformSpec(kind="nonsense")]))}),
        ("transforms", {"policy": FixedPolicy(Decision(transforms=[Broken()]))}),  # type: ignore[list-item]
        ("policy", {"policy": FixedPolicy(Broken())}),  # type: ignore[arg-type]
        ("prompts", {"prompts": PromptLog(ValueError("secret prompt"))}),
        ("record", {"sink": AnsweringSink(lambda _: PermanentIngestError("secret prompt"))}),
        ("record", {"sink": AnsweringSink(lambda _: OSError("disk"))}),
    ],
)
async def test_a_part_that_fails_lets_traffic_pass_and_is_counted(
    part: str, neighbours: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{ "messages": [], "stream": false }'
    async with fake_server() as server, running_gateway(server.url, **neighbours) as gateway:
        answers = [await gateway.ask(body) for _ in range(3)]
        assert gateway.metric(FAIL_OPEN, part=part) == 3
        if part != "record":
            assert [record["status"] for record in gateway.records] == ["ok"] * 3
            assert gateway.records[0]["prompt_layout"] == "as_sent"
    assert [answer.status for answer in answers] == [200] * 3
    assert [heard.body for heard in server.heard] == [body] * 3
    assert "secret" not in caplog.text
    assert caplog.text.count(f"gateway: {part} failed") == 1


async def test_records_that_the_queue_refuses_are_counted() -> None:
    refused: list[Batch] = []

    def refuse(batch: Batch) -> int | Exception:
        refused.append(batch)
        return RetryableIngestError("full")

    async with fake_server() as server, running_gateway(server.url, sink=AnsweringSink(refuse)) as gateway:
        assert (await gateway.ask({})).status == 200
        assert gateway.metric("kvscope_gateway_lost_records_total") == 1
        assert gateway.metric(FAIL_OPEN, part="record") == 0
    assert len(refused) == 1


async def test_an_answer_that_is_too_large_to_read_passes() -> None:
    raw = json.dumps({"usage": {"prompt_tokens": 1}, "pad": "x" * 5000}).encode()
    async with (
        fake_server(saying(document(raw))) as server,
        running_gateway(server.url, settings={"answer_limit_bytes": 1000}) as gateway,
    ):
        answer = await gateway.ask({})
        record = gateway.records[0]
    assert answer.body == raw
    assert (record["status"], "prompt_tokens" in record) == ("ok", False)


async def test_an_event_that_is_too_large_to_hold_passes() -> None:
    big = (
        b'data: {"choices":[{"index":0,"delta":{"content":"'
        + b"x" * 3_000_000
        + b'"},"finish_reason":null}]}\n\n'
    )
    answer_bytes = chunked(EVENT, big, EVENT, b"data: [DONE]\n\n")
    async with fake_server(saying(answer_bytes)) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask(STREAM)
        record = gateway.records[0]
    assert answer.body == EVENT + big + EVENT + b"data: [DONE]\n\n"
    assert record["status"] == "ok"


async def test_the_shutdown_ends_what_does_not_finish() -> None:
    async def endless(_: Heard, wire: Wire) -> None:
        await wire.send(chunked(EVENT, end=False))
        await wire.peer_closed()

    async with (
        fake_server(endless) as server,
        running_gateway(server.url, settings={"drain_seconds": 0}) as gateway,
    ):
        reader, writer = await gateway.connect()
        writer.write(request(STREAM))
        await reader.readuntil(EVENT)
        await gateway.server.stop()
        await eventually(lambda: bool(gateway.records))
        assert gateway.records[0]["status"] == "aborted"
        writer.close()


async def test_a_port_in_use_is_one_clear_line() -> None:
    taken = bind("127.0.0.1", 0, setting="x")
    port = taken.getsockname()[1]
    gateway = FACTORY.create(GatewaySettings(port=port), context(upstreams=["http://127.0.0.1:1"]))
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{port}.*--gateway-port"):
        await gateway.start()
    assert gateway.health()[0] is False
    await gateway.stop()
    taken.close()


async def test_life_of_the_collector() -> None:
    port_finder = bind("127.0.0.1", 0, setting="x")
    port = port_finder.getsockname()[1]
    port_finder.close()
    async with fake_server() as server:
        gateway = FACTORY.create(FACTORY.settings(port=port), context(upstreams=[server.url]))
        await gateway.stop()
        await gateway.start()
        assert gateway.health() == (True, f"listens on 127.0.0.1:{port}, 0 requests inside")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request({}))
        answer = await hear(reader)
        writer.close()
        assert answer is not None
        assert answer.status == 200
        await gateway.stop()
        await gateway.stop()
    off = FACTORY.create(FACTORY.settings(port=0), context())
    await off.start()
    assert off.health() == (True, "off")
    with pytest.raises(ConfigError, match="--upstream"):
        await FACTORY.create(FACTORY.settings(port=port), context()).start()
