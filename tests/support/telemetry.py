"""Recorded telemetry, and the fakes around a collector that is under test."""

import asyncio
import base64
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from prometheus_client import CollectorRegistry

from kvscope.model.prompt import Prompt
from kvscope.model.telemetry import CacheEventBatch
from kvscope.pipeline.contracts import UNCHANGED, Batch, CollectorContext, Decision, Receipt, Sink

DATA = Path(__file__).parents[1] / "data" / "telemetry"
VERSIONS = ("0.32.0", "0.23.0")


def otlp_payloads(version: str) -> list[bytes]:
    """Return the export requests that vLLM ``version`` sent, in order."""
    return [path.read_bytes() for path in sorted((DATA / f"vllm-{version}" / "otlp").glob("*.pb"))]


def usage(version: str) -> dict[str, tuple[int, int, int | None]]:
    """Return request id -> prompt, output and cached tokens as the responses said."""
    document = json.loads((DATA / f"vllm-{version}" / "usage.json").read_text())
    return {request_id: tuple(counts) for request_id, counts in document.items()}


def metrics_page(version: str) -> str:
    """Return the metrics page after the run."""
    return (DATA / f"vllm-{version}" / "metrics_after.txt").read_text()


def event_frames(version: str) -> Iterator[list[bytes]]:
    """Yield the ZMQ frames of each event message: topic, sequence, payload."""
    with gzip.open(DATA / f"vllm-{version}" / "kv_events.jsonl.gz", "rt") as lines:
        for line in lines:
            yield [base64.b64decode(frame) for frame in json.loads(line)["frames"]]


async def eventually(holds: Callable[[], bool], *, within_seconds: float = 60.0) -> None:
    """Return once ``holds`` is true; raises ``TimeoutError`` when it does not become so."""
    async with asyncio.timeout(within_seconds):
        while not holds():  # noqa: ASYNC110 - what is waited for is not ours to signal
            await asyncio.sleep(0.01)


class AnsweringSink:
    """Answers each offer as ``answer`` says: a number of refused items, or an error.

    An error is raised at once when ``late`` is false, and set on the receipt when it is true.
    """

    def __init__(
        self, answer: Callable[[Batch], int | Exception] = lambda _: 0, *, late: bool = False
    ) -> None:
        self._answer = answer
        self._late = late
        self.accepted: list[Batch] = []

    def offer(self, batch: Batch) -> Receipt:
        answer = self._answer(batch)
        receipt: Receipt = Future()
        if not isinstance(answer, Exception):
            self.accepted.append(batch)
            receipt.set_result(answer)
        elif self._late:
            threading.Timer(0.01, receipt.set_exception, (answer,)).start()
        else:
            raise answer
        return receipt


class MemoryStore:
    """A ``BatchStore`` that keeps spans once by their ids, as the SQL store does."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.span_ids: set[tuple[str, str]] = set()

    def write(self, batches: Sequence[Batch]) -> int:
        self.batches.extend(batches)
        self.span_ids.update((span.trace_id, span.span_id) for batch in batches for span in batch.spans)
        return 0


class EventLog:
    """A ``CacheEventListener`` that keeps what it hears."""

    def __init__(self) -> None:
        self.batches: list[CacheEventBatch] = []

    def on_events(self, batch: CacheEventBatch) -> None:
        self.batches.append(batch)


class _Unchanged:
    def decide(self, **_: object) -> Decision:
        return UNCHANGED

    def arrived(self, prompt: Prompt) -> None:
        del prompt


def context(
    sink: Sink | None = None,
    *,
    upstreams: Sequence[str] = (),
    cache_events: EventLog | None = None,
    registry: CollectorRegistry | None = None,
    clock: Callable[[], float] = time.time,
) -> CollectorContext:
    """Return what a collector is given by the agent."""
    quiet = _Unchanged()
    return CollectorContext(
        sink=sink or AnsweringSink(),
        clock=clock,
        registry=registry or CollectorRegistry(),
        upstreams=upstreams,
        policy=quiet,
        prompts=quiet,
        cache_events=cache_events or EventLog(),
    )
