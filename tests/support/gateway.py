"""A gateway under test: raw sockets on both sides, so that tests see the very bytes."""

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from collectors.gateway.gateway import GatewayServer
from collectors.gateway.layouts import Layouts
from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.settings import GatewaySettings
from kvscope.model.prompt import Prompt
from kvscope.pipeline.contracts import UNCHANGED, CollectorContext, Decision
from kvscope.pipeline.listen import bind
from tests.support.telemetry import AnsweringSink, EventLog

DATA = Path(__file__).parents[1] / "data" / "gateway"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

Headers = list[tuple[str, str]]


def recording(name: str) -> bytes:
    """Return a recorded response of vLLM, from its status line to its last byte."""
    return (DATA / f"{name}.http").read_bytes()


@dataclasses.dataclass(slots=True)
class Heard:
    """A message as it came: its first line, headers in order and body; the chunks of a chunked one."""

    line: str
    headers: Headers
    body: bytes
    chunks: list[bytes]
    complete: bool

    def header(self, name: str) -> str | None:
        """Return the header's first value."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def status(self) -> int:
        """The status of a response."""
        return int(self.line.split(" ")[1])

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


async def hear(reader: asyncio.StreamReader) -> Heard | None:
    """Read one message; None where the peer has closed before it began."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None
    line, *rows = head[:-4].split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (row.partition(":") for row in rows)]
    heard = Heard(line, headers, b"", [], complete=False)
    try:
        if heard.header("transfer-encoding") == "chunked":
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                heard.chunks.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readexactly(2)
            heard.body = b"".join(heard.chunks)
        else:
            heard.body = await reader.readexactly(int(heard.header("content-length") or 0))
        heard.complete = True
    except (asyncio.IncompleteReadError, ConnectionResetError):
        heard.body = b"".join(heard.chunks)
    return heard


class Wire:
    """One connection's side towards the client, for the script of a fake server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.cut_off = False

    async def send(self, *parts: bytes) -> None:
        """Send each part with a packet of its own."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            await asyncio.sleep(0.002)

    async def read(self) -> bytes:
        """Return what comes next."""
        return await self._reader.read(2**16)

    def cut(self) -> None:
        """Close the connection as a dying process does."""
        self.cut_off = True
        self._writer.transport.abort()

    async def peer_closed(self) -> None:
        """Return once the other side has closed."""
        with contextlib.suppress(ConnectionResetError):
            while await self._reader.read(2**16):
                pass


Script = Callable[[Heard, Wire], Awaitable[None]]


def saying(answer: bytes, *, packets: Sequence[int] = ()) -> Script:
    """Return a script that sends ``answer``, split after so many bytes each."""

    async def script(_: Heard, wire: Wire) -> None:
        rest = answer
        for size in packets:
            await wire.send(rest[:size])
            rest = rest[size:]
        await wire.send(rest)

    return script


def chunked(
    *chunks: bytes, content_type: str = "text/event-stream; charset=utf-8", end: bool = True
) -> bytes:
    """Return a response with these chunks."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + framed + (b"0\r\n\r\n" if end else b"")


def document(body: bytes, *, status: str = "200 OK", headers: Mapping[str, str] | None = None) -> bytes:
    """Return a response with a JSON body."""
    rows = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in rows.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


class FakeServer:
    """An inference server whose every byte a test says; it keeps what it heard."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.connections = 0
        self.url = ""
        self.script: Script = saying(recording("chat"))
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening and end the connections."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        wire = Wire(reader, writer)
        try:
            while not wire.cut_off and (heard := await hear(reader)):
                self.heard.append(heard)
                await self.script(heard, wire)
        except (ConnectionResetError, BrokenPipeError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)


class FixedPolicy:
    """Gives every request one decision, or raises."""

    def __init__(self, decision: Decision | Exception = UNCHANGED) -> None:
        self.decision = decision
        self.asked: list[dict[str, Any]] = []

    def decide(self, **what: Any) -> Decision:
        self.asked.append(what)
        if isinstance(self.decision, Exception):
            raise self.decision
        return self.decision


class PromptLog:
    """Keeps the prompts that arrive, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.prompts: list[Prompt] = []

    def arrived(self, prompt: Prompt) -> None:
        if self.error is not None:
            raise self.error
        self.prompts.append(prompt)


@dataclasses.dataclass(slots=True, kw_only=True)
class Running:
    """A gateway that listens, and what its neighbours heard of it."""

    server: GatewayServer
    registry: CollectorRegistry
    sink: AnsweringSink
    policy: FixedPolicy
    prompts: PromptLog

    @property
    def records(self) -> list[dict[str, Any]]:
        """The values of the offered records, with their request ids."""
        parts = [part for batch in self.sink.accepted for part in batch.parts]
        return [{"request_id": part.request_id, **part.values} for part in parts]

    def metric(self, name: str, **labels: str) -> float:
        """Return a metric's value, 0 where it has none yet."""
        return self.registry.get_sample_value(name, labels) or 0.0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to it."""
        return await asyncio.open_connection("127.0.0.1", self.server.port, limit=2**26)

    async def ask(
        self,
        body: bytes | Mapping[str, Any] | None = None,
        *,
        target: str = CHAT,
        method: str = "POST",
        headers: Sequence[tuple[str, str]] = (),
    ) -> Heard:
        """Send one request on a connection of its own and return the answer."""
        reader, writer = await self.connect()
        writer.write(request(body, target=target, method=method, headers=headers))
        heard = await hear(reader)
        writer.close()
        assert heard is not None
        return heard


def request(
    body: bytes | Mapping[str, Any] | None = None,
    *,
    target: str = CHAT,
    method: str = "POST",
    headers: Sequence[tuple[str, str]] = (),
) -> bytes:
    """Return a request's bytes."""
    raw = json.dumps(body).encode() if isinstance(body, Mapping) else body or b""
    rows = [("Host", "client.example"), ("Content-Type", "application/json"), *headers]
    if body is not None and all(
        name.lower() not in {"content-length", "transfer-encoding"} for name, _ in headers
    ):
        rows.append(("Content-Length", str(len(raw))))
    head = "".join(f"{name}: {value}\r\n" for name, value in rows)
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + raw


@contextlib.asynccontextmanager
async def running_gateway(
    *upstreams: str,
    settings: Mapping[str, Any] | None = None,
    sink: AnsweringSink | None = None,
    policy: FixedPolicy | None = None,
    prompts: PromptLog | None = None,
    **knowledge: Any,
) -> AsyncIterator[Running]:
    """Run a gateway in front of ``upstreams`` on a free port; ``knowledge`` is more of its context."""
    chosen = GatewaySettings.model_validate(settings or {})
    parts = sink or AnsweringSink(), policy or FixedPolicy(), prompts or PromptLog()
    context = CollectorContext(
        sink=parts[0],
        clock=time.time,
        registry=CollectorRegistry(),
        upstreams=upstreams,
        policy=parts[1],
        prompts=parts[2],
        cache_events=EventLog(),
        **knowledge,
    )
    server = GatewayServer(
        chosen,
        context,
        GatewayMetrics(context.registry),
        Layouts(chosen.layouts, chosen.layouts_poll_seconds, context.registry),
        bind("127.0.0.1", 0, setting="--gateway-port"),
    )
    await server.start()
    try:
        yield Running(
            server=server, registry=context.registry, sink=parts[0], policy=parts[1], prompts=parts[2]
        )
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def fake_server(script: Script | None = None) -> AsyncIterator[FakeServer]:
    """Run a fake inference server."""
    server = FakeServer()
    if script is not None:
        server.script = script
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
