"""A request's prompt as the gateway or a log shows it, held in memory only."""

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Risk(StrEnum):
    """What a transform may do to the answer; only ``safe`` ones may run without a person's yes."""

    SAFE = "safe"  # what the model reads keeps its meaning
    REVIEW = "review"  # the order of what it reads changes
    QUALITY = "quality"  # content changes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec:
    """A transform and its parameters as JSON-able data: what suggestions, arms and policies hold."""

    kind: str
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the form in which it is stored and shown."""
        return {"kind": self.kind, "params": dict(self.params)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "TransformSpec":
        """Return the spec that ``as_json`` wrote."""
        return cls(kind=value["kind"], params=value.get("params") or {})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt as the client sent it (before any transform).

    ``body`` is the decoded OpenAI request body. ``api`` is ``chat`` or ``completion``. ``sent_body`` is
    what went to the engine: the same object when nothing was changed.
    """

    request_id: str
    api: str
    route: str
    arrived_at: float
    body: Mapping[str, Any]
    sent_body: Mapping[str, Any]
    engine: str
    session: str | None = None
    tenant: str | None = None

    @property
    def salt(self) -> str | None:
        """The engine's cache salt of this request, which isolates its blocks."""
        value = self.sent_body.get("cache_salt")
        return value if isinstance(value, str) else None
