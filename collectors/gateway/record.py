"""Makes records of calls that ended; never raises and never waits."""

import random
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

_RANDOM = random.Random()  # noqa: S311 - pieces are told apart, no secret is kept


class Recorder:
    """Offers what is known of a call, once all of its answer but the last bytes has gone to the client.

    In the event loop: a thread of its own takes the interpreter from the traffic at the worst of times, and
    cost three times as much at the median on a busy machine (measured).
    """

    def __init__(self, sink: Sink, metrics: GatewayMetrics) -> None:
        self._sink = sink
        self._metrics = metrics
        self._telling: set[str] = set()  # engines that were seen to tell cached tokens

    def record(self, call: Call, observation: Observation) -> None:
        """Offer what is known of a call that ended."""
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
                piece=f"{_RANDOM.getrandbits(32):08x}",
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
