"""The request record: one inference call as all sources together tell it."""

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Source(StrEnum):
    """Where a value of a request record came from."""

    GATEWAY = "gateway"  # seen on the wire between client and server
    SPAN = "span"  # vLLM's `llm_request` span
    PLUGIN = "plugin"  # kvscope's stat logger inside the engine
    LOG = "log"  # read from a file by `kvscope import`
    ANALYSIS = "analysis"  # derived by kvscope from the others


class Status(StrEnum):
    """How a request ended."""

    OK = "ok"
    ERROR = "error"
    ABORTED = "aborted"
    REJECTED = "rejected"


class MissCause(StrEnum):
    """Why prompt tokens were not prefix hits; ``docs/miss-causes.md`` tells each with an example."""

    COLD = "cold"
    DIVERGED = "diverged"
    EVICTED = "evicted"
    IN_FLIGHT = "in_flight"
    ISOLATED = "isolated"
    GRANULARITY = "granularity"
    DISABLED = "disabled"
    UNKNOWN = "unknown"


Counts = tuple[int | None, ...]
"""The values of ``TOKEN_FIELDS`` that one source tells of one sequence."""

Pieces = Mapping[str, Mapping[str, Counts]]
"""Source value -> piece -> its counts. An engine computes one sequence for each answer that is asked for
(`n`) and for each prompt of a list, and clients may give one id to several requests: each is a piece."""

MOST_PIECES = 256
"""Pieces of one source that a record keeps apart; where there are more, its tokens are unknown."""
TOO_MANY = "*"
"""Stands for all pieces of a source where there are more."""


def count_sequences(pieces: Pieces) -> int:
    """Return how many sequences the source with most pieces tells of; one where nothing is told."""
    most = 1
    for own in pieces.values():
        if TOO_MANY in own:
            return MOST_PIECES + 1
        most = max(most, len(own) - ("" in own))
    return most


TOKEN_FIELDS = ("prompt_tokens", "output_tokens", "cached_tokens")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, filled by whichever sources know; ``sources`` says which told each field."""

    request_id: str
    trace_id: str | None = None
    span_id: str | None = None
    session: str | None = None
    tenant: str | None = None
    route: str | None = None
    model: str | None = None
    engine: str | None = None  # base URL of the vLLM server
    replica: str | None = None  # data-parallel rank, as the `engine` label names it
    arrived_at: float | None = None
    status: Status | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_seconds: float | None = None  # the engine's: arrival to first token
    ttft_client_seconds: float | None = None  # the gateway's: request read to first content byte
    tpot_seconds: float | None = None
    itl_p50_seconds: float | None = None
    itl_p95_seconds: float | None = None
    itl_max_seconds: float | None = None
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    e2e_seconds: float | None = None
    preemptions: int | None = None
    requests_in_flight: int | None = None  # others inside the gateway at arrival
    prompt_chars: int | None = None
    prompt_entropy: float | None = None  # bits per character
    prompt_layout: str | None = None  # transforms that were applied, joined by "+"
    experiment: str | None = None
    arm: str | None = None
    warmup: bool | None = None  # among the first of its arm: warms the arm's prefix
    gateway_overhead_seconds: float | None = None
    causes: Mapping[str, int] | None = None  # MissCause value -> tokens
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)  # field -> Source value
    # field -> the most trusted Source that told another value than the one taken
    conflicts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pieces: Pieces = dataclasses.field(default_factory=dict)

    @property
    def sequences(self) -> int:
        """How many sequences this record stands for: more than one for `n`, lists of prompts, shared ids."""
        return count_sequences(self.pieces)


REQUEST_FIELDS = frozenset(f.name for f in dataclasses.fields(RequestRecord)) - {
    "request_id",
    "sources",
    "conflicts",
    "pieces",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestPart:
    """What one source tells of one request; ``values`` holds fields of ``RequestRecord``.

    ``piece`` names the sequence that the values are about, such as the span's id: tokens of different
    pieces add up. A part without one speaks of the request as a whole.
    Parts of one request may come in any order, late, or twice: ``model.merge`` joins them.
    """

    request_id: str
    source: Source
    values: Mapping[str, Any]
    piece: str = ""

    def __post_init__(self) -> None:
        if not self.values.keys() <= REQUEST_FIELDS:
            unknown = sorted(self.values.keys() - REQUEST_FIELDS)
            raise ValueError(f"not fields of a request record: {unknown}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Prompt tokens of one request that missed for one cause, and where the prefix broke.

    ``message_index`` counts from 0 in the request's ``messages``; tools have ``role`` "tools" and
    no index. The character range is within that message's text. No prompt text is held.
    """

    request_id: str
    cause: MissCause
    tokens: int
    role: str | None = None
    message_index: int | None = None
    char_start: int | None = None
    char_end: int | None = None
    value_kind: str | None = None
