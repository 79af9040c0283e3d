"""What the gateway does not change arrives as it was sent, in both directions, byte for byte."""

import asyncio
import json
import re

import pytest

from tests.support.gateway import (
    CHAT,
    COMPLETIONS,
    Heard,
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
from tests.support.telemetry import eventually

BODY = b'{ "model":"tiny",\n "messages" : [{"role":"user","content":"\\u00e9 \xe4\xbd\xa0"}], "top_p":1e0 }'
OWN = {"x-kvscope-request-id"}


def headers_of(raw: bytes) -> list[tuple[str, str]]:
    rows = raw.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return [(name, value.strip()) for name, _, value in (row.partition(":") for row in rows)]


def chunks_of(raw: bytes) -> list[bytes]:
    rest = raw.partition(b"\r\n\r\n")[2]
    chunks: list[bytes] = []
    while size := int(rest.partition(b"\r\n")[0], 16):
        start = rest.index(b"\r\n") + 2
        chunks.append(rest[start : start + size])
        rest = rest[start + size + 2 :]
    return chunks


@pytest.mark.parametrize(
    "name", ["chat", "completion", "completion_two_prompts", "not_json", "unknown_model"]
)
async def test_a_document_comes_back_as_it_was_sent(name: str) -> None:
    raw = recording(name)
    async with (
        fake_server(saying(raw, packets=[50, 40, 1])) as server,
        running_gateway(server.url) as gateway,
    ):
        answer = await gateway.ask(BODY)
    assert server.heard[0].body == BODY
    assert answer.body == raw.partition(b"\r\n\r\n")[2]
    assert answer.status == int(raw.split(b" ")[1])
    assert [row for row in answer.headers if row[0] not in OWN] == headers_of(raw)


@pytest.mark.parametrize("name", ["chat_stream_usage", "chat_stream_continuous", "chat_stream_n2_usage"])
async def test_a_stream_with_usage_that_the_client_asked_for_passes_chunk_by_chunk(name: str) -> None:
    body = b'{"stream": true, "stream_options": {"include_usage": true}}'
    async with fake_server(saying(recording(name))) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask(body)
    assert server.heard[0].body == body
    assert answer.chunks == chunks_of(recording(name))


@pytest.mark.parametrize("name", ["chat_stream", "completion_stream", "chat_stream_logprobs"])
async def test_usage_is_asked_for_and_taken_out_again(name: str) -> None:
    """The engine is asked for usage; the client gets, byte for byte, what it would get without."""
    body = b'{"stream": true, "prompt": "x", "messages": []}\n'
    async with (
        fake_server(saying(recording(f"{name}_usage"))) as server,
        running_gateway(server.url) as gateway,
    ):
        answer = await gateway.ask(body, target=COMPLETIONS if "completion" in name else CHAT)
        record = gateway.records[0]
    assert server.heard[0].body == (
        b'{"stream": true, "prompt": "x", "messages": [],"stream_options":{"include_usage":true}}\n'
    )
    assert answer.chunks == chunks_of(recording(name))
    assert record["prompt_tokens"] == (3 if "completion" in name else 24)
    assert (record["output_tokens"], record["cached_tokens"]) == (5, 0)


async def test_an_answer_out_of_which_usage_is_taken_is_not_asked_for_compressed() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        assert "gzip" not in (heard.header("accept-encoding") or "")
        await wire.send(recording("chat_stream_usage"))

    wish = [("Accept-Encoding", "gzip, deflate")]
    async with fake_server(script) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask(b'{"stream": true}', headers=wish)
        server.script = saying(recording("chat"))
        await gateway.ask(BODY, headers=wish)
    assert b'"usage":{' not in answer.body
    assert [heard.header("accept-encoding") for heard in server.heard] == ["identity", "gzip, deflate"]


async def test_usage_of_several_choices_is_asked_for_once_the_fingerprint_is_known() -> None:
    """Nothing can wait there, so the fingerprint of an earlier answer is what makes the bytes the same."""
    body = {"stream": True, "n": 2}
    async with fake_server() as server, running_gateway(server.url) as gateway:
        server.script = saying(recording("chat_stream_n2"))
        first = await gateway.ask(body)
        server.script = saying(recording("chat_stream_n2_usage"))
        second = await gateway.ask(body)
        records = gateway.records
    assert first.chunks == second.chunks == chunks_of(recording("chat_stream_n2"))
    assert [heard.json.get("stream_options") for heard in server.heard] == [None, {"include_usage": True}]
    assert [record.get("output_tokens") for record in records] == [None, 6]
    assert "itl_p50_seconds" not in records[1]


async def test_a_server_that_sends_usage_to_everyone_is_left_alone() -> None:
    """With --enable-force-include-usage a client gets usage in every chunk, asked or not."""
    forced = recording("chat_stream_continuous")
    async with fake_server(saying(forced)) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask({"stream": True})
        record = gateway.records[0]
    assert answer.chunks == chunks_of(forced)
    assert (record["prompt_tokens"], record["cached_tokens"]) == (24, 0)


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (None, {"include_usage": True}),
        ({"include_usage": False}, {"include_usage": True}),
        ({"continuous_usage_stats": True}, {"include_usage": True}),
        (
            {"include_usage": True, "continuous_usage_stats": True},
            {"include_usage": True, "continuous_usage_stats": True},
        ),
        ("nonsense", "nonsense"),
    ],
)
async def test_options_of_the_stream(options: object, sent: object) -> None:
    async with (
        fake_server(saying(recording("chat_stream_usage"))) as server,
        running_gateway(server.url) as gateway,
    ):
        await gateway.ask({"stream": True, "stream_options": options, "seed": 2**70})
    assert server.heard[0].json == {"stream": True, "stream_options": sent, "seed": 2**70}


async def test_asking_for_usage_can_be_turned_off() -> None:
    async with (
        fake_server(saying(recording("chat_stream"))) as server,
        running_gateway(server.url, settings={"ask_usage": False}) as gateway,
    ):
        answer = await gateway.ask(b'{"stream":true}')
        record = gateway.records[0]
    assert server.heard[0].body == b'{"stream":true}'
    assert answer.chunks == chunks_of(recording("chat_stream"))
    assert "cached_tokens" not in record


async def test_chunks_and_events_may_be_cut_anywhere() -> None:
    raw = recording("chat_stream_usage")
    packets = [1] * 700 + [7] * 50
    async with fake_server(saying(raw, packets=packets)) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask({"stream": True})
    assert answer.body == b"".join(chunks_of(recording("chat_stream")))


async def test_headers_pass_in_both_directions() -> None:
    sent = [
        ("Authorization", "Bearer secret"),
        ("x-session-id", "s-1"),
        ("x-data-parallel-rank", "1"),
        ("Cookie", "a=b; c=d"),
        ("X-Forwarded-For", "10.0.0.9"),
        ("Accept", "*/*"),
        ("User-Agent", "tester"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
        ("Accept-Encoding", "gzip"),
    ]
    hop = [
        ("Connection", "keep-alive, X-Hop"),
        ("X-Hop", "x"),
        ("Keep-Alive", "5"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
    ]
    answer_headers = {
        "Set-Cookie": "k=v",
        "X-Server": "y",
        "Connection": "X-Gone",
        "X-Gone": "z",
        "server": "uvicorn",
    }
    script = saying(document(b"{}", headers=answer_headers))
    async with fake_server(script) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask(BODY, headers=[*sent, *hop, ("X-Kvscope-Route", "r")])
    got = server.heard[0]
    port = server.url.rpartition(":")[2]
    added = {"x-request-id", "traceparent", "x-kvscope-observed"}
    # names keep their case, and all their order
    assert [row for row in got.headers if row[0] not in added] == [
        ("Host", f"127.0.0.1:{port}"),
        ("Content-Type", "application/json"),
        *sent,
        ("Content-Length", str(len(BODY))),
    ]
    assert answer.headers == [
        ("content-type", "application/json"),
        ("content-length", "2"),
        ("Set-Cookie", "k=v"),
        ("X-Server", "y"),
        ("server", "uvicorn"),
        ("x-kvscope-request-id", got.header("x-request-id") or "missing"),
    ]


async def test_new_ids_are_well_formed_and_recorded() -> None:
    async with fake_server() as server, running_gateway(server.url) as gateway:
        for _ in range(2):
            await gateway.ask(BODY)
        records = gateway.records
    for heard, record in zip(server.heard, records, strict=True):
        assert re.fullmatch(r"[0-9a-f]{32}", heard.header("x-request-id") or "")
        assert record["request_id"] == heard.header("x-request-id")
        assert re.fullmatch(rf"00-{record['trace_id']}-[0-9a-f]{{16}}-01", heard.header("traceparent") or "")
    assert records[0]["trace_id"] != records[1]["trace_id"]


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
        ("nonsense", None),
    ],
)
async def test_ids_of_the_client_are_kept(traceparent: str, trace_id: str | None) -> None:
    async with fake_server() as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask(BODY, headers=[("X-Request-Id", "mine-1"), ("traceparent", traceparent)])
        record = gateway.records[0]
    heard = server.heard[0]
    assert [value for name, value in heard.headers if name == "X-Request-Id"] == ["mine-1"]
    assert [value for name, value in heard.headers if name == "traceparent"] == [traceparent]
    assert (record["request_id"], record.get("trace_id")) == ("mine-1", trace_id)
    assert answer.header("x-kvscope-request-id") == "mine-1"


@pytest.mark.parametrize(
    ("sent", "seen"),
    [("日本-1".encode(), "日本-1".encode().decode("latin-1")), (b"a\xff", "a\u00ff")],
)
async def test_an_id_is_what_the_engine_reads_in_the_header(sent: bytes, seen: str) -> None:
    async with fake_server() as server, running_gateway(server.url) as gateway:
        reader, writer = await gateway.connect()
        raw = request(BODY, headers=[("X-Request-Id", "@")])
        writer.write(raw.replace(b"X-Request-Id: @", b"X-Request-Id: " + sent))
        answer = await hear(reader)
        writer.close()
        record = gateway.records[0]
    assert answer is not None
    assert record["request_id"] == seen == server.heard[0].header("x-request-id")
    assert answer.header("x-kvscope-request-id") == seen


async def test_an_id_that_comes_again_gets_a_number() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        echo = {"x-request-id": heard.header("x-request-id") or ""}
        await wire.send(document(b"{}", headers=echo))

    async with fake_server(script) as server, running_gateway(server.url) as gateway:
        answers = [await gateway.ask(BODY, headers=[("X-Request-Id", "mine")]) for _ in range(3)]
        await gateway.ask({"request_id": "mine"})
        records = gateway.records
    ids = ["mine", "mine~2", "mine~3", "mine~4"]
    assert [record["request_id"] for record in records] == ids
    assert [heard.header("x-request-id") for heard in server.heard] == ids
    assert all(
        sum(name.lower() == "x-request-id" for name, _ in heard.headers) == 1 for heard in server.heard
    )
    assert [answer.header("x-kvscope-request-id") for answer in answers] == ids[:3]
    assert [answer.header("x-request-id") for answer in answers] == ["mine"] * 3


async def test_a_redirect_of_the_engine_leads_through_the_gateway() -> None:
    async def script(heard: Heard, wire: Wire) -> None:
        place = f"{server.url}/v1/chat/completions" if "elsewhere" not in heard.line else "http://other/x"
        await wire.send(document(b"", status="307 Temporary Redirect", headers={"Location": place}))

    async with fake_server(script) as server, running_gateway(server.url) as gateway:
        for target in (CHAT, f"{CHAT}/"):
            assert (await gateway.ask(BODY, target=target)).header("location") == CHAT
        assert (await gateway.ask(None, method="GET", target="/elsewhere")).header(
            "location"
        ) == "http://other/x"


async def test_an_id_in_the_body_is_the_requests_id() -> None:
    async with fake_server() as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask({"request_id": "in\nbody"})
        record = gateway.records[0]
    assert server.heard[0].header("x-request-id") is None
    assert record["request_id"] == "in\nbody"
    assert answer.header("x-kvscope-request-id") == "in?body"


async def test_other_paths_and_methods_pass_unread() -> None:
    async with (
        fake_server(saying(document(b"ok", status="201 Created"))) as server,
        running_gateway(server.url) as gateway,
    ):
        for method, target, body in [
            ("GET", "/v1/models", None),
            ("GET", "/metrics?name%5B%5D=a%2Fb&x=%20", None),
            ("DELETE", "/a%2Fb//c", None),
            ("POST", "/v1/embeddings", b"not json"),
            ("GET", "/v1/chat/completions", None),
            ("OPTIONS", "/v1/chat/completions", None),
        ]:
            answer = await gateway.ask(body, method=method, target=target)
            assert (answer.status, answer.body) == (201, b"ok")
            assert server.heard[-1].line == f"{method} {target} HTTP/1.1"
            assert server.heard[-1].body == (body or b"")
            assert server.heard[-1].header("x-request-id") is None
        assert gateway.records == []


async def test_head_has_headers_only() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n"
    async with fake_server(saying(head)) as server, running_gateway(server.url) as gateway:
        reader, writer = await gateway.connect()
        writer.write(request(method="HEAD", target="/health"))
        assert await reader.readuntil(b"\r\n\r\n") == head
        writer.close()


async def test_redirects_and_compressed_answers_are_the_clients() -> None:
    moved = document(
        b"\x1f\x8bnot really gzip",
        status="307 Temporary Redirect",
        headers={"location": "/x", "content-encoding": "gzip"},
    )
    async with fake_server(saying(moved)) as server, running_gateway(server.url) as gateway:
        for target in (CHAT, "/v1/models"):
            answer = await gateway.ask(BODY, target=target)
            assert (answer.status, answer.header("location")) == (307, "/x")
            assert answer.body == b"\x1f\x8bnot really gzip"
    assert len(server.heard) == 2


async def test_a_chunked_upload_streams_through() -> None:
    """On a path that is not read, the server gets the first chunk before the client has sent the last."""
    first_part = asyncio.Event()

    async with fake_server(saying(document(b"{}"))) as server, running_gateway(server.url) as gateway:
        reader, writer = await gateway.connect()
        writer.write(
            request(b"5\r\nhello\r\n", target="/v1/files", headers=[("Transfer-Encoding", "chunked")])
        )
        await asyncio.sleep(0.05)
        first_part.set()
        writer.write(b"6\r\n world\r\n0\r\n\r\n")
        answer = await hear(reader)
        writer.close()
    assert answer is not None
    assert answer.body == b"{}"
    assert server.heard[0].body == b"hello world"


async def test_a_chunked_inference_body_gets_a_length() -> None:
    async with fake_server() as server, running_gateway(server.url) as gateway:
        reader, writer = await gateway.connect()
        writer.write(request(b"2\r\n{}\r\n0\r\n\r\n", headers=[("Transfer-Encoding", "chunked")]))
        answer = await hear(reader)
        writer.close()
    assert answer is not None
    assert answer.status == 200
    assert (server.heard[0].body, server.heard[0].header("content-length")) == (b"{}", "2")
    assert server.heard[0].header("transfer-encoding") is None


async def test_connections_are_kept_on_both_sides() -> None:
    async with fake_server() as server, running_gateway(server.url) as gateway:
        reader, writer = await gateway.connect()
        for number in range(5):
            writer.write(request({"seed": number}))
            answer = await hear(reader)
            assert answer is not None
            assert answer.complete
        writer.close()
    assert server.connections == 1
    assert [heard.json["seed"] for heard in server.heard] == list(range(5))


async def test_a_kept_connection_that_the_server_closed_is_not_the_requests_fault() -> None:
    async def answer_and_close(_: Heard, wire: Wire) -> None:
        await wire.send(recording("chat"))
        if len(server.heard) == 2:
            return
        await asyncio.sleep(0.02)

    async def die_on_the_second(heard: Heard, wire: Wire) -> None:
        if heard.json["seed"] == 1 and server.connections == 1:
            wire.cut()
        else:
            await answer_and_close(heard, wire)

    async with fake_server(die_on_the_second) as server, running_gateway(server.url) as gateway:
        statuses = [(await gateway.ask({"seed": number})).status for number in range(3)]
    assert statuses == [200, 200, 200]
    assert server.connections == 2


async def test_a_slow_reader_holds_the_server_back() -> None:
    """What the client does not take is not taken from the server: memory does not fill."""
    sent = 0

    async def pour(_heard: Heard, wire: Wire) -> None:
        nonlocal sent
        part = chunked(b"x" * 2**16, end=False)
        start = part.index(b"\r\n\r\n") + 4
        head, body = part[:start], part[start:]
        await wire.send(head)
        for _ in range(1000):
            await wire.send(body)
            sent += 2**16

    async with fake_server(pour) as server, running_gateway(server.url) as gateway:
        reader, writer = await gateway.connect()
        writer.write(request({"stream": True, "stream_options": {"include_usage": True}}))
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 32 * 2**20
        writer.transport.abort()


async def test_several_servers_keep_sessions_apart_and_together() -> None:
    async with fake_server() as one, fake_server() as two, running_gateway(one.url, two.url) as gateway:
        for _ in range(2):
            for session in range(20):
                await gateway.ask({}, headers=[("x-session-id", f"s{session}")])
        homes = {
            server.url: [named for heard in server.heard if (named := heard.header("x-session-id"))]
            for server in (one, two)
        }
        engines = {record["session"]: record["engine"] for record in gateway.records}
    for url, sessions in homes.items():
        assert len(sessions) > 0
        assert sorted(sessions) == sorted(
            [session for session, engine in engines.items() if engine == url] * 2
        )


async def test_stop_lets_running_streams_finish() -> None:
    go_on = asyncio.Event()

    async def slow(_: Heard, wire: Wire) -> None:
        raw = recording("chat_stream_usage")
        await wire.send(raw[:400])
        await go_on.wait()
        await wire.send(raw[400:])

    async with fake_server(slow) as server, running_gateway(server.url) as gateway:
        asking = asyncio.create_task(gateway.ask({"stream": True}))
        await eventually(lambda: bool(server.heard))
        stopping = asyncio.create_task(gateway.server.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        go_on.set()
        answer = await asking
        await stopping
        assert gateway.records[0]["status"] == "ok"
    assert answer.complete
    assert answer.body == b"".join(chunks_of(recording("chat_stream")))
    assert json.loads(answer.chunks[1].removeprefix(b"data: "))["choices"][0]["delta"] == {"content": " ctx"}
