"""What the gateway's benchmarks share: an upstream, clients, and the proxies that are measured."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import uvloop
import yaml

from kvscope.demo.engines import answers, free_port
from kvscope.demo.process import ChildProcess

PATH = "/v1/chat/completions"
CHUNKS = 20
_HEAD = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795995134,"model":"m",'
CHUNK = (
    _HEAD + b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
LAST = _HEAD + b'"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}\n\n'
USAGE = (
    _HEAD + b'"choices":[],"usage":{"prompt_tokens":2000,"completion_tokens":20,"total_tokens":2020,'
    b'"prompt_tokens_details":{"cached_tokens":1984}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_TICKS = os.sysconf("SC_CLK_TCK")


def framed(*parts: bytes) -> bytes:
    """Return the parts as chunks of a body."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


class Upstream(asyncio.Protocol):
    """The least that answers a streamed completion: no parsing but for the body's length."""

    def __init__(self) -> None:
        self._data = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        if len(body) < length:
            return
        self._data = b""
        if head.startswith(b"POST"):
            self.answer(usage=b'"include_usage"' in body)
        else:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(_MODELS), _MODELS)
            )

    def answer(self, *, usage: bool) -> None:
        """Send the whole stream; each event is a chunk."""
        tail = (USAGE, DONE) if usage else (DONE,)
        self.transport.write(STREAM_HEAD + framed(*[CHUNK] * CHUNKS, LAST, *tail) + b"0\r\n\r\n")


def serve_upstream(port: int, protocol: type[asyncio.Protocol]) -> None:
    """Serve ``protocol`` for ever."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port, backlog=4096)
        await server.serve_forever()

    uvloop.run(run())


@contextlib.contextmanager
def upstream(protocol: type[asyncio.Protocol] = Upstream) -> Iterator[int]:
    """Run an upstream in a process of its own; yields its port."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(
        target=serve_upstream, args=(port, protocol), daemon=True
    )
    process.start()
    try:
        while not answers(f"http://127.0.0.1:{port}/health"):
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.join()


class Target:
    """A way to the upstream: its port, and the processes that make it."""

    def __init__(self, name: str, port: int, process: ChildProcess | None) -> None:
        self.name = name
        self.port = port
        self.process = process

    def cpu_seconds(self) -> float:
        """Return the processor time that its processes have used so far."""
        return 0.0 if self.process is None else sum(map(_cpu, _family(self.process.pid)))

    def resident_bytes(self) -> int:
        """Return the memory that its processes hold."""
        page = resource.getpagesize()
        pids = [] if self.process is None else _family(self.process.pid)
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in pids)

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.stop()


def start_agent(folder: Path, upstream_port: int) -> Target:
    """Start `kvscope agent` with its gateway in front of the upstream."""
    gateway, admin = free_port(), free_port()
    config = {
        "db": f"sqlite:///{folder}/kvscope.db",
        "upstreams": [f"http://127.0.0.1:{upstream_port}"],
        "admin": {"port": admin},
        "advisor": {"interval_seconds": 0},
        "collectors": {
            "gateway": {"port": gateway},
            "otlp": {"grpc_port": 0, "http_port": 0},
            "middleware": {"port": 0},
            "prometheus": {"interval_seconds": 0},
        },
    }
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump(config), "utf-8")
    run = "from kvscope.cli.main import main; main()"
    argv = [sys.executable, "-c", run, "agent", "--config", str(file)]
    process = ChildProcess("the agent", argv, folder / "agent.log")
    process.ready_or_stop(lambda: answers(f"http://127.0.0.1:{admin}/healthz"), deadline_seconds=60)
    return Target("agent", gateway, process)


def start_gateway(folder: Path, upstream_port: int) -> Target:
    """Start the gateway alone: what it hands on is dropped, so that its own share shows."""
    port = free_port()
    argv = [sys.executable, str(Path(__file__).with_name("_gateway_alone.py")), str(port), str(upstream_port)]
    process = ChildProcess("the gateway", argv, folder / "gateway.log")
    process.ready_or_stop(lambda: answers(f"http://127.0.0.1:{port}/health"), deadline_seconds=60)
    return Target("gateway", port, process)


def start_nginx(folder: Path, upstream_port: int) -> Target | None:
    """Start nginx with one worker and kept connections; None where it is not installed."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        return None
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(
        f"""worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_buffer_size 1m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engine {{ server 127.0.0.1:{upstream_port}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_buffering off; }}
  }}
}}
"""
    )
    process = ChildProcess("nginx", [program, "-c", str(file), "-p", str(folder)], folder / "nginx.log")
    process.ready_or_stop(lambda: answers(f"http://127.0.0.1:{port}/health"), deadline_seconds=30)
    return Target("nginx", port, process)


def start_litellm(folder: Path, upstream_port: int, program: str) -> Target | None:
    """Start LiteLLM's proxy with one worker; None where it is not installed."""
    if (found := shutil.which(program)) is None:
        return None
    port = free_port()
    params = {"model": "openai/m", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "none"}
    file = folder / "litellm.yaml"
    file.write_text(yaml.safe_dump({"model_list": [{"model_name": "m", "litellm_params": params}]}), "utf-8")
    argv = [found, "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    unguarded = "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"  # checking keys would cost it more
    quiet = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "NO_PROXY": "127.0.0.1",
        unguarded: "true",
    }
    process = ChildProcess("LiteLLM", argv, folder / "litellm.log", env=quiet)
    process.ready_or_stop(lambda: answers(f"http://127.0.0.1:{port}/health/liveliness"), deadline_seconds=180)
    return Target("LiteLLM", port, process)


def start_router(folder: Path, upstream_port: int, program: str) -> Target | None:
    """Start the router of vLLM's production stack; None where it is not installed."""
    if (found := shutil.which(program)) is None:
        return None
    port, metrics = free_port(), free_port()
    argv = [found, "--worker-urls", f"http://127.0.0.1:{upstream_port}", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--prometheus-port", str(metrics), "--policy", "round_robin"]
    process = ChildProcess("vllm-router", argv, folder / "router.log")
    process.ready_or_stop(lambda: answers(f"http://127.0.0.1:{port}/health"), deadline_seconds=60)
    return Target("vllm-router", port, process)


class Client(asyncio.Protocol):
    """One kept connection: sends a request's bytes and tells when its first byte and its end came."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._first: float | None = None
        self._tail = b""
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("closed"))

    def data_received(self, data: bytes) -> None:
        if self._first is None:
            self._first = time.perf_counter()
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(data[:200])
        self._tail = (self._tail + data)[-5:]
        if self._tail == b"0\r\n\r\n" and self._done is not None:
            self._done.set_result(None)

    async def ask(self, request: bytes) -> tuple[float, float]:
        """Return the seconds to the first byte and to the end of the answer."""
        self._first, self._tail = None, b""
        self._done = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self._transport.write(request)
        await self._done
        return (self._first or began) - began, time.perf_counter() - began

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


@contextlib.asynccontextmanager
async def clients(port: int, count: int) -> AsyncIterator[Sequence[Client]]:
    """Open that many connections."""
    loop = asyncio.get_running_loop()
    opened = [(await loop.create_connection(Client, "127.0.0.1", port))[1] for _ in range(count)]
    try:
        yield opened
    finally:
        for client in opened:
            client.close()


def request_bytes(prompt_chars: int, *, stream: bool = True) -> bytes:
    """Return a chat request whose system prompt has lines of some 80 characters, the first one changing."""
    lines = [
        f"Rule {number}: answer in short and polite sentences, and name the source of each fact."
        for number in range(prompt_chars // 80)
    ]
    system = "\n".join(["Current time: 2026-11-29 17:31:05", *lines])
    body = json.dumps(
        {
            "model": "m",
            "stream": stream,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": "and now?"}],
        }
    ).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the p50 and p99 in milliseconds."""
    cuts = quantiles(seconds, n=100)
    return {"p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3}


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for logs and configurations."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _family(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return family


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0
