"""Chat and completion requests: decided on, perhaps changed, passed on, observed, recorded."""

import asyncio
from typing import Any

import aiohttp
import msgspec

from collectors.gateway.call import Call, Recorder, now, session_of, word
from collectors.gateway.errors import BodyTooLargeError, ClientGoneError, upstream_error
from collectors.gateway.headers import UsedIds, first_values, identify, uncompressed, upstream_headers
from collectors.gateway.incoming import Receive, Scope, Send, WhileConnected, read_body
from collectors.gateway.layouts import AskedLayout, LayoutRefusedError, Layouts
from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.passing import UPSTREAM_FAILURES, target_url
from collectors.gateway.relay import Relay
from collectors.gateway.settings import GatewaySettings
from collectors.gateway.upstream import Upstreams
from collectors.gateway.usage import asking, can_ask
from kvscope.model.prompt import Prompt
from kvscope.model.request import Status
from kvscope.pipeline.contracts import CollectorContext, Decision
from kvscope.prompts.routes import ROUTE_HEADER, route_of
from kvscope.prompts.salts import with_arm_salt
from kvscope.prompts.segments import sequences_asked
from kvscope.prompts.transforms import AS_SENT, apply_transforms, layout_name
from kvscope.prompts.transforms.variant import variant_in

Headers = list[tuple[str, str]]


class Inference:
    """Handles inference requests; whatever fails beside the traffic is counted and left out."""

    def __init__(
        self,
        settings: GatewaySettings,
        context: CollectorContext,
        upstreams: Upstreams,
        metrics: GatewayMetrics,
        layouts: Layouts,
    ) -> None:
        self._settings = settings
        self._context = context
        self._upstreams = upstreams
        self._metrics = metrics
        self._layouts = layouts
        self._recorder = Recorder(context.sink, metrics)
        self._fingerprints: dict[str, str | None] = {}
        self._used_ids = UsedIds()

    async def handle(self, api: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request and record it, however it ends."""
        self._metrics.in_flight += 1
        try:
            raw: bytes | None = await self._read(scope, receive)
        except ClientGoneError:
            self._metrics.in_flight -= 1
            return
        call, headers = self._begin(api, scope, raw or b"")
        relay = Relay(
            call,
            send,
            self._settings.answer_limit_bytes,
            self._fingerprints.get(call.engine),
            self._recorder.record,
        )
        try:
            if raw is None:
                await relay.refuse_size(self._settings.body_limit_bytes)
            else:
                self._prepare(call)
                await self._exchange(call, scope, receive, relay, headers)
        except LayoutRefusedError as refusal:
            self._layouts.refused.inc()
            await relay.refuse(str(refusal), refusal.param)
        finally:
            self._metrics.in_flight -= 1
            observation = relay.observation()
            if observation.fingerprint_told:
                self._fingerprints[call.engine] = observation.fingerprint
            self._recorder.record(call, observation)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body, or None where it is too large."""
        limit = self._settings.body_limit_bytes
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if declared.isdigit() and int(declared) > limit:
            return None
        try:
            return await read_body(receive, limit)
        except BodyTooLargeError:
            return None

    def _begin(self, api: str, scope: Scope, raw: bytes) -> tuple[Call, Headers]:
        """Return the call with its ids, and the headers that go on."""
        read_at = now()
        headers = first_values(scope["headers"])
        body = _decode(raw)
        ids = identify(headers, body, self._used_ids)
        session = session_of(headers, body, self._settings.session_header)
        call = Call(
            api=api,
            request_id=ids.request_id,
            asked_id=ids.asked_id,
            trace_id=ids.trace_id,
            engine=self._upstreams.choose(session or ids.request_id),
            arrived_at=self._context.clock(),
            read_at=read_at,
            in_flight=self._metrics.in_flight - 1,
            body=body,
            session=session,
            tenant=word(headers.get(self._settings.tenant_header)),
            sent=raw,
            sent_body=body,
        )
        if body is not None:
            with self._metrics.fail_open("route"):
                call.route = route_of(api, body, headers.get(ROUTE_HEADER))
        hidden = frozenset() if ids.asked_id is None else frozenset((b"x-request-id",))
        kept = upstream_headers(scope["headers"], length_known=True, without=hidden)
        return call, [*kept, *ids.added]

    def _prepare(self, call: Call) -> None:
        """Let the policy decide, apply what it says, tell the observer, and ask for usage.

        Raises ``LayoutRefusedError`` where the request names a layout and cannot be rendered.
        """
        if call.body is None:
            return
        asked = self._layouts.asked(call.api, call.body)
        if asked is not None:
            call.route = asked.plan.name
        with self._metrics.fail_open("policy"):
            call.decision = _decided(
                self._context.policy.decide(
                    route=call.route or "",
                    session=call.session,
                    tenant=call.tenant,
                    request_id=call.request_id,
                    at=call.arrived_at,
                )
            )
        if asked is not None:
            _render(call, asked)
        with self._metrics.fail_open("transforms"):
            _transform(call, call.body)
        body, sent_body = call.body, call.sent_body or call.body
        with self._metrics.fail_open("prompts"):
            self._context.prompts.arrived(_prompt(call, body, sent_body))
        with self._metrics.fail_open("usage"):
            call.choices = sequences_asked(call.api, body)
            known = call.choices == 1 or call.engine in self._fingerprints
            if self._settings.ask_usage and known and can_ask(sent_body):
                call.sent, call.asked_usage = asking(call.sent, sent_body), True

    async def _exchange(
        self, call: Call, scope: Scope, receive: Receive, relay: Relay, headers: Headers
    ) -> None:
        """Send the request and relay the answer; settles the call's status."""
        try:
            async with WhileConnected(receive):
                call.overhead_seconds = now() - call.read_at
                url = target_url(scope, call.engine)
                if call.asked_usage:
                    headers = uncompressed(headers)
                answer = await self._upstreams.send("POST", url, headers, call.sent)
                await _relay(relay, answer)
        except (ClientGoneError, asyncio.CancelledError) as error:
            call.status = Status.ABORTED
            if isinstance(error, asyncio.CancelledError):
                raise
        except UPSTREAM_FAILURES as error:
            call.status = Status.ERROR
            await relay.fail(*upstream_error(error, call.engine))


def _render(call: Call, asked: AskedLayout) -> None:
    """Put the rendered body in place of the client's; what is sent no longer names the layout."""
    if call.body is None:
        return
    call.body, call.layout = asked.render(call.body, variant_in(call.decision.transforms))
    call.sent, call.sent_body = msgspec.json.encode(call.body), call.body


def _transform(call: Call, body: dict[str, Any]) -> None:
    """Apply the decision's transforms, and its salt, to what is sent."""
    decision = call.decision
    changed = apply_transforms(decision.transforms, call.api, body) if decision.transforms else body
    if decision.salt is not None:
        changed = with_arm_salt(changed, decision.salt)
    if changed is not body:
        call.sent, call.sent_body = msgspec.json.encode(changed), changed
    if (name := layout_name(decision.transforms)) != AS_SENT:
        call.layout = name if call.layout == AS_SENT else f"{call.layout}+{name}"


async def _relay(relay: Relay, answer: aiohttp.ClientResponse) -> None:
    try:
        await relay.run(answer)
    finally:
        answer.close()


def _decided(decision: Any) -> Decision:
    """Return what the policy, perhaps a third party's, decided; raises ``TypeError`` for anything else."""
    if not isinstance(decision, Decision):
        raise TypeError(type(decision).__name__)
    return decision


def _prompt(call: Call, body: dict[str, Any], sent_body: dict[str, Any]) -> Prompt:
    return Prompt(
        request_id=call.request_id,
        api=call.api,
        route=call.route or "",
        arrived_at=call.arrived_at,
        body=body,
        sent_body=sent_body,
        engine=call.engine,
        session=call.session,
        tenant=call.tenant,
    )


def _decode(raw: bytes) -> dict[str, Any] | None:
    """Return the body where it is a JSON object; what is not is the server's to refuse."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
