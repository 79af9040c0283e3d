"""What happens to an inference request before it is sent: read, decided on, perhaps changed, told to others.

Nothing in here does I/O, so that a proxy and a middleware inside the server share it.
"""

from typing import Any

import msgspec

from collectors.gateway.call import Call, json_object, now, prompt_of, session_of, word
from collectors.gateway.dialects import chat_view
from collectors.gateway.headers import Headers, RawHeaders, UsedIds, first_values, identify
from collectors.gateway.layouts import AskedLayout, Layouts
from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.observation import Observation
from collectors.gateway.observe import Observer, observer_of
from collectors.gateway.settings import GatewaySettings
from collectors.gateway.usage import UsageStripper, asking, can_ask
from kvscope.pipeline.contracts import CollectorContext, Decision
from kvscope.prompts.routes import ROUTE_HEADER, RouteMiner
from kvscope.prompts.salts import with_arm_salt
from kvscope.prompts.segments import CHAT, COMPLETION, sequences_asked
from kvscope.prompts.transforms import AS_SENT, apply_transforms, layout_name
from kvscope.prompts.transforms.variant import variant_in

# transforms and the analysis of misses know how these are rendered
_CHANGED = frozenset((CHAT, COMPLETION))
DEADLINE_HEADER = "x-kvscope-deadline-ms"


class Intake:
    """Prepares calls; whatever fails beside the traffic is counted and left out."""

    def __init__(
        self,
        settings: GatewaySettings,
        context: CollectorContext,
        metrics: GatewayMetrics,
        layouts: Layouts,
    ) -> None:
        self._settings = settings
        self._context = context
        self._metrics = metrics
        self._layouts = layouts
        self._fingerprints: dict[str, str | None] = {}  # by engine
        self._used_ids = UsedIds()
        self._routes = RouteMiner()

    def begin(self, api: str, raw_headers: RawHeaders, raw: bytes) -> tuple[Call, Headers]:
        """Return the call for a request that was read, and the headers that it needs beside its own."""
        read_at = now()
        headers = first_values(raw_headers)
        body = json_object(raw)
        ids = identify(raw_headers, body, self._used_ids)
        call = Call(
            api=api,
            request_id=ids.request_id,
            asked_id=ids.asked_id,
            trace_id=ids.trace_id,
            arrived_at=self._context.clock(),
            read_at=read_at,
            in_flight=self._metrics.in_flight - 1,
            body=body,
            session=session_of(headers, body, self._settings.session_header),
            tenant=word(headers.get(self._settings.tenant_header)),
            deadline_seconds=_deadline(headers.get(DEADLINE_HEADER)),
            sent=raw,
            sent_body=body,
        )
        if body is not None:
            with self._metrics.fail_open("route"):
                call.route = self._routes.route(*chat_view(api, body), headers.get(ROUTE_HEADER))
        return call, ids.added

    def decide(self, call: Call) -> None:
        """Let the policy decide, and apply what it says.

        Raises ``LayoutRefusedError`` where the request names a layout and cannot be rendered.
        """
        if call.body is None:
            return
        asked = self._layouts.asked(call.api, call.body)
        if asked is not None:
            call.route = asked.plan.name
        with self._metrics.fail_open("policy"):
            decision = _decided(
                self._context.policy.decide(
                    route=call.route or "",
                    session=call.session,
                    tenant=call.tenant,
                    request_id=call.request_id,
                    at=call.arrived_at,
                )
            )
            call.decision = decision if call.api in _CHANGED else self._left_as_sent(call.api, decision)
        if asked is not None:
            _render(call, asked)
        with self._metrics.fail_open("transforms"):
            if call.api in _CHANGED:
                _transform(call, call.body)

    def _left_as_sent(self, api: str, decision: Decision) -> Decision:
        """Return what of a decision holds for a request of an API whose prompts are never changed.

        It is in no arm: one that leaves some requests as they are says little of its change.
        """
        if not (decision.transforms or decision.salt or decision.experiment):
            return decision
        self._metrics.left_as_sent.labels(api).inc()
        return Decision(routing=None if decision.experiment else decision.routing)

    def announce(self, call: Call, engine: str) -> None:
        """Tell the observer of prompts what goes to ``engine``, and ask for usage."""
        call.engine = engine
        if call.body is None or call.sent_body is None:
            return
        with self._metrics.fail_open("prompts"):
            if call.api in _CHANGED:
                self._context.prompts.arrived(prompt_of(call, call.body, call.sent_body))
        with self._metrics.fail_open("usage"):
            call.choices = sequences_asked(call.api, call.body)
            known = call.choices == 1 or engine in self._fingerprints
            if self._settings.ask_usage and known and can_ask(call.api, call.sent_body):
                call.sent, call.asked_usage = asking(call.sent, call.sent_body), True

    def observer(self, call: Call, headers: RawHeaders) -> Observer | None:
        """Return what reads the answer with these headers; nothing reads a compressed one."""
        single = call.choices == 1
        stripper: UsageStripper | None = None
        if call.asked_usage:
            stripper = UsageStripper(may_wait=single, fingerprint=self._fingerprints.get(call.engine))
        return observer_of(
            call.api,
            first_values(headers),
            single=single,
            stripper=stripper,
            limit=self._settings.answer_limit_bytes,
        )

    def ended(self, call: Call, observation: Observation) -> None:
        """Note what an answer told of its server."""
        if observation.fingerprint_told:
            self._fingerprints[call.engine] = observation.fingerprint


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


def _decided(decision: Any) -> Decision:
    """Return what the policy, perhaps a third party's, decided; raises ``TypeError`` for anything else."""
    if not isinstance(decision, Decision):
        raise TypeError(type(decision).__name__)
    return decision


def _deadline(text: str | None) -> float | None:
    """Return the seconds of a header in milliseconds; what is none sets no deadline."""
    return float(text) / 1000 if text is not None and text.strip().isdecimal() else None
