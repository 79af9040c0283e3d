"""Inference requests on their way through: prepared, sent to a server, their answers relayed, recorded."""

import asyncio

from collectors.gateway.call import Call, now
from collectors.gateway.errors import BodyTooLargeError, UpstreamError
from collectors.gateway.guard import Guard
from collectors.gateway.headers import OBSERVED, Headers, onward, sized, uncompressed
from collectors.gateway.incoming import Exchange
from collectors.gateway.intake import Intake
from collectors.gateway.layouts import LayoutRefusedError, Layouts
from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.record import Recorder
from collectors.gateway.relay import Relay
from collectors.gateway.replica import Replica
from collectors.gateway.routing import Routable
from collectors.gateway.settings import GatewaySettings
from collectors.gateway.upstream import Upstreams
from collectors.gateway.wire import request_head
from kvscope.model.request import Status
from kvscope.pipeline.contracts import CollectorContext


class _Delivery:
    """One prepared request."""

    def __init__(self, call: Call, exchange: Exchange, added: Headers, relay: Relay) -> None:
        self._call = call
        self._exchange = exchange
        self._added = added
        self._relay = relay

    @property
    def begun(self) -> bool:
        """Whether the answer has begun."""
        return self._relay.begun

    async def send(self, replica: Replica) -> None:
        """Send it to a server."""
        call, exchange = self._call, self._exchange
        hidden = frozenset() if call.asked_id is None else frozenset((b"x-request-id",))
        headers = onward(exchange.headers, host=replica.host, without=hidden)
        if call.asked_usage:
            headers = uncompressed(headers)
        head = request_head(
            exchange.method,
            replica.target(exchange.target),
            [*sized(headers, len(call.sent)), *self._added, (OBSERVED, b"1")],
        )
        await replica.exchange(head, call.sent, self._relay)


class Inference:
    """Handles inference requests."""

    def __init__(
        self,
        settings: GatewaySettings,
        context: CollectorContext,
        upstreams: Upstreams,
        metrics: GatewayMetrics,
        recorder: Recorder,
        layouts: Layouts,
    ) -> None:
        self._body_limit = settings.body_limit_bytes
        self._upstreams = upstreams
        self._metrics = metrics
        self._recorder = recorder
        self._layouts = layouts
        self._intake = Intake(settings, context, metrics, layouts)
        self._guard = Guard(settings.deadline, context.forecast, upstreams, metrics)

    async def handle(self, api: str, exchange: Exchange) -> None:
        """Answer one request and record it, however it ends."""
        self._metrics.in_flight += 1
        try:
            raw: bytes | None = await exchange.body(self._body_limit)
        except BodyTooLargeError:
            raw = None
        except asyncio.CancelledError:
            self._metrics.in_flight -= 1
            raise
        call, added = self._intake.begin(api, exchange.headers, raw or b"")
        relay = Relay(call, exchange, self._intake, self._metrics)
        try:
            if raw is None:
                limit = self._body_limit
                message = (
                    f"the body is larger than {limit} bytes; send a smaller one or raise body_limit_bytes"
                )
                relay.refuse(message, "RequestEntityTooLarge", 413)
            else:
                self._intake.decide(call)
                await self._pass(call, exchange, added, relay)
        except LayoutRefusedError as refusal:
            self._layouts.refused.inc()
            relay.refuse(str(refusal), "BadRequestError", 400, param=refusal.param)
        finally:
            self._metrics.in_flight -= 1
            observation = relay.observation()
            self._intake.ended(call, observation)
            self._recorder.record(call, observation)
            relay.release()  # who was answered in full has a record, whatever happens next

    async def _pass(self, call: Call, exchange: Exchange, added: Headers, relay: Relay) -> None:
        """Send the request and relay the answer; settles the call's status."""
        asked = Routable(key=call.request_id, session=call.session, api=call.api, body=call.sent_body)
        servers = self._guard.admit(call, self._upstreams.choose(asked, call.decision.routing), relay)
        if not servers:
            return
        delivery = _Delivery(call, exchange, added, relay)
        self._intake.announce(call, servers[0].url)
        call.overhead_seconds = now() - call.read_at

        def chosen(replica: Replica) -> None:
            call.engine = replica.url

        try:
            await self._upstreams.deliver(delivery, servers, again=True, chosen=chosen)
        except asyncio.CancelledError:
            call.status = Status.ABORTED
            raise
        except UpstreamError as error:
            call.status = Status.ERROR
            relay.fail(error)
