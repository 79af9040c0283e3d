"""Relays one answer to the client while it is observed."""

from collections.abc import Callable

import aiohttp

from collectors.gateway.call import Call, now
from collectors.gateway.errors import error_event
from collectors.gateway.headers import client_headers, header_value, id_bytes, replaced
from collectors.gateway.incoming import Send
from collectors.gateway.observe import AnswerObserver, Observation, Observer, StreamObserver
from collectors.gateway.passing import send_error, send_part, start_answer
from collectors.gateway.usage import UsageStripper
from kvscope.model.request import Status

_EVENT_STREAM = "text/event-stream"
_LAST_EVENT = b"[DONE]\n\n"

Record = Callable[[Call, Observation], None]


class Relay:
    """The way of one answer: its headers with ours added, then its bytes, chunk by chunk as they come.

    What may be the last of them waits for the end of the answer, so that the request is recorded before its
    client can know that it has all: a request that was answered in full has a record, whatever happens next.
    """

    def __init__(
        self, call: Call, send: Send, answer_limit: int, fingerprint: str | None, record: Record
    ) -> None:
        self._call = call
        self._record = record
        self._send = send
        self._answer_limit = answer_limit
        self._fingerprint = fingerprint
        self._observer: Observer | None = None
        self._started = False
        self._streaming = False
        self._held = b""  # perhaps the last bytes
        self._ends_whole = True  # what the client got ends with a whole event

    def observation(self) -> Observation:
        """Return what was seen of the answer so far."""
        return Observation() if self._observer is None else self._observer.observed()

    async def run(self, answer: aiohttp.ClientResponse) -> None:
        """Relay the answer to its end and settle the call's status."""
        self._observer = self._observer_of(answer)
        self._started = True
        stripping = self._streaming and self._call.asked_usage
        headers = client_headers(answer.raw_headers, engine=self._call.engine, length_changes=stripping)
        if self._call.asked_id is not None:
            headers = replaced(headers, self._call.asked_id, self._call.request_id)
        await start_answer(self._send, answer.status, [*headers, *self._own_headers()])
        first = True
        async for data, _ in answer.content.iter_chunks():
            at = now()
            passed = data if self._observer is None else self._observer.feed(data, at)
            if passed:
                await self._pass(passed)
            if first:
                first = False
                self._call.overhead_seconds += now() - at
        tail = b"" if self._observer is None else self._observer.end()
        self._call.answered(answer.status, self.observation())
        self._record(self._call, self.observation())
        await send_part(self._send, self._held + tail, last=True)

    async def fail(self, message: str, kind: str, code: int) -> None:
        """Tell the client that the answer does not come, or not to its end.

        A document that has begun is left unfinished: the closing connection says it.
        """
        if not self._started:
            await send_error(self._send, message, kind, code, self._own_headers())
        elif self._streaming:
            await self._pass(b"")
            waiting = b"" if self._observer is None else self._observer.broken()
            separator = b"" if self._ends_whole else b"\n\n"
            event = waiting + separator + error_event(message, kind, code)
            await send_part(self._send, event, last=True)
        else:
            await self._pass(b"")

    async def refuse_size(self, limit: int) -> None:
        """Answer that the body is larger than the gateway takes."""
        self._call.status = Status.REJECTED
        message = f"the body is larger than {limit} bytes; send a smaller one or raise body_limit_bytes"
        await send_error(self._send, message, "RequestEntityTooLarge", 413, self._own_headers())

    async def refuse(self, message: str, param: str) -> None:
        """Answer that the request is wrong at ``param``, a key of its body."""
        self._call.status = Status.REJECTED
        await send_error(self._send, message, "BadRequestError", 400, self._own_headers(), param=param)

    async def _pass(self, data: bytes) -> None:
        """Send what waits and ``data``, or let it wait where it may be the last."""
        ready, self._held = self._held, b""
        if data and (not self._streaming or data.endswith(_LAST_EVENT)):
            self._held = data
        else:
            ready += data
        if ready:
            self._ends_whole = ready.endswith((b"\n\n", b"\r\n\r\n"))
            await send_part(self._send, ready)

    def _observer_of(self, answer: aiohttp.ClientResponse) -> Observer | None:
        """Return what reads this answer; nothing reads a compressed one."""
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            return None
        self._streaming = answer.headers.get("Content-Type", "").startswith(_EVENT_STREAM)
        single = self._call.choices == 1
        if not self._streaming:
            return AnswerObserver(self._answer_limit)
        stripper = (
            UsageStripper(may_wait=single, fingerprint=self._fingerprint) if self._call.asked_usage else None
        )
        return StreamObserver(single=single, stripper=stripper)

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        call = self._call
        own = {
            b"x-kvscope-route": call.route,
            b"x-kvscope-experiment": call.decision.experiment,
            b"x-kvscope-arm": call.decision.arm,
        }
        values = [(name, header_value(value)) for name, value in own.items() if value]
        return [(b"x-kvscope-request-id", id_bytes(call.request_id)), *values]
