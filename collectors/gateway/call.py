"""One inference request on its way through the gateway."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from collectors.gateway.observation import Observation
from kvscope.model.prompt import Prompt
from kvscope.model.request import Status
from kvscope.pipeline.contracts import UNCHANGED, Decision

_CLIENT_ERROR = 400
_SERVER_ERROR = 500


@dataclasses.dataclass(slots=True, kw_only=True)
class Call:
    """One inference request; filled while it passes. ``read_at`` is of the monotonic clock."""

    api: str
    request_id: str
    asked_id: str | None = None  # the client's own, where it was used before
    trace_id: str | None
    arrived_at: float
    read_at: float
    in_flight: int  # others inside the gateway at arrival
    body: dict[str, Any] | None  # decoded, where it is a JSON object
    engine: str = ""
    session: str | None = None
    tenant: str | None = None
    route: str | None = None
    deadline_seconds: float | None = None  # to its first token
    decision: Decision = UNCHANGED
    layout: str = "as_sent"
    sent: bytes = b""  # the body as it goes to the engine
    sent_body: dict[str, Any] | None = None  # after transforms
    asked_usage: bool = False
    choices: int = 1
    overhead_seconds: float = 0.0
    status: Status | None = None

    def answered(self, http_status: int, observation: Observation) -> None:
        """Settle the status of a request whose answer came to its end."""
        if _CLIENT_ERROR <= http_status < _SERVER_ERROR:
            self.status = Status.REJECTED
        elif http_status >= _SERVER_ERROR or observation.failed:
            self.status = Status.ERROR
        else:
            self.status = Status.OK


def prompt_of(call: Call, body: Mapping[str, Any], sent_body: Mapping[str, Any]) -> Prompt:
    """Return the call's prompt as the analysis hears of it."""
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


def json_object(raw: bytes) -> dict[str, Any] | None:
    """Return the body where it is a JSON object; what is not is the server's to refuse."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


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
