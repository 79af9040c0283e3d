"""What the gateway adds: time to first byte and whole answers, direct and through it, in one run.

A small server streams fixed chunks at once; the same client asks it directly and through `kvscope agent`, in
turn, so that both see the same machine. Absolute times are the machine's; the difference and the ratio count.

    python benchmarks/gateway_latency.py [--requests 2000] [--clients 1] [--prompt-chars 8000] [--json]
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
import yaml

from kvscope.demo.engines import answers, free_port
from kvscope.demo.process import ChildProcess

CHUNKS = 20
_CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk",'
    b'"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
)
_USAGE = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":2000,'
    b'"completion_tokens":20,"total_tokens":2020,"prompt_tokens_details":{"cached_tokens":1984}}}\n\n'
)


class _Upstream(asyncio.Protocol):
    """The least that answers a streamed completion: no parsing but for the body's length."""

    def __init__(self) -> None:
        self._data = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = next(
            (
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            ),
            0,
        )
        if len(body) < length:
            return
        self._data = b""
        if not head.startswith(b"POST"):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for part in (*[_CHUNK] * CHUNKS, _USAGE, b"data: [DONE]\n\n"):
            self._transport.write(b"%x\r\n%s\r\n" % (len(part), part))
        self._transport.write(b"0\r\n\r\n")


def _serve(port: int) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(_Upstream, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(run())


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes) -> tuple[float, float]:
    began = time.perf_counter()
    async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
        await answer.content.readany()
        first = time.perf_counter()
        async for _ in answer.content.iter_any():
            pass
    return first - began, time.perf_counter() - began


async def _measure(urls: dict[str, str], body: bytes, requests: int, clients: int) -> dict[str, Any]:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in urls}

    async def client() -> None:
        async with aiohttp.ClientSession() as session:
            for number in range(requests // clients + 20):
                for name, url in urls.items():
                    times = await _ask(session, url, body)
                    if number >= 20:  # the first ones open connections and warm caches
                        taken[name].append(times)

    await asyncio.gather(*(client() for _ in range(clients)))
    return {
        name: {
            "first_byte_ms": _spread([first for first, _ in rows]),
            "whole_ms": _spread([whole for _, whole in rows]),
        }
        for name, rows in taken.items()
    }


def _system(chars: int) -> str:
    """Return a system prompt as they are written: lines of some 80 characters, the first one changing."""
    lines = [
        f"Rule {number}: answer in short and polite sentences, and name the source of each fact."
        for number in range(chars // 80)
    ]
    return "\n".join(["Current time: 2026-11-29 17:31:05", *lines])


def _spread(values: list[float]) -> dict[str, float]:
    cuts = quantiles(values, n=100)
    return {"p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3}


def main() -> None:
    """Run both ways in turn and print what the gateway adds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--prompt-chars", type=int, default=8000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    upstream, gateway, admin = free_port(), free_port(), free_port()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(upstream,), daemon=True)
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "db": f"sqlite:///{folder}/kvscope.db",
            "upstreams": [f"http://127.0.0.1:{upstream}"],
            "admin": {"port": admin},
            "advisor": {"interval_seconds": 0},
            "collectors": {
                "gateway": {"port": gateway},
                "otlp": {"grpc_port": 0, "http_port": 0},
                "prometheus": {"interval_seconds": 0},
            },
        }
        file = Path(folder) / "agent.yaml"
        file.write_text(yaml.safe_dump(config), "utf-8")
        run = "from kvscope.cli.main import main; main()"
        agent = ChildProcess(
            "the agent", [sys.executable, "-c", run, "agent", "--config", str(file)], Path(folder) / "log"
        )
        try:
            agent.ready_or_stop(lambda: answers(f"http://127.0.0.1:{admin}/healthz"), deadline_seconds=60)
            body = json.dumps(
                {
                    "model": "m",
                    "stream": True,
                    "messages": [
                        {"role": "system", "content": _system(options.prompt_chars)},
                        {"role": "user", "content": "and now?"},
                    ],
                }
            ).encode()
            path = "/v1/chat/completions"
            urls = {
                "direct": f"http://127.0.0.1:{upstream}{path}",
                "gateway": f"http://127.0.0.1:{gateway}{path}",
            }
            result = asyncio.run(_measure(urls, body, options.requests, options.clients))
        finally:
            agent.stop()
            server.kill()
    direct, through = result["direct"], result["gateway"]
    result["added_first_byte_ms"] = {
        cut: through["first_byte_ms"][cut] - direct["first_byte_ms"][cut] for cut in ("p50", "p99")
    }
    if options.json:
        print(json.dumps(result))
        return
    for name in ("direct", "gateway"):
        first, whole = result[name]["first_byte_ms"], result[name]["whole_ms"]
        print(
            f"{name:8} first byte p50 {first['p50']:.2f} ms, p99 {first['p99']:.2f} ms;"
            f" whole answer p50 {whole['p50']:.2f} ms"
        )
    added = result["added_first_byte_ms"]
    print(f"the gateway adds {added['p50']:.2f} ms (p50) and {added['p99']:.2f} ms (p99) to the first byte")


if __name__ == "__main__":
    main()
