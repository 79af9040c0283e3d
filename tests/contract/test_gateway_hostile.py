"""Requests that are wrong, slow or meant to deceive: each is told so, and no server hears too much."""

import asyncio

import pytest

from tests.support.gateway import (
    CHAT,
    Heard,
    Running,
    document,
    fake_server,
    hear,
    request,
    running_gateway,
    saying,
)

ANSWER = saying(document(b'{"ok":true}'))
BODY = b'{"messages":[]}'
QUICK = {"keep_alive_seconds": 1}
SMUGGLED = b"GET /admin HTTP/1.1\r\nHost: inside\r\n\r\n"


def _raw(head: str, body: bytes = b"") -> bytes:
    return "\r\n".join([*head.split("\n"), "Host: client.example", "", ""]).encode() + body


async def _told(gateway: Running, *packets: bytes) -> tuple[Heard | None, bool]:
    """Send packets on one connection; return the first answer, and whether the connection was closed then."""
    reader, writer = await gateway.connect()
    for packet in packets[:-1]:
        writer.write(packet)
        await writer.drain()
        await asyncio.sleep(0.05)
    writer.write(packets[-1])
    heard = await hear(reader)
    closed = heard is None or heard.header("connection") == "close"
    if closed:
        assert await reader.read() == b""
    writer.close()
    return heard, closed


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (
            _raw("POST /x HTTP/1.1\nContent-Length: 5\nTransfer-Encoding: chunked", b"0\r\n\r\n" + SMUGGLED),
            400,
        ),
        (
            _raw("POST /x HTTP/1.1\nTransfer-Encoding: chunked\nContent-Length: 5", b"0\r\n\r\n" + SMUGGLED),
            400,
        ),
        (_raw("POST /x HTTP/1.1\nContent-Length: 0\nContent-Length: 40", SMUGGLED), 400),
        (_raw("POST /x HTTP/1.1\nTransfer-Encoding: xchunked", b"0\r\n\r\n" + SMUGGLED), 400),
        (_raw("POST /x HTTP/1.1\nTransfer-Encoding: gzip, chunked", b"0\r\n\r\n"), 501),
        (_raw("GET /x HTTP/1.1\nA : b"), 400),
        (_raw("GET /x HTTP/1.1\nA: " + "b" * 200_000), 431),
        (_raw("CONNECT inside:80 HTTP/1.1"), 400),
        (
            _raw(
                f"POST {CHAT} HTTP/1.1\nTransfer-Encoding: chunked",
                b"f\r\n" + BODY + b"\r\n0\r\nA: " + b"b" * 200_000 + b"\r\n\r\n",
            ),
            431,
        ),
    ],
)
async def test_what_is_no_request_reaches_no_server(sent: bytes, status: int) -> None:
    async with fake_server(ANSWER) as upstream, running_gateway(upstream.url) as gateway:
        heard, closed = await _told(gateway, sent)
        assert heard is not None
        assert (heard.status, closed) == (status, True)
        assert heard.json["error"]["code"] == status
        assert upstream.heard == []


@pytest.mark.parametrize("named", ["Content-Length", "content-length, keep-alive", "Transfer-Encoding"])
async def test_a_client_cannot_hide_how_long_its_body_is(named: str) -> None:
    async with fake_server(ANSWER) as upstream, running_gateway(upstream.url) as gateway:
        reader, writer = await gateway.connect()
        writer.write(
            _raw(f"POST /x HTTP/1.1\nConnection: {named}\nContent-Length: {len(SMUGGLED)}", SMUGGLED)
        )
        assert (await hear(reader)) is not None
        writer.close()
        await gateway.ask(method="GET", target="/after")
        assert [(heard.line, heard.body) for heard in upstream.heard] == [
            ("POST /x HTTP/1.1", SMUGGLED),
            ("GET /after HTTP/1.1", b""),
        ]


@pytest.mark.parametrize("target", [CHAT, "/tokenize"])
async def test_a_body_that_breaks_its_framing_is_refused_and_ends(target: str) -> None:
    async with fake_server(ANSWER) as upstream, running_gateway(upstream.url) as gateway:
        head = _raw(f"POST {target} HTTP/1.1\nTransfer-Encoding: chunked", b"2\r\n{}\r\n")
        heard, closed = await _told(gateway, head, b"zz\r\n")
        assert heard is not None
        assert (heard.status, closed) == (400, True)
        assert upstream.heard == []  # that is, no whole request
        assert gateway.server.metrics.in_flight == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nX-Slow".encode(), None),
        (_raw(f"POST {CHAT} HTTP/1.1\nContent-Length: 40", b"{"), 408),
        (_raw("POST /tokenize HTTP/1.1\nContent-Length: 40", b"{"), 408),
    ],
)
async def test_a_request_that_never_ends_is_ended(sent: bytes, status: int | None) -> None:
    async with fake_server(ANSWER) as upstream, running_gateway(upstream.url, settings=QUICK) as gateway:
        heard, closed = await _told(gateway, sent)
        assert closed
        assert (heard and heard.status) == status
        assert gateway.server.metrics.in_flight == 0


async def test_a_head_in_drips_has_no_longer_than_one_in_silence() -> None:
    async with fake_server(ANSWER) as upstream, running_gateway(upstream.url, settings=QUICK) as gateway:
        reader, writer = await gateway.connect()
        writer.write(b"GET /x HTTP/1.1\r\nA: ")
        async with asyncio.timeout(60):
            while not reader.at_eof():
                writer.write(b"b")
                await asyncio.sleep(0.1)
                if writer.transport.is_closing():
                    break
        assert upstream.heard == []
        writer.close()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_only_who_can_wait_for_it_is_told_to_continue(version: str) -> None:
    async with fake_server(ANSWER) as upstream, running_gateway(upstream.url) as gateway:
        reader, writer = await gateway.connect()
        head = f"POST {CHAT} HTTP/{version}\nExpect: 100-continue\nContent-Length: {len(BODY)}"
        writer.write(_raw(head))
        if version == "1.1":
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        heard = await hear(reader)
        assert heard is not None
        assert heard.status == 200
        assert upstream.heard[0].header("expect") is None
        writer.close()


@pytest.mark.parametrize(
    ("sent", "received"),
    [(f"http://any.example{CHAT}?a=b", f"{CHAT}?a=b"), ("HTTP://any.example", "/"), ("*", "*")],
)
async def test_a_target_in_another_form_is_the_same_place(sent: str, received: str) -> None:
    async with fake_server(ANSWER) as upstream, running_gateway(upstream.url) as gateway:
        method = "OPTIONS" if sent == "*" else "POST"
        await gateway.ask(BODY, target=sent, method=method)
        assert upstream.heard[0].line == f"{method} {received} HTTP/1.1"
        assert len(gateway.records) == (CHAT in sent)


async def test_pipelined_requests_are_answered_in_their_order_each_once() -> None:
    async def echo(heard: Heard, wire: object) -> None:
        await saying(document(heard.line.encode() + heard.body))(heard, wire)  # type: ignore[arg-type]

    async with fake_server(echo) as upstream, running_gateway(upstream.url) as gateway:
        reader, writer = await gateway.connect()
        asked = [request(b'{"n":%d}' % number, target=f"/{number}") for number in range(40)]
        writer.write(b"".join(asked))
        for number in range(40):
            heard = await hear(reader)
            assert heard is not None
            assert heard.body == b'POST /%d HTTP/1.1{"n":%d}' % (number, number)
        writer.close()


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_an_answer_without_a_body_ends_with_its_head(status: str) -> None:
    answer = f"HTTP/1.1 {status}\r\netag: x\r\n\r\n".encode()
    async with fake_server(saying(answer)) as upstream, running_gateway(upstream.url) as gateway:
        reader, writer = await gateway.connect()
        for _ in range(2):  # the second one is read where the first one ends
            writer.write(request(method="GET", target="/x"))
            assert await reader.readuntil(b"\r\n\r\n") == answer
        writer.close()
        assert upstream.connections == 1
