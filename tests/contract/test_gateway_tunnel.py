"""WebSockets through the gateway: the handshake, the frames and the end pass as they are."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from tests.support.gateway import Heard, Wire, document, fake_server, hear, request, running_gateway
from tests.support.telemetry import eventually

ASKED = [
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
]
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nConnection: Upgrade\r\nX-Odd:  a \r\n\r\n"
)


async def test_every_byte_behind_the_handshake_passes() -> None:
    """RFC 6455's own key; frames are never parsed, so that extensions pass too."""
    got = bytearray()

    async def script(_: Heard, wire: Wire) -> None:
        await wire.send(SWITCH, b"\x81\x05Hello", bytes(range(256)))
        while b"\x88\x00" not in got:
            got.extend(await wire.read())
        await wire.send(b"\x88\x00")
        wire.cut()

    async with fake_server(script) as server, running_gateway(server.url) as gateway:
        reader, writer = await gateway.connect()
        writer.write(request(method="GET", target="/v1/realtime?model=m", headers=ASKED) + b"\x81\x85early")
        expected = SWITCH + b"\x81\x05Hello" + bytes(range(256))
        assert await reader.readexactly(len(expected)) == expected
        writer.write(b"\x82\x00late" + b"\x88\x00")
        assert await reader.read() == b"\x88\x00"
        writer.close()
    assert bytes(got) == b"\x81\x85early\x82\x00late\x88\x00"
    heard = server.heard[0]
    assert heard.line == "GET /v1/realtime?model=m HTTP/1.1"
    assert heard.header("sec-websocket-key") == "dGhlIHNhbXBsZSBub25jZQ=="
    assert (heard.header("upgrade"), heard.header("connection")) == ("websocket", "Upgrade")


async def test_a_real_websocket_client_talks_to_a_real_server() -> None:
    async def echo(asked: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=True)
        await socket.prepare(asked)
        async for message in socket:
            await socket.send_str(message.data[::-1])
        return socket

    app = web.Application()
    app.router.add_get("/v1/realtime", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with (
        running_gateway(f"http://127.0.0.1:{port}") as gateway,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{gateway.server.port}/v1/realtime", compress=15) as socket,
    ):
        for text in ("abc", "x" * 200_000):
            await socket.send_str(text)
            assert await socket.receive_str() == text[::-1]
    await runner.cleanup()


async def test_a_refused_handshake_passes_as_it_is() -> None:
    async def refuse(_: Heard, wire: Wire) -> None:
        await wire.send(document(b'{"detail":"no"}', status="403 Forbidden"))
        wire.cut()

    async with fake_server(refuse) as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask(None, method="GET", target="/v1/realtime", headers=ASKED)
    assert (answer.status, answer.json) == (403, {"detail": "no"})


async def test_an_unreachable_server_answers_the_handshake_with_502() -> None:
    async with fake_server() as server:
        url = server.url
    async with running_gateway(url) as gateway:
        answer = await gateway.ask(None, method="GET", target="/v1/realtime", headers=ASKED)
    assert (answer.status, answer.json["error"]["type"]) == (502, "UpstreamUnreachable")


@pytest.mark.parametrize("who", ["client", "server"])
async def test_an_end_that_goes_takes_the_other_with_it(who: str) -> None:
    closed = asyncio.Event()

    async def script(_: Heard, wire: Wire) -> None:
        await wire.send(SWITCH)
        if who == "server":
            wire.cut()
        else:
            await wire.peer_closed()
            closed.set()

    async with fake_server(script) as server, running_gateway(server.url) as gateway:
        reader, writer = await gateway.connect()
        writer.write(request(method="GET", target="/v1/realtime", headers=ASKED))
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(2):
            if who == "server":
                assert await reader.read() == b""
            else:
                writer.transport.abort()
                await closed.wait()
        writer.close()


async def test_shutdown_ends_tunnels_after_the_drain_time() -> None:
    async def hold(_: Heard, wire: Wire) -> None:
        await wire.send(SWITCH)
        await wire.peer_closed()

    async with (
        fake_server(hold) as server,
        running_gateway(server.url, settings={"drain_seconds": 0}) as gateway,
    ):
        reader, writer = await gateway.connect()
        writer.write(request(method="GET", target="/v1/realtime", headers=ASKED))
        await reader.readuntil(b"\r\n\r\n")
        await gateway.server.stop()
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("cut", [0, 40])
async def test_an_offer_of_http_2_is_declined_and_the_request_answered(cut: int) -> None:
    """Java's client offers h2c with each request; RFC 9110 (7.8) lets a server go on with HTTP/1.1."""
    offer = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")]
    raw = request({"seed": 1}, headers=offer)
    async with fake_server() as server, running_gateway(server.url) as gateway:
        reader, writer = await gateway.connect()
        writer.write(raw[:cut])
        await asyncio.sleep(0.01)
        writer.write(raw[cut:])
        first = await hear(reader)
        writer.write(raw)
        second = await hear(reader)
        writer.close()
        await eventually(lambda: len(gateway.records) == 2)
    assert first is not None
    assert second is not None
    assert (first.status, second.status) == (200, 200)
    assert [heard.json for heard in server.heard] == [{"seed": 1}] * 2
    assert server.heard[0].header("upgrade") is None
