"""Many streams at once through the gateway alone: the gaps that it adds, and the memory of an idle one.

An upstream sends a chunk to every stream at a fixed rate, as an engine does step by step. Half of the clients
ask it directly and half through the gateway, at the same time, so that both see the same machine; the longest
gap of a stream is compared. Then streams that have begun and say nothing more are opened, and the gateway's
memory before and after is compared.

    python benchmarks/gateway_streams.py [--streams 1000] [--rate 50] [--seconds 10] [--idle 1000] [--json]
"""

import argparse
import asyncio
import json
import os
import time
from typing import Any

import uvloop
from _gateway_rig import (
    CHUNK,
    STREAM_HEAD,
    Target,
    Upstream,
    framed,
    request_bytes,
    scratch,
    spread,
    start_gateway,
    upstream,
)

_RATE = "KVSCOPE_BENCH_RATE"
_FRAME = framed(CHUNK)


class _Ticking(Upstream):
    """Begins a stream for each request and adds a chunk to all of them at each tick."""

    _streams: set[Any] = set()  # noqa: RUF012 - one process, one set
    _ticker: Any = None

    def answer(self, *, usage: bool) -> None:
        """Begin a stream."""
        del usage
        self.transport.write(STREAM_HEAD + _FRAME)
        self._streams.add(self.transport)
        if _Ticking._ticker is None and float(os.environ[_RATE]):
            _Ticking._ticker = asyncio.get_running_loop().create_task(self._tick())

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._streams.discard(self.transport)

    async def _tick(self) -> None:
        pause = 1 / float(os.environ[_RATE])
        at = time.perf_counter()
        while True:
            at += pause
            await asyncio.sleep(at - time.perf_counter())
            for stream in tuple(self._streams):
                stream.write(_FRAME)


class _Listener(asyncio.Protocol):
    """Asks for a stream and notes its gaps."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._at = 0.0
        self.gaps: list[float] = []
        self.begun = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._at:
            self.gaps.append(now - self._at)
        self._at = now
        if not self.begun.done() and b"data: " in data:
            self.begun.set_result(None)


async def _open(target: Target, count: int, request: bytes) -> list[_Listener]:
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: _Listener(request), "127.0.0.1", target.port))[1]
        for _ in range(count)
    ]
    await asyncio.gather(*(listener.begun for listener in opened))
    return opened


async def _gaps(targets: list[Target], options: argparse.Namespace) -> dict[str, Any]:
    request = request_bytes(options.prompt_chars)
    half = options.streams // len(targets)
    opened = {target.name: await _open(target, half, request) for target in targets}
    for listeners in opened.values():
        for listener in listeners:
            listener.gaps.clear()
    before = targets[-1].cpu_seconds()
    await asyncio.sleep(options.seconds)
    cpu = targets[-1].cpu_seconds() - before
    rows: dict[str, Any] = {}
    for name, listeners in opened.items():
        gaps = [gap for listener in listeners for gap in listener.gaps]
        longest = sorted(max(listener.gaps) for listener in listeners if listener.gaps)
        rows[name] = {
            "streams": len(listeners),
            "chunks_a_second": len(gaps) / options.seconds,
            "gap_ms": spread(gaps),
            "longest_gap_ms": longest[-1] * 1e3,
        }
        for listener in listeners:
            listener.transport.abort()
    rows["gateway"]["cpu_us_a_chunk"] = (
        cpu / max(1.0, rows["gateway"]["chunks_a_second"] * options.seconds) * 1e6
    )
    return rows


async def _idle(target: Target, options: argparse.Namespace) -> float:
    """Return the bytes of the gateway for each stream that has begun and waits."""
    request = request_bytes(options.prompt_chars)
    await _open(target, 50, request)  # what grows once
    before = target.resident_bytes()
    await _open(target, options.idle, request)
    return (target.resident_bytes() - before) / options.idle


def main() -> None:
    """Run both parts and print what the gateway adds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--prompt-chars", type=int, default=8000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ[_RATE] = str(options.rate)
    with scratch() as folder, upstream(_Ticking) as port:
        gateway = start_gateway(folder, port)
        try:
            rows = uvloop.run(_gaps([Target("direct", port, None), gateway], options))
        finally:
            gateway.stop()
    os.environ[_RATE] = "0"
    with scratch() as folder, upstream(_Ticking) as port:
        gateway = start_gateway(folder, port)
        try:
            rows["idle_stream_bytes"] = uvloop.run(_idle(gateway, options))
        finally:
            gateway.stop()
    if options.json:
        print(json.dumps(rows))
        return
    for name in ("direct", "gateway"):
        row = rows[name]
        print(
            f"{name:8} {row['streams']} streams, {row['chunks_a_second']:.0f} chunks/s; gap p50"
            f" {row['gap_ms']['p50']:.1f} ms, p99 {row['gap_ms']['p99']:.1f} ms,"
            f" longest {row['longest_gap_ms']:.1f} ms"
        )
    added = rows["gateway"]["longest_gap_ms"] - rows["direct"]["longest_gap_ms"]
    cpu = rows["gateway"]["cpu_us_a_chunk"]
    print(f"the gateway adds {added:.1f} ms to the longest gap, at {cpu:.1f} µs a chunk")
    print(f"an idle stream holds {rows['idle_stream_bytes'] / 1e3:.1f} kB of the gateway")


if __name__ == "__main__":
    main()
