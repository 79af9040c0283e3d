"""What the middleware inside an engine adds to a request: the same ASGI application with and without it.

A streamed chat of 20 chunks with a prompt of 8,000 characters, in turns, without sockets. `added` is what a
request waits for: processor time of the thread that serves. Reports are sent to a receiver in another process
by the middleware's own thread, whose processor time is told beside it: on a full core it waits in line, too.

    python benchmarks/gateway_middleware.py [--rounds 4000] [--prompt-chars 8000] [--json]
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from _gateway_rig import CHUNK, PATH, request_bytes, spread
from typing_extensions import override

from collectors.gateway.asgi import Message, Receive, Scope, Send
from collectors.gateway.middleware import Observe
from collectors.gateway.reporting import Reporter
from kvscope.demo.engines import free_port

_CHUNKS = 20
_WARM_ROUNDS = 200


class _Receiver(BaseHTTPRequestHandler):
    """Takes reports and says so."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Read one message."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _receive(port: int) -> None:
    HTTPServer(("127.0.0.1", port), _Receiver).serve_forever()


async def _application(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the request and stream an answer, as a server does."""
    del scope
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(_CHUNKS):
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _ask(application: Any, body: bytes) -> float:
    """Return the processor seconds of this thread for one request."""
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        del message

    began = time.thread_time()
    await application(scope, receive, send)
    return time.thread_time() - began


async def _measure(rounds: int, body: bytes, port: int) -> dict[str, Any]:
    reporter = Reporter(f"http://127.0.0.1:{port}")
    observed = Observe(_application, reporter=reporter)
    for _ in range(_WARM_ROUNDS):
        await _ask(observed, body)
    gc.freeze()
    taken: dict[str, list[float]] = {"without": [], "with": []}
    whole, own = time.process_time(), time.thread_time()
    for _ in range(rounds):
        taken["without"].append(await _ask(_application, body))
        taken["with"].append(await _ask(observed, body))
        await asyncio.sleep(0.001)  # so that the thread that sends reports has its turn
    beside = (time.process_time() - whole) - (time.thread_time() - own)
    reporter.stop()
    rows = {name: spread(values) for name, values in taken.items()}
    added = {cut: rows["with"][cut] - rows["without"][cut] for cut in ("p50", "p99")}
    return {**rows, "added_ms": added, "sending_ms": beside / rounds * 1e3, "lost_reports": reporter.lost}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the middleware adds to a request.")
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--prompt-chars", type=int, default=8000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    port = free_port()
    receiver = multiprocessing.get_context("spawn").Process(target=_receive, args=(port,), daemon=True)
    receiver.start()
    body = request_bytes(options.prompt_chars).partition(b"\r\n\r\n")[2]
    found = asyncio.run(_measure(options.rounds, body, port))
    receiver.terminate()
    if options.json:
        print(json.dumps(found))
        return
    for name in ("without", "with"):
        print(f"{name:8} p50 {found[name]['p50']:.3f} ms, p99 {found[name]['p99']:.3f} ms")
    added = found["added_ms"]
    print(f"added    p50 {added['p50']:.3f} ms, p99 {added['p99']:.3f} ms")
    print(f"sending reports, in a thread beside: {found['sending_ms']:.3f} ms a request")
    print(f"reports lost: {found['lost_reports']}")


if __name__ == "__main__":
    main()
