"""The gateway beside direct, nginx, LiteLLM's proxy and vLLM's router: same upstream, same clients, in turn.

A small server streams fixed chunks at once. Requests come one after the other, each way in turn, for the
first byte alone; then at a fixed rate, for the first byte under load; then as fast as each way takes them,
for the requests that one core passes: requests by the processor time of the way's own processes, which other
load on the machine does not change. `gateway` is the gateway alone, `agent` the whole sidecar with its
analysis and its store.

    python benchmarks/gateway_peers.py [--rate 200] [--seconds 10] [--prompt-chars 8000] [--litellm PROGRAM]
                                       [--vllm-router PROGRAM] [--json]
"""

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from _gateway_rig import (
    Target,
    clients,
    request_bytes,
    scratch,
    spread,
    start_agent,
    start_gateway,
    start_litellm,
    start_nginx,
    start_router,
    upstream,
)

_WARM_REQUESTS = 40
_SLICE_SECONDS = 2.0
_ROUNDS = 8
_PACED_CONNECTIONS = 64


async def _paced(target: Target, request: bytes, rate: float, seconds: float) -> list[tuple[float, float]]:
    """Ask ``rate`` times a second, whether or not answers have come."""
    async with clients(target.port, _PACED_CONNECTIONS) as opened:
        free = list(opened)
        taken: list[tuple[float, float]] = []

        async def one() -> None:
            client = free.pop()
            taken.append(await client.ask(request))
            free.append(client)

        began = time.perf_counter()
        tasks = []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(began + number / rate - time.perf_counter())
            if free:
                tasks.append(asyncio.create_task(one()))
        await asyncio.gather(*tasks)
        return taken


async def _alone(target: Target, request: bytes, requests: int) -> list[tuple[float, float]]:
    """Ask on one connection, the next request when the answer before it has ended."""
    async with clients(target.port, 1) as (client,):
        return [await client.ask(request) for _ in range(requests)]


async def _flat_out(target: Target, request: bytes, requests: int, connections: int) -> float:
    """Return the processor seconds of the way's processes for one request."""
    async with clients(target.port, connections) as opened:

        async def run(client: Any, count: int) -> None:
            for _ in range(count):
                await client.ask(request)

        await asyncio.gather(*(run(client, max(1, _WARM_REQUESTS // connections)) for client in opened))
        before = target.cpu_seconds()
        await asyncio.gather(*(run(client, requests // connections) for client in opened))
        return (target.cpu_seconds() - before) / (requests // connections * connections)


async def _measure(targets: list[Target], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    request = request_bytes(options.prompt_chars)
    paced: dict[str, list[tuple[float, float]]] = {target.name: [] for target in targets}
    for _ in range(max(1, round(options.seconds / _SLICE_SECONDS))):
        for target in targets:
            rate = options.rate if target.name != "LiteLLM" else min(options.rate, 5.0)
            paced[target.name] += await _paced(target, request, rate, _SLICE_SECONDS)
    alone: dict[str, list[tuple[float, float]]] = {target.name: [] for target in targets}
    for _ in range(_ROUNDS):
        for target in targets:
            alone[target.name] += await _alone(target, request, 5 if target.name == "LiteLLM" else 50)
    rows: dict[str, dict[str, Any]] = {}
    for target in targets:
        first = spread([first for first, _ in paced[target.name]])
        requests = options.requests if target.name != "LiteLLM" else options.requests // 40
        cpu = await _flat_out(target, request, requests, 16)
        rows[target.name] = {
            "first_byte_alone_ms": spread([first for first, _ in alone[target.name]]),
            "first_byte_ms": first,
            "cpu_ms": cpu * 1e3,
            "requests_a_core_second": 1 / cpu if cpu else None,
        }
    for row in rows.values():
        row["added_ms"] = {
            cut: row["first_byte_ms"][cut] - rows["direct"]["first_byte_ms"][cut] for cut in ("p50", "p99")
        }
    return rows


def _print(rows: dict[str, dict[str, Any]]) -> None:
    for name, row in rows.items():
        first, added = row["first_byte_ms"], row["added_ms"]
        core = row["requests_a_core_second"]
        print(
            f"{name:12} alone p50 {row['first_byte_alone_ms']['p50']:6.2f} ms;"
            f" at the rate p50 {first['p50']:7.2f} ms, p99 {first['p99']:7.2f} ms;"
            f" adds {added['p50']:6.2f} and {added['p99']:6.2f} ms;"
            + (f" {core:7.0f} requests a second of one core ({row['cpu_ms']:.3f} ms)" if core else "")
        )
    own = rows["gateway"]["requests_a_core_second"]
    for peer in ("nginx", "LiteLLM", "vllm-router"):
        if peer in rows and (theirs := rows[peer]["requests_a_core_second"]):
            print(f"gateway ÷ {peer}, requests a second of one core: {own / theirs:.2f}")


def main() -> None:
    """Run every way that is there and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--prompt-chars", type=int, default=8000)
    parser.add_argument("--litellm", default="litellm")
    parser.add_argument("--vllm-router", default="vllm-router")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    starts: dict[str, Callable[[Path, int], Target | None]] = {
        "gateway": start_gateway,
        "agent": start_agent,
        "nginx": start_nginx,
        "vllm-router": lambda folder, port: start_router(folder, port, options.vllm_router),
        "LiteLLM": lambda folder, port: start_litellm(folder, port, options.litellm),
    }
    with scratch() as folder, upstream() as port:
        targets = [Target("direct", port, None)]
        try:
            for name, start in starts.items():
                if (target := start(folder, port)) is None:
                    print(f"{name:12} absent: not installed here")
                else:
                    targets.append(target)
            rows = uvloop.run(_measure(targets, options))
        finally:
            for target in targets:
                target.stop()
    if options.json:
        print(json.dumps(rows))
    else:
        _print(rows)


if __name__ == "__main__":
    main()
