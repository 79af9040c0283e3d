"""The clients that applications use talk to a real vLLM through the gateway, streaming and not."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from langchain_openai import ChatOpenAI

from kvscope.demo.engines import Engine
from tests.support.gateway import Running, running_gateway
from tests.support.telemetry import eventually

pytestmark = pytest.mark.vllm

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "unit",
            "description": "The unit of an answer",
            "parameters": {
                "type": "object",
                "properties": {"u": {"type": "string", "enum": ["c", "f"]}},
                "required": ["u"],
                "additionalProperties": False,
            },
        },
    }
]
ASKED: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something"}]


@pytest.fixture
async def gateway(vllm_server: Engine) -> AsyncIterator[Running]:
    async with running_gateway(vllm_server.url) as running:
        yield running


def base(gateway: Running) -> str:
    return f"http://127.0.0.1:{gateway.server.port}"


async def test_the_openai_client_chats_and_completes(gateway: Running, vllm_server: Engine) -> None:
    async with openai.AsyncOpenAI(base_url=f"{base(gateway)}/v1", api_key="none") as client:
        assert [model.id async for model in client.models.list()] == [vllm_server.model]
        fixed: dict[str, Any] = {"model": vllm_server.model, "max_tokens": 6, "temperature": 0, "seed": 1}
        whole = await client.chat.completions.create(messages=ASKED, **fixed)
        stream = await client.chat.completions.create(messages=ASKED, stream=True, **fixed)
        chunks = [chunk async for chunk in stream]
        told = await client.chat.completions.create(
            messages=ASKED, stream=True, stream_options={"include_usage": True}, **fixed
        )
        usage = [chunk.usage async for chunk in told][-1]
        text = await client.completions.create(prompt="Once upon", **fixed)
        raw = await client.chat.completions.with_raw_response.create(messages=ASKED, **fixed)
        records = gateway.records
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == whole.choices[0].message.content
    assert all(chunk.usage is None for chunk in chunks)  # it was not asked for
    assert usage is not None
    assert usage.completion_tokens == 6
    assert whole.usage is not None
    assert text.choices[0].text
    assert raw.headers["x-kvscope-request-id"] == records[-1]["request_id"]
    assert [record["status"] for record in records] == ["ok"] * 5
    assert [record["output_tokens"] for record in records] == [6] * 5
    assert records[1]["prompt_tokens"] == whole.usage.prompt_tokens


async def test_the_openai_client_calls_tools_and_asks_for_responses(
    gateway: Running, vllm_server: Engine
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{base(gateway)}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model=vllm_server.model,
            messages=ASKED,
            tools=TOOLS,
            tool_choice="required",
            max_tokens=40,
            stream=True,
        )
        names = [
            call.function.name
            async for chunk in stream
            for call in chunk.choices[0].delta.tool_calls or ()
            if call.function and call.function.name
        ]
        asked: dict[str, Any] = {"model": vllm_server.model, "input": "Say something", "temperature": 0}
        answer = await client.responses.create(max_output_tokens=6, **asked)
        events = [
            event.type
            async for event in await client.responses.create(max_output_tokens=6, stream=True, **asked)
        ]
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="unknown", input="x")
        records = gateway.records
    assert names == ["unit"]
    assert answer.usage is not None
    assert events[0] == "response.created"
    assert [record["status"] for record in records] == ["ok", "ok", "ok", "rejected"]
    assert [record["output_tokens"] for record in records[1:3]] == [6, 6]
    assert records[1]["prompt_tokens"] == records[2]["prompt_tokens"] == answer.usage.input_tokens
    assert records[2]["ttft_client_seconds"] > 0


async def test_the_openai_client_hears_of_errors_and_may_hang_up(
    gateway: Running, vllm_server: Engine
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{base(gateway)}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await client.chat.completions.create(model=vllm_server.model, messages=ASKED, temperature=-1)
        stream = await client.chat.completions.create(
            model=vllm_server.model, messages=ASKED, max_tokens=4000, stream=True
        )
        async for _ in stream:
            break
        await stream.close()
        await eventually(lambda: len(gateway.records) == 2)
    assert [record["status"] for record in gateway.records] == ["rejected", "aborted"]


async def test_the_anthropic_client_talks_streaming_and_not(gateway: Running, vllm_server: Engine) -> None:
    messages: list[Any] = [{"role": "user", "content": "Say something"}]
    greedy = {"temperature": 0}  # the client itself does not know of it any more
    fixed: dict[str, Any] = {"model": vllm_server.model, "max_tokens": 6, "extra_body": greedy}
    async with anthropic.AsyncAnthropic(base_url=base(gateway), api_key="none") as client:
        whole = await client.messages.create(messages=messages, system="Be brief.", **fixed)
        async with client.messages.stream(messages=messages, system="Be brief.", **fixed) as stream:
            said = "".join([text async for text in stream.text_stream])
            final = await stream.get_final_message()
        counted = await client.messages.count_tokens(model=vllm_server.model, messages=messages)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(model="unknown", max_tokens=1, messages=messages)
        records = gateway.records
    text = "".join(block.text for block in whole.content if block.type == "text")
    assert said == text
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert counted.input_tokens > 0
    assert [record["status"] for record in records] == ["ok", "ok", "rejected"]
    assert [record["output_tokens"] for record in records[:2]] == [6, 6]
    assert [record["finish_reason"] for record in records[:2]] == ["length", "length"]
    prompt = records[0]["prompt_tokens"]
    assert prompt == records[1]["prompt_tokens"] > records[1]["cached_tokens"] >= 0


async def test_langchain_chats_streaming_and_not(gateway: Running, vllm_server: Engine) -> None:
    model = ChatOpenAI(
        model=vllm_server.model,
        base_url=f"{base(gateway)}/v1",
        api_key="none",
        temperature=0,
        max_tokens=6,
        seed=1,
    )
    whole = await model.ainvoke("Say something")
    pieces = [piece async for piece in model.astream("Say something")]
    bound = model.bind_tools(TOOLS, tool_choice="any")
    called = await bound.ainvoke("Say something")
    records = gateway.records
    assert "".join(str(piece.content) for piece in pieces) == whole.content
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 6
    assert called.response_metadata["finish_reason"] in {"length", "tool_calls", "stop"}
    assert [record["status"] for record in records] == ["ok"] * 3
    assert [record["output_tokens"] for record in records[:2]] == [6, 6]
