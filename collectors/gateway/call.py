"""One inference request on its way through the gateway, and the record that is made of it."""

import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.observe import Observation
from kvscope.errors import RetryableIngestError
from kvscope.model.request import RequestPart, Source, Status
from kvscope.pipeline.contracts import UNCHANGED, Batch, Decision, Sink
from kvscope.prompts.entropy import character_entropy
from kvscope.prompts.segments import prompt_text, segments

_CLIENT_ERROR = 400
_SERVER_ERROR = 500
_PIECE_BYTES = 4


@dataclasses.dataclass(slots=True, kw_only=True)
class Call:
    """One inference request; filled while it passes. ``read_at`` is of the monotonic clock."""

    api: str
    request_id: str
    asked_id: str | None = None  # the client's own, where it was used before
    trace_id: str | None
    engine: str
    arrived_at: float
    read_at: float
    in_flight: int  # others inside the gateway at arrival
    body: dict[str, Any] | None  # decoded, where it is a JSON object
    session: str | None = None
    tenant: str | None = None
    route: str | None = None
    decision: Decision = UNCHANGED
    layout: str = "as_sent"
    sent: bytes = b""  # the body as it goes to the engine
    sent_body: dict[str, Any] | None = None  # after transforms
    asked_usage: bool = False
    choices: int = 1
    overhead_seconds: float = 0.0
    status: Status | None = None
    recorded: bool = False

    def answered(self, http_status: int, observation: Observation) -> None:
        """Settle the status of a request whose answer came to its end."""
        if _CLIENT_ERROR <= http_status < _SERVER_ERROR:
            self.status = Status.REJECTED
        elif http_status >= _SERVER_ERROR or observation.failed:
            self.status = Status.ERROR
        else:
            self.status = Status.OK


class Recorder:
    """Makes records of calls and offers them; never raises and never waits."""

    def __init__(self, sink: Sink, metrics: GatewayMetrics) -> None:
        self._sink = sink
        self._metrics = metrics

    def record(self, call: Call, observation: Observation) -> None:
        """Offer what the gateway knows of ``call``, once."""
        if call.recorded:
            return
        call.recorded = True
        self._metrics.requests.labels((call.status or Status.ERROR).value).inc()
        self._metrics.overhead_seconds.observe(call.overhead_seconds)
        if observation.unread:
            self._metrics.failed_open("observer", "an event that it could not read", observation.unread)
        with self._metrics.fail_open("record"):
            values = {**_seen(call, observation), **_prompt_values(call), **_decided(call)}
            part = RequestPart(
                request_id=call.request_id,
                source=Source.GATEWAY,
                values={name: value for name, value in values.items() if value is not None},
                piece=secrets.token_hex(_PIECE_BYTES),
            )
            try:
                self._sink.offer(Batch(parts=(part,), only_copy=True))
            except RetryableIngestError:
                self._metrics.lost_records.inc()


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
    if not observation.gaps_seconds:
        return {}
    gaps = sorted(observation.gaps_seconds)
    return {
        "itl_p50_seconds": quantile(gaps, 0.5),
        "itl_p95_seconds": quantile(gaps, 0.95),
        "itl_max_seconds": gaps[-1],
    }


def _prompt_values(call: Call) -> dict[str, Any]:
    if call.body is None:
        return {}
    text = prompt_text(segments(call.api, call.body))
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


def session_of(headers: Mapping[str, str], body: Mapping[str, Any] | None, header: str) -> str | None:
    """Return the session that the client names: header, else the body's ``session_id`` or ``user``."""
    named = body or {}
    return word(headers.get(header)) or word(named.get("session_id")) or word(named.get("user"))


def word(value: Any, longest: int = 256) -> str | None:
    """Return a text that is not empty, cut to ``longest`` characters, or None for anything else."""
    return value[:longest] if isinstance(value, str) and value else None


def now() -> float:
    """Return the monotonic clock that durations inside the gateway are measured with."""
    return time.perf_counter()
