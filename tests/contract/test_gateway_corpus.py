"""What a real vLLM was asked and what it answered passes byte-identical, and is read right."""

import json
from typing import Any

import pytest

from collectors.gateway.dialects import PATHS
from tests.support.gateway import DATA, Heard, fake_server, recording, running_gateway, saying

NAMES = sorted(path.stem for path in DATA.glob("*.request"))
STREAMS_IN_PAIRS = ["completion_echo", "json_schema", "reasoning", "tool_history"]
PAIRS_WITH_OWN_IDS = ["tool_named", "tool_required"]  # each answer draws ids for its calls


def asked(name: str) -> tuple[str, bytes]:
    target, _, body = (DATA / f"{name}.request").read_bytes().partition(b"\n")
    return target.decode(), body


def parts(raw: bytes) -> list[bytes]:
    """Return the chunks of a recorded answer, or its one body."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head:
        return [rest]
    chunks: list[bytes] = []
    while size := int(rest.partition(b"\r\n")[0], 16):
        start = rest.index(b"\r\n") + 2
        chunks.append(rest[start : start + size])
        rest = rest[start + size + 2 :]
    return chunks


def rows(raw: bytes) -> list[tuple[str, str]]:
    lines = raw.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]


async def through(name: str, answer: str, *, ask_usage: bool = True) -> tuple[Heard, Heard, dict[str, Any]]:
    """Return what the server heard, what the client got, and the record."""
    target, own = asked(name)
    headers = [("X-Request-Id", name)]
    async with (
        fake_server(saying(recording(answer))) as server,
        running_gateway(server.url, settings={"ask_usage": ask_usage}) as gateway,
    ):
        got = await gateway.ask(own, target=target, headers=headers)
        records = gateway.records
    return server.heard[0], got, records[0] if records else {}


def asks_for_usage(body: bytes) -> bool:
    return bool((json.loads(body).get("stream_options") or {}).get("include_usage"))


@pytest.mark.parametrize("name", NAMES)
async def test_an_answer_passes_byte_for_byte(name: str) -> None:
    raw = recording(name)
    target, body = asked(name)
    heard, got, record = await through(name, name, ask_usage=False)
    assert heard.line == f"POST {target} HTTP/1.1"
    assert heard.body == body
    assert (got.status, got.complete) == (int(raw.split(b" ")[1]), True)
    assert (got.chunks or [got.body]) == parts(raw)
    own = {"x-kvscope-request-id"}
    framing = {"transfer-encoding", "content-length"}
    kept = [row for row in got.headers if row[0] not in own | framing]
    assert kept == [row for row in rows(raw) if row[0] not in framing]
    if target in PATHS:
        assert record["status"] == ("ok" if got.status == 200 else "rejected")


@pytest.mark.parametrize("name", STREAMS_IN_PAIRS)
async def test_usage_that_nobody_asked_for_leaves_no_trace(name: str) -> None:
    """The server's answer with usage becomes, byte for byte, the one that it gives without."""
    heard, got, record = await through(name, f"{name}_usage")
    assert asks_for_usage(heard.body)
    assert got.chunks == parts(recording(name))
    assert record["prompt_tokens"] > 0
    assert record["output_tokens"] == 8 + 22 * (name == "json_schema")


@pytest.mark.parametrize("name", PAIRS_WITH_OWN_IDS)
async def test_streams_of_tool_calls_keep_all_but_usage(name: str) -> None:
    with_usage = parts(recording(f"{name}_usage"))
    _, got, record = await through(name, f"{name}_usage")
    usage = [chunk for chunk in with_usage if b'"choices":[]' in chunk]
    assert len(usage) == 1
    assert b"".join(got.chunks) == b"".join(chunk for chunk in with_usage if chunk not in usage).replace(
        b'"token_ids":null}]}\n\ndata: [DONE]',
        b'"token_ids":null}],"system_fingerprint":"vllm-0.32.0-1fd3fd88"}\n\ndata: [DONE]',
    )
    assert (record["output_tokens"], record["finish_reason"]) == (60, "length")


@pytest.mark.parametrize(
    ("name", "prompt", "output", "cached"),
    [
        ("responses", 13, 8, 0),
        ("responses_stream", 24, 8, 0),
        ("responses_tools", 124, 80, 0),
        ("responses_tools_stream", 124, 80, 96),
        ("messages", 24, 8, 0),
        ("messages_stream", 24, 8, 0),
        ("messages_tools", 137, 60, 0),  # 9 and 128 that it wrote to its cache
        ("messages_tools_stream", 137, 60, 128),
        ("tool_document", 155, 60, 128),
    ],
)
async def test_tokens_and_ends_of_each_api(name: str, prompt: int, output: int, cached: int) -> None:
    """The numbers are the server's own, of the usage in the recorded answer."""
    _, _, record = await through(name, name)
    told = [record[field] for field in ("prompt_tokens", "output_tokens", "cached_tokens")]
    assert told == [prompt, output, cached]
    assert (record["finish_reason"], record["model"]) == ("length", "tiny")
    if "stream" in name:
        assert record["ttft_client_seconds"] > 0
        assert record["itl_p50_seconds"] >= 0
