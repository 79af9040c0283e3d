"""The agent's side of the middleware: takes reports over HTTP and makes of them what the gateway makes.

A message is answered once its records are on disk or queued; with 503 it may be sent again.
"""

import http
from collections import OrderedDict

from prometheus_client import Counter
from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from collectors.gateway.call import Call, json_object, prompt_of
from collectors.gateway.dialects import chat_view
from collectors.gateway.record import values_of
from collectors.gateway.reports import PATH, Ending, Reports, Seen, decode
from kvscope.errors import IngestError, PermanentIngestError, RetryableIngestError
from kvscope.model.request import RequestPart, Source, Status
from kvscope.pipeline.contracts import Batch, CollectorContext, CollectorFactory
from kvscope.pipeline.listen import AsgiListener, bind
from kvscope.prompts.routes import RouteMiner
from kvscope.prompts.segments import CHAT, COMPLETION

_ANALYSED = frozenset({CHAT, COMPLETION})
_KNOWN_REQUESTS = 20_000
_KEEP_ALIVE_SECONDS = 75.0


class MiddlewareSettings(BaseModel):
    """Where the agent hears of engines that run kvscope's middleware."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8802, ge=0, le=65535, description="Port; 0 turns it off.")
    max_body_bytes: int = Field(96 * 2**20, gt=0, description="Bytes of one message; others are refused.")


class Reported:
    """Makes records and prompts of reports; an ending finds its arrival among the latest that are open."""

    def __init__(self, context: CollectorContext) -> None:
        self._context = context
        self._known: OrderedDict[str, Call | None] = OrderedDict()  # None: it has ended
        # a report names no server of its own where there is one alone
        self._only_engine = context.upstreams[0] if len(context.upstreams) == 1 else ""
        self._reports = Counter(
            "kvscope_middleware_reports",
            "Reports of the middleware inside engines.",
            ["kind"],
            registry=context.registry,
        )
        self._lost = Counter(
            "kvscope_middleware_lost_reports",
            "Reports that found no place in an engine's queue or were given up.",
            registry=context.registry,
        )
        self._miner = RouteMiner()
        self.requests = 0
        self.unnamed = False

    def take(self, reports: Reports) -> None:
        """Note ``reports``; raises ``RetryableIngestError`` before anything of them was noted."""
        # a message whose answer got lost comes again: what it tells is known then
        new = {
            arrival.seen.key: self._call(arrival.seen, arrival.body)
            for arrival in reports.arrivals
            if arrival.seen.key not in self._known
        }
        parts = [self._part(ending, new) for ending in reports.endings]
        if parts:
            self._context.sink.offer(Batch(parts=parts, only_copy=True))
        for call in new.values():
            if call.body is not None and call.api in _ANALYSED:
                self._context.prompts.arrived(prompt_of(call, call.body, call.body))
        self._known.update(new)
        self._known.update(dict.fromkeys((ending.seen.key for ending in reports.endings), None))
        while len(self._known) > _KNOWN_REQUESTS:
            self._known.popitem(last=False)
        self._reports.labels("arrival").inc(len(new))
        self._reports.labels("ending").inc(len(parts))
        self._lost.inc(reports.lost)
        self.requests += len(parts)
        self.unnamed = self.unnamed or any(not call.engine for call in new.values())

    def _part(self, ending: Ending, new: dict[str, Call]) -> RequestPart:
        key = ending.seen.key
        call = new.get(key) or self._known.get(key) or self._call(ending.seen, b"")
        call.choices = ending.choices
        call.overhead_seconds = ending.overhead_seconds
        if ending.aborted:
            call.status = Status.ABORTED
        elif ending.whole and ending.http_status is not None:
            call.answered(ending.http_status, ending.observation)
        else:
            call.status = Status.ERROR
        return RequestPart(
            request_id=call.request_id,
            source=Source.GATEWAY,
            values=values_of(call, ending.observation),
            piece=key,
        )

    def _call(self, seen: Seen, raw: bytes) -> Call:
        body = json_object(raw)
        return Call(
            api=seen.api,
            request_id=seen.request_id,
            trace_id=seen.trace_id,
            engine=seen.engine or self._only_engine,
            arrived_at=seen.arrived_at,
            read_at=0.0,
            in_flight=seen.in_flight,
            body=body,
            session=seen.session,
            tenant=seen.tenant,
            route=None if body is None else self._miner.route(*chat_view(seen.api, body), seen.route),
        )


class Receiver:
    """The collector: one listener for the middleware of all engines."""

    def __init__(self, settings: MiddlewareSettings, context: CollectorContext) -> None:
        self._settings = settings
        self._reported = Reported(context)
        self._listener: AsgiListener | None = None

    async def start(self) -> None:
        """Listen; raises ``ConfigError`` when the address cannot be had."""
        settings = self._settings
        if settings.port == 0:
            return
        listener = bind(settings.host, settings.port, setting="--middleware-port")
        app = Starlette(routes=[Route(PATH, self._take, methods=["POST"])])
        self._listener = AsgiListener(
            app, listener, drain_seconds=1.0, keep_alive_seconds=_KEEP_ALIVE_SECONDS
        )
        await self._listener.start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            await self._listener.stop()
            self._listener = None

    def health(self) -> tuple[bool, str]:
        """Return whether it listens, where, and what it heard."""
        if self._settings.port == 0:
            return True, "off"
        if self._listener is None:
            return False, "not started"
        unnamed = "; set KVSCOPE_ENGINE_URL in each engine's environment" if self._reported.unnamed else ""
        where = f"{self._settings.host}:{self._listener.port}"
        return not unnamed, f"listens on {where}; {self._reported.requests} requests reported{unnamed}"

    async def _take(self, request: Request) -> Response:
        try:
            self._reported.take(decode(await self._body(request)))
        except RetryableIngestError as error:
            return PlainTextResponse(str(error), http.HTTPStatus.SERVICE_UNAVAILABLE)
        except IngestError as error:
            return PlainTextResponse(str(error), http.HTTPStatus.BAD_REQUEST)
        except ClientDisconnect:
            return Response()
        return Response(status_code=http.HTTPStatus.NO_CONTENT)

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._settings.max_body_bytes:
                limit = self._settings.max_body_bytes
                raise PermanentIngestError(f"the message is larger than {limit} bytes")
        return bytes(body)


FACTORY = CollectorFactory(name="middleware", settings=MiddlewareSettings, create=Receiver)
