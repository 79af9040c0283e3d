"""What the middleware inside an engine tells the agent of the requests that it saw, as MessagePack."""

import dataclasses

import msgspec

from collectors.gateway.observation import Observation
from kvscope.errors import PermanentIngestError

VERSION = 1
PATH = "/v1/reports"
CONTENT_TYPE = "application/x-msgpack"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request at its arrival; ``key`` names it among all of all engines."""

    key: str
    api: str
    request_id: str
    trace_id: str | None
    engine: str | None  # base URL of the server, where it was told its own
    arrived_at: float
    in_flight: int
    session: str | None
    tenant: str | None
    route: str | None  # as the client's header names it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request whose body has come: what the analysis compares."""

    seen: Seen
    body: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A request whose answer has ended; the observation's times are seconds after the body had come."""

    seen: Seen
    choices: int
    http_status: int | None  # None: no answer began
    whole: bool
    aborted: bool
    overhead_seconds: float
    observation: Observation


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """One message to the agent; ``lost`` reports found no place in the queue since the one before."""

    version: int = VERSION
    lost: int = 0
    arrivals: list[Arrival] = dataclasses.field(default_factory=list)
    endings: list[Ending] = dataclasses.field(default_factory=list)


def encode(reports: Reports) -> bytes:
    """Return the message's bytes."""
    return _ENCODER.encode(reports)


def decode(data: bytes) -> Reports:
    """Return the message; raises ``PermanentIngestError`` for any other bytes."""
    try:
        reports = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PermanentIngestError(f"not a message of kvscope's middleware: {error}") from error
    if reports.version != VERSION:
        raise PermanentIngestError(
            f"the middleware speaks version {reports.version} and the agent {VERSION}; install one kvscope"
        )
    return reports


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Reports)
