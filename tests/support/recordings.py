"""The four recorded runs of real engines, and a stand-in engine that says again what was recorded."""

import base64
import dataclasses
import gzip
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.telemetry import DATA

Usage = tuple[int, int, int | None]


def _unzipped(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """One run; its folder is described in ``tests/data/telemetry/README.md``."""

    name: str
    prompt_tokens: int
    cached_tokens: int

    @property
    def folder(self) -> Path:
        return DATA / self.name

    def usage(self) -> dict[str, Usage]:
        """Return request id -> prompt, output and cached tokens as the responses said, in their order."""
        told = json.loads((self.folder / "usage.json").read_text())
        return {request_id: tuple(counts) for request_id, counts in told.items()}

    def export_requests(self) -> list[bytes]:
        """Return the OTLP requests in order."""
        return [path.read_bytes() for path in sorted((self.folder / "otlp").glob("*.pb"))]

    def spans(self) -> dict[str, tuple[float, float, dict[str, Any]]]:
        """Return request id -> start, end, attributes of its span, as OpenTelemetry's own code reads it."""
        found: dict[str, tuple[float, float, dict[str, Any]]] = {}
        for payload in self.export_requests():
            for resource in ExportTraceServiceRequest.FromString(payload).resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        told = {pair.key: pair.value for pair in span.attributes}
                        if span.name == "llm_request":
                            name = told["gen_ai.request.id"].string_value.removeprefix("chatcmpl-")
                            numbers = {
                                key: value.double_value if value.HasField("double_value") else value.int_value
                                for key, value in told.items()
                            }
                            times = span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9
                            found[name] = (*times, numbers)
        return found

    def metrics(self, when: str) -> str:
        """Return the metrics page ``before`` or ``after`` the run."""
        plain = self.folder / f"metrics_{when}.txt"
        return plain.read_text() if plain.exists() else _unzipped(plain.with_suffix(".txt.gz")).decode()

    def events(self) -> Iterator[tuple[int, bytes]]:
        """Yield sequence and payload of each batch of cache events, where they were recorded here."""
        lines = self.folder / "kv_events.jsonl.gz"
        if lines.exists():
            for line in _unzipped(lines).splitlines():
                _, sequence, payload = map(base64.b64decode, json.loads(line)["frames"])
                yield int.from_bytes(sequence), payload
        replayed = self.folder / "kv_events_replay.bin.gz"
        if replayed.exists():
            rest = _unzipped(replayed)
            while rest:
                sequence, length = struct.unpack_from(">QI", rest)
                yield sequence, rest[12 : 12 + length]
                rest = rest[12 + length :]


RECORDINGS = (
    Recording("vllm-0.32.0", 101_894, 45_728),
    Recording("vllm-0.32.0-concurrent-4", 97_663, 44_256),
    Recording("vllm-0.32.0-real-prompts", 490_789, 320_032),
    Recording("vllm-0.23.0", 74_732, 34_688),
)


class RecordedEngine:
    """Answers each request, by its ``X-Request-Id``, as the real engine did.

    The recorded bytes where they were kept; else a plain answer with the recorded usage.
    """

    def __init__(self, recording: Recording) -> None:
        self.page = recording.metrics("before")
        self._usage = recording.usage()
        self._bytes: dict[str, dict[str, Any]] = {}
        kept = recording.folder / "responses.jsonl.gz"
        if kept.exists():
            rows = map(json.loads, _unzipped(kept).splitlines())
            self._bytes = {row["request_id"]: row for row in rows}
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app)
        self.url = ""

    async def start(self) -> None:
        """Listen on a free port."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self.page)

    async def _chat(self, request: web.Request) -> web.Response:
        name = request.headers["X-Request-Id"]
        if name in self._bytes:
            kind = "text/event-stream" if self._bytes[name]["stream"] else "application/json"
            return web.Response(body=self._bytes[name]["raw"].encode(), content_type=kind)
        prompt, output, cached = self._usage[name]
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output}
        usage["prompt_tokens_details"] = None if cached is None else {"cached_tokens": cached}
        message = {"role": "assistant", "content": "as recorded"}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return web.json_response({"id": f"chatcmpl-{name}", "choices": [choice], "usage": usage})
