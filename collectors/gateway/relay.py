"""Relays one answer to the client while it is observed."""

from collectors.gateway.call import Call, now
from collectors.gateway.dialects import DIALECTS
from collectors.gateway.errors import UpstreamError, error_event
from collectors.gateway.headers import Headers, client_headers, header_value, id_bytes, replaced
from collectors.gateway.incoming import Exchange, Source
from collectors.gateway.intake import Intake
from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.observation import Observation
from collectors.gateway.observe import Observer
from collectors.gateway.outgoing import Answer
from collectors.gateway.passing import send_error, send_refusal
from collectors.gateway.wire import Framing
from kvscope.model.request import Status
from kvscope.prompts.transforms import AS_SENT


class Relay:
    """The way of one answer: its headers with ours added, then its bytes, chunk by chunk as they come.

    What may be the last of them waits for the end of the answer, so that the request is recorded before its
    client can know that it has all: a request that was answered in full has a record, whatever happens next.
    """

    def __init__(self, call: Call, exchange: Exchange, intake: Intake, metrics: GatewayMetrics) -> None:
        self._call = call
        self._exchange = exchange
        self._intake = intake
        self._metrics = metrics
        self._observer: Observer | None = None
        self._status = 0
        self._first = True
        self._tail = b""  # what the client got last
        self._faulty = False
        self._streaming = False
        self._last = DIALECTS[call.api].last
        self._held = b""  # perhaps the last bytes
        self._whole = False  # all has come

    @property
    def begun(self) -> bool:
        """Whether the client's answer has begun."""
        return self._exchange.started

    def observation(self) -> Observation:
        """Return what was seen of the answer so far."""
        return Observation() if self._observer is None else self._observer.observed()

    def head(self, answer: Answer, source: Source) -> None:
        """Begin the client's answer."""
        call = self._call
        with self._metrics.fail_open("observer"):
            self._observer = self._intake.observer(call, answer.headers)
        self._streaming = self._observer is not None and self._observer.streaming
        self._exchange.source = source
        call.sent = b""  # it is not sent again, and a stream may last
        self._status = answer.status
        strips = self._observer is not None and self._observer.strips
        headers = client_headers(answer.headers, engine=call.engine, length_changes=strips)
        framing = answer.framing
        if strips and framing is Framing.LENGTH:
            framing = Framing.CHUNKED
        if call.asked_id is not None:
            headers = replaced(headers, call.asked_id, call.request_id)
        self._exchange.start(answer.status, answer.reason, [*headers, *self._own_headers()], framing)

    def part(self, data: bytes, at: float) -> None:
        """Pass on what the observer leaves of a part."""
        if self._observer is not None and not self._faulty:
            try:
                data = self._observer.feed(data, at)
            except Exception as error:  # noqa: BLE001 - the stream goes on whatever fails beside it
                data = self._unobserved(error) + data
        if self._held:
            self._write(self._held)
            self._held = b""
        if not self._streaming or self._last in data:
            self._held = data
        elif data:
            self._tail = data
            self._exchange.write(data)
        if self._first:
            self._first = False
            self._call.overhead_seconds += now() - at

    def flush(self) -> None:
        """Send what was passed on."""
        self._exchange.flush()

    def end(self) -> None:
        """Note the end of the answer and settle the call's status."""
        if self._observer is not None and not self._faulty:
            with self._metrics.fail_open("observer"):
                self._held += self._observer.end()
        self._whole = True
        self._call.answered(self._status, self.observation())

    def release(self) -> None:
        """Send what waited for the record to be kept, and end the client's answer."""
        if self._whole:
            self._write(self._held)
            self._exchange.finish()

    def fail(self, error: UpstreamError) -> None:
        """Tell the client that the answer does not come, or not to its end.

        A document that has begun is left unfinished: the closing connection says it.
        """
        exchange = self._exchange
        if not exchange.started:
            send_error(exchange, error, self._own_headers())
        elif self._streaming and self._observer is not None:
            waiting = self._held + self._observer.broken()
            ends_whole = not self._tail or self._tail.endswith((b"\n\n", b"\r\n\r\n"))
            separator = b"" if ends_whole or self._held else b"\n\n"
            exchange.write(waiting + separator + error_event(str(error), error.kind, error.code))
            exchange.finish()
        else:
            self._write(self._held)
            exchange.flush()

    def refuse(
        self,
        message: str,
        kind: str,
        code: int,
        headers: Headers | None = None,
        *,
        param: str | None = None,
    ) -> None:
        """Answer in the server's place that the request is not sent."""
        self._call.status = Status.REJECTED
        rows = [*(headers or []), *self._own_headers()]
        send_refusal(self._exchange, message, kind, code, rows, param=param)

    def _write(self, data: bytes) -> None:
        self._tail = data
        self._exchange.write(data)

    def _unobserved(self, error: Exception) -> bytes:
        """Ask the observer, which failed, no more; returns what it held back."""
        self._faulty = True
        self._metrics.failed_open("observer", type(error).__name__)
        return b"" if self._observer is None else self._observer.broken()

    def _own_headers(self) -> Headers:
        call = self._call
        own = {
            b"x-kvscope-layout": None if call.layout == AS_SENT else call.layout,
            b"x-kvscope-experiment": call.decision.experiment,
            b"x-kvscope-arm": call.decision.arm,
        }
        values = [(name, header_value(value)) for name, value in own.items() if value]
        return [(b"x-kvscope-request-id", id_bytes(call.request_id)), *values]
