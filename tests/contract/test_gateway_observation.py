"""What the gateway tells of a request: times, tokens, ends, and what the policy made of it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kvscope.model.prompt import TransformSpec
from kvscope.pipeline.contracts import Decision
from kvscope.prompts.entropy import character_entropy
from kvscope.prompts.routes import RouteMiner
from kvscope.prompts.values import line_key_hash
from tests.support.gateway import (
    CHAT,
    COMPLETIONS,
    FixedPolicy,
    Heard,
    Wire,
    chunked,
    document,
    fake_server,
    recording,
    running_gateway,
    saying,
)

ASKED = {"stream": True, "stream_options": {"include_usage": True}}


def event(delta: Mapping[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
TOKEN = event({"content": "x"})
LAST = event({"content": "y"}, "stop")
DONE = b"data: [DONE]\n\n"


async def test_a_streams_record() -> None:
    body = {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Say something"},
        ],
        "user": "u-7",
        **ASKED,
    }
    async with (
        fake_server(saying(recording("chat_stream_usage"))) as server,
        running_gateway(server.url) as gateway,
    ):
        await gateway.ask(body, headers=[("X-Tenant-Id", "acme")])
        record = gateway.records[0]
    text = "Be brief.\nSay something"
    told = {name: record[name] for name in record if not name.endswith(("_seconds", "_id", "_at"))}
    assert told == {
        "engine": server.url,
        "status": "ok",
        "finish_reason": "length",
        "prompt_tokens": 24,
        "output_tokens": 5,
        "cached_tokens": 0,
        "requests_in_flight": 0,
        "model": "tiny",
        "prompt_chars": len(text),
        "prompt_entropy": character_entropy(text),
        "session": "u-7",
        "tenant": "acme",
        "route": RouteMiner().route("chat", body, None),
        "prompt_layout": "as_sent",
    }
    assert 0 < record["ttft_client_seconds"] < 5
    assert 0 < record["gateway_overhead_seconds"] < 1
    assert 0 <= record["itl_p50_seconds"] <= record["itl_p95_seconds"] <= record["itl_max_seconds"]


@pytest.mark.parametrize(
    ("name", "target", "tokens"),
    [("chat", CHAT, (24, 5, 0)), ("completion_two_prompts", COMPLETIONS, (4, 4, None))],
)
async def test_a_documents_record(name: str, target: str, tokens: tuple[int, int, int | None]) -> None:
    async with fake_server(saying(recording(name))) as server, running_gateway(server.url) as gateway:
        await gateway.ask({"prompt": ["a", "b"]}, target=target)
        record = gateway.records[0]
    assert (record["prompt_tokens"], record["output_tokens"], record.get("cached_tokens")) == tokens
    assert record["finish_reason"] == "length"
    assert "ttft_client_seconds" not in record


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, None),
        ({"prompt_tokens": 9}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}, 8),
        ({"prompt_tokens": "many", "prompt_tokens_details": []}, None),
        (None, None),
    ],
)
async def test_unknown_cached_tokens_are_not_zero(usage: object, cached: int | None) -> None:
    answer = document(json.dumps({"choices": [], "usage": usage}).encode())
    async with fake_server(saying(answer)) as server, running_gateway(server.url) as gateway:
        await gateway.ask({})
        record = gateway.records[0]
    assert record.get("cached_tokens") == cached
    assert ("cached_tokens" in record) == (cached is not None)


async def timed(*steps: tuple[float, bytes]) -> dict[str, Any]:
    """Return the record of a stream whose chunks come after so many seconds each."""

    async def script(_: Heard, wire: Wire) -> None:
        await wire.send(chunked(end=False))
        for seconds, data in steps:
            await asyncio.sleep(seconds)
            await wire.send(b"%x\r\n%s\r\n" % (len(data), data))
        await wire.send(b"0\r\n\r\n")

    async with fake_server(script) as server, running_gateway(server.url) as gateway:
        await gateway.ask(ASKED)
        return gateway.records[0]


async def test_a_role_is_not_a_token() -> None:
    record = await timed((0, ROLE), (0.1, TOKEN), (0.03, TOKEN), (0.12, LAST), (0, DONE))
    assert record["ttft_client_seconds"] >= 0.1
    assert record["itl_max_seconds"] >= 0.12
    assert record["itl_max_seconds"] > record["itl_p50_seconds"] >= 0.03
    assert record["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "first",
    [
        event({"reasoning": "hm"}),
        event({"reasoning_content": "hm"}),
        event({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
        b'data: {"choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":""},"token_ids":[5],"finish_reason":null}]}\n\n',
    ],
)
async def test_every_kind_of_output_ends_the_wait(first: bytes) -> None:
    record = await timed((0, ROLE), (0, first), (0.1, LAST), (0, DONE))
    assert record["itl_max_seconds"] >= 0.1  # were the first no output, the last would be the only one


async def test_comments_and_empty_chunks_are_no_tokens() -> None:
    record = await timed(
        (0, b": ping\n\n"), (0, ROLE), (0.05, b": ping\n\n"), (0.05, TOKEN), (0.02, b":\n\n"), (0, DONE)
    )
    assert record["ttft_client_seconds"] >= 0.1
    assert "itl_max_seconds" not in record


async def test_several_events_in_one_read_have_no_gaps() -> None:
    record = await timed((0, ROLE + TOKEN + TOKEN), (0.05, TOKEN + LAST + DONE))
    assert record["itl_p50_seconds"] == 0
    assert record["itl_max_seconds"] >= 0.05


async def test_an_error_inside_a_stream_is_an_error() -> None:
    failed = b'data: {"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}\n\n'
    record = await timed((0, ROLE), (0, TOKEN), (0, failed), (0, DONE))
    assert record["status"] == "error"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (recording("not_json"), "rejected"),
        (recording("unknown_model"), "rejected"),
        (document(b"{}", status="429 Too Many Requests"), "rejected"),
        (document(b"{}", status="500 Internal Server Error"), "error"),
        (document(b"[not json"), "ok"),
        (chunked(b"data: {broken\n\n", b"data: 5\n\n", b'data: {"choices": 3}\n\n', DONE), "ok"),
    ],
)
async def test_status_follows_the_answer(answer: bytes, status: str) -> None:
    async with fake_server(saying(answer)) as server, running_gateway(server.url) as gateway:
        await gateway.ask({})
        assert gateway.records[0]["status"] == status
        assert gateway.metric("kvscope_gateway_requests_total", status=status) == 1


async def test_requests_in_flight_are_the_others() -> None:
    go_on = asyncio.Event()

    async def wait(_: Heard, wire: Wire) -> None:
        await go_on.wait()
        await wire.send(recording("chat"))

    async with fake_server(wait) as server, running_gateway(server.url) as gateway:
        asking = []
        for number in range(3):
            asking.append(asyncio.create_task(gateway.ask({})))
            async with asyncio.timeout(10):
                while len(server.heard) <= number:  # noqa: ASYNC110 - the server's own list is what is waited for
                    await asyncio.sleep(0.005)
        assert gateway.metric("kvscope_gateway_in_flight") == 3
        go_on.set()
        await asyncio.gather(*asking)
        assert sorted(record["requests_in_flight"] for record in gateway.records) == [0, 1, 2]
        assert gateway.metric("kvscope_gateway_in_flight") == 0


TIME = "Current time: 2026-11-29 17:31:05"
SPECS = (
    TransformSpec(kind="sort_tools"),
    TransformSpec(kind="move_volatile", params={"role": "system", "line_keys": [line_key_hash(TIME)]}),
)
PROMPT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "system", "content": f"{TIME}\nYou help."}, {"role": "user", "content": "q"}],
    "tools": [{"type": "function", "function": {"name": name}} for name in ("b", "a")],
    "cache_salt": "s",
}


async def test_a_decision_is_applied_observed_and_recorded() -> None:
    policy = FixedPolicy(Decision(transforms=SPECS, experiment="e-1", arm="treatment", warmup=True))
    async with fake_server() as server, running_gateway(server.url, policy=policy) as gateway:
        answer = await gateway.ask(PROMPT, headers=[("X-Kvscope-Route", "support"), ("x-session-id", "s-1")])
        record, prompt = gateway.records[0], gateway.prompts.prompts[0]
    sent = {
        **PROMPT,
        "messages": [{"role": "system", "content": "You help."}, {"role": "user", "content": f"q\n\n{TIME}"}],
        "tools": PROMPT["tools"][::-1],
    }
    heard = server.heard[0]
    assert heard.json == sent
    assert heard.header("content-length") == str(len(heard.body))
    assert (prompt.body, prompt.sent_body, prompt.salt) == (PROMPT, sent, "s")
    assert (prompt.api, prompt.route, prompt.engine, prompt.session) == ("chat", "support", server.url, "s-1")
    asked = {
        "route": "support",
        "session": "s-1",
        "tenant": None,
        "request_id": prompt.request_id,
        "at": prompt.arrived_at,
    }
    assert policy.asked == [asked]
    assert [answer.header(f"x-kvscope-{name}") for name in ("experiment", "arm")] == ["e-1", "treatment"]
    told = [record[name] for name in ("prompt_layout", "experiment", "arm", "warmup", "route", "arrived_at")]
    assert told == ["move_volatile+sort_tools", "e-1", "treatment", True, "support", prompt.arrived_at]
    assert record["prompt_chars"] == len(
        '{"type": "function", "function": {"name": "b"}}\n' * 2 + f"{TIME}\nYou help.\nq"
    )


async def test_a_baseline_arm_goes_on_byte_for_byte() -> None:
    policy = FixedPolicy(Decision(experiment="e-1", arm="ärm\n", warmup=False))
    body = json.dumps(PROMPT, indent=2).encode()
    async with fake_server() as server, running_gateway(server.url, policy=policy) as gateway:
        answer = await gateway.ask(body)
        record, prompt = gateway.records[0], gateway.prompts.prompts[0]
    assert server.heard[0].body == body
    assert prompt.sent_body is prompt.body
    assert (record["arm"], record["warmup"], record["prompt_layout"]) == ("ärm\n", False, "as_sent")
    assert answer.header("x-kvscope-arm") == "ärm?".encode().decode("latin-1")


@pytest.mark.parametrize(("target", "api"), [("/v1/responses", "responses"), ("/v1/messages", "messages")])
async def test_apis_whose_prompts_are_not_changed_are_in_no_arm(target: str, api: str) -> None:
    policy = FixedPolicy(Decision(transforms=SPECS, experiment="e", arm="treatment", salt="s"))
    body = json.dumps({**PROMPT, "input": "Hi  \n"}, indent=2).encode()
    async with fake_server() as server, running_gateway(server.url, policy=policy) as gateway:
        answer = await gateway.ask(body, target=target)
        record = gateway.records[0]
        assert gateway.metric("kvscope_gateway_left_as_sent_total", api=api) == 1
    assert server.heard[0].body == body
    assert answer.header("x-kvscope-arm") is None
    assert (record.get("experiment"), record.get("arm"), record["prompt_layout"]) == (None, None, "as_sent")
    assert record["route"].startswith("auto-")


async def test_a_changed_stream_is_also_asked_for_usage() -> None:
    policy = FixedPolicy(Decision(transforms=SPECS))
    async with (
        fake_server(saying(recording("chat_stream_usage"))) as server,
        running_gateway(server.url, policy=policy) as gateway,
    ):
        await gateway.ask({**PROMPT, "stream": True})
        prompt = gateway.prompts.prompts[0]
    assert server.heard[0].json == {**prompt.sent_body, "stream_options": {"include_usage": True}}
    assert "stream_options" not in prompt.sent_body


@pytest.mark.parametrize(
    ("headers", "body", "session", "tenant"),
    [
        ([("X-Chat", "c"), ("x-team", "t")], {"session_id": "b", "user": "u"}, "c", "t"),
        ([("x-session-id", "h")], {"session_id": "b", "user": "u"}, "b", None),
        ([("X-Chat", "")], {"session_id": 5, "user": "u" * 999}, "u" * 256, None),
        ([], {"user": ""}, None, None),
    ],
)
async def test_session_and_tenant(
    headers: Sequence[tuple[str, str]], body: Mapping[str, Any], session: str | None, tenant: str | None
) -> None:
    settings = {"session_header": "X-Chat", "tenant_header": "X-Team"}
    async with fake_server() as server, running_gateway(server.url, settings=settings) as gateway:
        await gateway.ask(body, headers=headers)
        record = gateway.records[0]
    assert (record.get("session"), record.get("tenant")) == (session, tenant)
