"""Makes records of calls, beside the traffic: in a thread of its own, so that no request waits for it."""

import asyncio
import contextlib
import queue
import secrets
import threading
from collections.abc import Sequence
from typing import Any

from collectors.gateway.call import Call, word
from collectors.gateway.dialects import chat_view
from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.observation import Observation
from kvscope.errors import RetryableIngestError
from kvscope.model.request import RequestPart, Source, Status
from kvscope.pipeline.contracts import Batch, Sink
from kvscope.prompts.entropy import character_entropy
from kvscope.prompts.segments import prompt_text, segments

_PIECE_BYTES = 4
_WAITING_CALLS = 10_000
_END_SECONDS = 5.0
_TOGETHER = 64  # one wake-up of the loop for all that wait

_Ended = tuple[Call, Observation, asyncio.AbstractEventLoop, asyncio.Future[None]]


class Recorder:
    """Takes calls that ended and offers what is known of them; never raises and never waits."""

    def __init__(self, sink: Sink, metrics: GatewayMetrics) -> None:
        self._sink = sink
        self._metrics = metrics
        self._ended: queue.Queue[_Ended | None] = queue.Queue(_WAITING_CALLS)
        self._thread = threading.Thread(target=self._work, name="kvscope-gateway", daemon=True)
        self._telling: set[str] = set()  # engines that were seen to tell cached tokens

    def start(self) -> None:
        """Begin to make records."""
        self._thread.start()

    def stop(self) -> None:
        """Make the records that are waited for and end; safe without start and twice."""
        if self._thread.is_alive():
            self._ended.put(None)
            self._thread.join(_END_SECONDS)

    def drain(self) -> None:
        """Wait until every call that ended is recorded."""
        self._ended.join()

    def record(self, call: Call, observation: Observation) -> asyncio.Future[None]:
        """Take a call that ended; returns what is done once its record was offered, or cannot be."""
        loop = asyncio.get_running_loop()
        kept = loop.create_future()
        try:
            self._ended.put_nowait((call, observation, loop, kept))
        except queue.Full:
            self._metrics.lost_records.inc()
            kept.set_result(None)
        return kept

    def _work(self) -> None:
        while first := self._ended.get():
            ended: list[_Ended | None] = [first]
            with contextlib.suppress(queue.Empty):
                while len(ended) < _TOGETHER and ended[-1] is not None:
                    ended.append(self._ended.get_nowait())
            calls = [one for one in ended if one is not None]
            for call, observation, _, _ in calls:
                self._record(call, observation)
            for loop in {one[2] for one in calls}:
                kept = [one[3] for one in calls if one[2] is loop]
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(_settle, kept)
            for _ in ended:
                self._ended.task_done()
            if ended[-1] is None:
                return
        self._ended.task_done()

    def _record(self, call: Call, observation: Observation) -> None:
        metrics = self._metrics
        metrics.requests.labels((call.status or Status.ERROR).value).inc()
        metrics.overhead_seconds.observe(call.overhead_seconds)
        if observation.unread:
            metrics.failed_open("observer", "an event that it could not read", observation.unread)
        with metrics.fail_open("record"):
            self._tell_zero(call, observation)
            part = RequestPart(
                request_id=call.request_id,
                source=Source.GATEWAY,
                values=values_of(call, observation),
                piece=secrets.token_hex(_PIECE_BYTES),
            )
            try:
                self._sink.offer(Batch(parts=(part,), only_copy=True))
            except RetryableIngestError:
                metrics.lost_records.inc()

    def _tell_zero(self, call: Call, observation: Observation) -> None:
        """Tell a zero hit from an untold one, for which vLLM to 0.23 says the same nothing.

        A server that told cached tokens of another request was started to tell them; since 0.24 it does so
        for zero too, and then nothing is left to be told apart.
        """
        if observation.cached_tokens is not None:
            self._telling.add(call.engine)
        elif call.engine in self._telling and observation.prompt_tokens is not None:
            observation.cached_tokens = 0


def values_of(call: Call, observation: Observation) -> dict[str, Any]:
    """Return what is known of a call that ended, as fields of a request record."""
    values = {**_seen(call, observation), **_prompt_values(call), **_decided(call)}
    return {name: value for name, value in values.items() if value is not None}


def _settle(kept: Sequence[asyncio.Future[None]]) -> None:
    for one in kept:
        if not one.done():
            one.set_result(None)


def _seen(call: Call, observation: Observation) -> dict[str, Any]:
    first_at = observation.first_content_at
    return {
        "trace_id": call.trace_id,
        "engine": call.engine,
        "arrived_at": call.arrived_at,
        "status": call.status or Status.ERROR,
        "finish_reason": observation.finish_reason,
        "prompt_tokens": observation.prompt_tokens,
        "output_tokens": observation.output_tokens,
        # of several sequences vLLM's usage tells one's cached tokens only (0.32, read)
        "cached_tokens": observation.cached_tokens if call.choices == 1 else None,
        "ttft_client_seconds": None if first_at is None else first_at - call.read_at,
        "requests_in_flight": call.in_flight,
        "gateway_overhead_seconds": call.overhead_seconds,
        **_gap_values(observation),
    }


def _gap_values(observation: Observation) -> dict[str, float]:
    """Return the gaps between tokens.

    A chunk may hold several tokens (`--stream-interval`, speculative decoding): then its gap is theirs
    together, so that the gaps add up to the time from the first token to the last.
    """
    if not observation.gaps_seconds:
        return {}
    told = observation.output_tokens
    tokens_a_chunk = max(1.0, (told - 1) / len(observation.gaps_seconds)) if told else 1.0
    gaps = sorted(gap / tokens_a_chunk for gap in observation.gaps_seconds)
    return {
        "itl_p50_seconds": quantile(gaps, 0.5),
        "itl_p95_seconds": quantile(gaps, 0.95),
        "itl_max_seconds": gaps[-1],
    }


def _prompt_values(call: Call) -> dict[str, Any]:
    if call.body is None:
        return {}
    text = prompt_text(segments(*chat_view(call.api, call.body)))
    return {
        "model": word(call.body.get("model")),
        "prompt_chars": len(text),
        "prompt_entropy": character_entropy(text),
    }


def _decided(call: Call) -> dict[str, Any]:
    return {
        "session": call.session,
        "tenant": call.tenant,
        "route": call.route,
        "prompt_layout": None if call.body is None else call.layout,
        "experiment": call.decision.experiment,
        "arm": call.decision.arm,
        "warmup": call.decision.warmup,
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of ascending values, linear between neighbours (Hyndman and Fan's type 7)."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
