"""The gateway in front of a real vLLM: the same bytes as without it, and numbers that add up."""

import asyncio
import re
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvscope.demo.engines import Engine
from tests.support.gateway import CHAT, COMPLETIONS, Heard, Running, hear, request, running_gateway
from tests.support.telemetry import eventually

pytestmark = pytest.mark.vllm

# the second of the answer, and digits that depend on what else the processor was doing
VOLATILE = re.compile(rb'"created":\d+|(?<="logprob":)-?[0-9.e-]+')


async def direct(
    engine: Engine, body: bytes | dict[str, Any], target: str, headers: list[tuple[str, str]]
) -> Heard:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", int(engine.url.rpartition(":")[2]), limit=2**26
    )
    writer.write(request(body, target=target, headers=headers))
    heard = await hear(reader)
    writer.close()
    assert heard is not None
    return heard


async def model_name(gateway: Running) -> str:
    models = (await gateway.ask(method="GET", target="/v1/models")).json
    return str(models["data"][0]["id"])


async def counter(engine: Engine, name: str, **labels: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{engine.url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def cases(model: str) -> list[tuple[str, bytes | dict[str, Any]]]:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something"}]
    chat = {"model": model, "messages": messages, "max_tokens": 6, "temperature": 0, "seed": 1}
    completion = {"model": model, "prompt": "Once upon", "max_tokens": 6, "temperature": 0}
    sampled = {"n": 2, "temperature": 0.8, "max_tokens": 3}
    return [
        (CHAT, chat),
        (CHAT, chat | {"stream": True}),
        (CHAT, chat | {"stream": True, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}),
        (CHAT, chat | {"stream": True, "stream_options": {"include_usage": True}}),
        (
            CHAT,
            chat
            | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
        (CHAT, chat | {"stream": True, "stream_options": {"continuous_usage_stats": True}}),
        (CHAT, chat | sampled),
        (CHAT, chat | sampled | {"stream": True}),
        (COMPLETIONS, completion),
        (COMPLETIONS, completion | {"stream": True}),
        (COMPLETIONS, completion | {"stream": True, "prompt": ["Once", "Then"], "max_tokens": 1}),
        (COMPLETIONS, completion | {"echo": True, "stream": True}),
        (CHAT, chat | {"max_tokens": -1}),
        (CHAT, chat | {"model": "unknown"}),
        (CHAT, chat | {"stream_options": {"include_usage": True}}),
        (CHAT, b'{"model": '),
        (CHAT, b"[]"),
        ("/tokenize", {"model": model, "prompt": "Once upon"}),
    ]


def comparable(heard: Heard, body: bytes | dict[str, Any]) -> tuple[object, ...]:
    """Return what must be equal of two answers to one request."""
    own = {"x-kvscope-request-id", "date", "content-length"}
    headers = sorted(row for row in heard.headers if row[0] not in own)
    chunks = [VOLATILE.sub(b"", chunk) for chunk in heard.chunks or [heard.body]]
    several = isinstance(body, dict) and ("n" in body or isinstance(body.get("prompt"), list))
    # the events of several choices come in any order
    return heard.line, headers, sorted(chunks) if several else chunks


async def test_a_client_gets_the_same_bytes_with_and_without_the_gateway(vllm_server: Engine) -> None:
    async with running_gateway(vllm_server.url) as gateway:
        for number, (target, body) in enumerate(cases(await model_name(gateway))):
            # an engine that is hurried puts two tokens into one chunk: then both are asked again
            tries = 10
            without: tuple[object, ...] = ()
            through: tuple[object, ...] = (None,)
            while through != without and (tries := tries - 1):
                # one id for both ways, another for each try: a gateway tells repeated ids apart
                headers = [("X-Request-Id", f"same-{number}-{tries}")]
                without = comparable(await direct(vllm_server, body, target, headers), body)
                through = comparable(await gateway.ask(body, target=target, headers=headers), body)
            assert through == without


async def test_cached_tokens_of_the_records_add_up_to_the_engines_counter(vllm_server: Engine) -> None:
    stable = "\n".join(
        f"Rule {number}: the answer to question {number} is never given twice." for number in range(40)
    )
    async with running_gateway(vllm_server.url) as gateway:
        model = await model_name(gateway)
        before = await counter(vllm_server, "vllm:prefix_cache_hits_total")
        asks = []
        for number in range(8):
            messages = [
                {"role": "system", "content": stable},
                {"role": "user", "content": f"Question {number}?"},
            ]
            body = {"model": model, "messages": messages, "max_tokens": 4, "stream": number % 2 == 0}
            asks.append(gateway.ask(body))
        await asks.pop(0)
        await asyncio.gather(*asks)
        records = gateway.records
        after = await counter(vllm_server, "vllm:prefix_cache_hits_total")
    assert len(records) == 8
    assert sum(record["cached_tokens"] for record in records) == after - before > 0
    for record in records:
        assert record["status"] == "ok"
        assert record["prompt_tokens"] > record["cached_tokens"] >= 0
        assert record["output_tokens"] == 4
        assert record["finish_reason"] == "length"
    assert len({record["route"] for record in records}) == 1


async def test_a_client_that_goes_away_stops_the_engine(vllm_server: Engine) -> None:
    async with running_gateway(vllm_server.url) as gateway:
        model = await model_name(gateway)
        before = await counter(vllm_server, "vllm:generation_tokens_total")
        body = {"model": model, "prompt": "Once upon", "max_tokens": 5000, "ignore_eos": True, "stream": True}
        reader, writer = await gateway.connect()
        writer.write(request(body, target=COMPLETIONS))
        await reader.readuntil(b'"text"')
        writer.transport.abort()
        await eventually(lambda: bool(gateway.records))
        async with asyncio.timeout(10):
            while await counter(vllm_server, "vllm:num_requests_running"):  # noqa: ASYNC110 - the engine's own
                await asyncio.sleep(0.05)
        record = gateway.records[0]
        assert await counter(vllm_server, "vllm:generation_tokens_total") - before < 2500
    assert record["status"] == "aborted"
    assert record["ttft_client_seconds"] > 0
    assert "cached_tokens" not in record
