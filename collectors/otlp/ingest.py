"""One export request on its way to the store: decode, offer, await the commit, say what came of it."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

from collectors.otlp.decode import Decoded, Limits, decode_json, decode_protobuf
from kvscope.errors import PermanentIngestError, RetryableIngestError
from kvscope.pipeline.contracts import Batch, Receipt, Sink

_LOG = logging.getLogger(__name__)
_OFF_THE_LOOP_BYTES = 32_768  # a larger body is decoded in a thread: the loop also serves the gateway


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an export request that was taken in is answered with."""

    rejected: int = 0
    message: str = ""


class Ingest:
    """Takes in export requests of both protocols and counts them."""

    def __init__(
        self, sink: Sink, registry: CollectorRegistry, limits: Limits, *, answer_seconds: float
    ) -> None:
        self._sink = sink
        self._limits = limits
        self._answer_seconds = answer_seconds
        self._requests = Counter(
            "kvscope_otlp_requests", "Export requests by answer.", ["answer"], registry=registry
        )
        self._spans = Counter(
            "kvscope_otlp_spans", "Spans by what became of them.", ["fate"], registry=registry
        )
        self._dropped = Counter(
            "kvscope_otlp_attributes_dropped",
            "Attributes left out: too many, too long, or text that may be a prompt.",
            registry=registry,
        )
        self.accepted_spans = 0

    async def protobuf(self, body: bytes) -> Outcome:
        """Take in a binary export request; raises the two ingest errors."""
        return await self._take(decode_protobuf, body)

    async def json(self, body: bytes) -> Outcome:
        """Take in a JSON export request; raises the two ingest errors."""
        return await self._take(decode_json, body)

    def refused(self) -> None:
        """Count a request that was refused for good before it could be decoded."""
        self._requests.labels("refused for good").inc()

    async def _take(self, decode: Callable[[bytes, Limits], Decoded], body: bytes) -> Outcome:
        try:
            decoded = await self._decode(decode, body)
            outcome = await self._store(decoded)
        except PermanentIngestError:
            self.refused()
            raise
        except RetryableIngestError:
            self._requests.labels("refused for now").inc()
            raise
        self._requests.labels("partial" if outcome.rejected else "ok").inc()
        return outcome

    async def _decode(self, decode: Callable[[bytes, Limits], Decoded], body: bytes) -> Decoded:
        if len(body) > _OFF_THE_LOOP_BYTES:
            return await asyncio.to_thread(decode, body, self._limits)
        return decode(body, self._limits)

    async def _store(self, decoded: Decoded) -> Outcome:
        self._dropped.inc(decoded.dropped_attributes)
        self._spans.labels("without id").inc(decoded.rejected)
        refused = 0
        if decoded.spans:
            receipt = self._sink.offer(Batch(parts=decoded.parts, spans=decoded.spans))
            # a batch holds parts beside spans, and a receipt may count those of batches committed with it
            refused = min(await self._committed(receipt), len(decoded.spans))
        accepted = len(decoded.spans) - refused
        self._spans.labels("refused by the store").inc(refused)
        self._spans.labels("accepted").inc(accepted)
        self.accepted_spans += accepted
        return _outcome(decoded.rejected, refused)

    async def _committed(self, receipt: Receipt) -> int:
        """Wait for the commit; what stays unknown in time is for the sender to send again.

        The receipt is shielded: a sender that goes away must not cancel what the writer will resolve.
        """
        waiting = asyncio.wrap_future(receipt)
        waiting.add_done_callback(_retrieve)
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await asyncio.shield(waiting)
        except TimeoutError as error:
            raise RetryableIngestError("the store has not confirmed in time; send the spans again") from error
        except (PermanentIngestError, RetryableIngestError):
            raise
        except Exception as error:
            # whatever a store raises, the spans may be sent again: they are stored once
            _LOG.warning("a batch of spans was not stored: %s", error)
            raise RetryableIngestError("the store failed; send the spans again") from error


def _retrieve(future: "asyncio.Future[int]") -> None:
    """Look at a late failure, so that the loop does not log one that nobody waits for any more."""
    if not future.cancelled():
        future.exception()


def _outcome(without_id: int, refused: int) -> Outcome:
    reasons = []
    if without_id:
        reasons.append(f"{without_id} without a valid trace id and span id")
    if refused:
        reasons.append(f"{refused} refused by the store")
    return Outcome(rejected=without_id + refused, message="; ".join(reasons))
