"""Settings of the gateway."""

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kvscope.model.advice import Routing


class GatewaySettings(BaseModel):
    """Where the gateway listens, what it reads from requests, and how long it waits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8800, ge=0, le=65535, description="Port; 0 turns the gateway off.")
    body_limit_bytes: int = Field(
        64 * 2**20,
        gt=0,
        description="Largest body of an inference request in bytes; above it the answer is 413.",
    )
    answer_limit_bytes: int = Field(
        16 * 2**20,
        gt=0,
        description="Largest answer without streaming that is read for usage, in bytes; others pass unread.",
    )
    session_header: str = Field(
        "x-session-id", min_length=1, description="Request header that names the session."
    )
    tenant_header: str = Field(
        "x-tenant-id", min_length=1, description="Request header that names the tenant."
    )
    ask_usage: bool = Field(
        default=True,
        description="Ask for usage where a streaming client did not, and take it out of the answer again.",
    )
    layouts: Path | None = Field(
        None, description="Folder of prompt layouts (YAML); none: requests that name a layout are refused."
    )
    layouts_poll_seconds: float = Field(
        1.0,
        gt=0,
        description="Seconds between two looks for changed layout files; a change counts at the second.",
    )
    connect_timeout_seconds: float = Field(
        10.0, gt=0, description="Seconds to wait for a connection to the server."
    )
    read_timeout_seconds: float = Field(
        3600.0, gt=0, description="Seconds to wait for the server's next byte before the request fails."
    )
    keep_alive_seconds: float = Field(
        75.0,
        ge=1,
        description="Seconds that a client's idle connection is kept open, that the head of a request may "
        "take, and that its body may pause.",
    )
    drain_seconds: float = Field(
        10.0, ge=0, description="Seconds that shutdown waits for running answers to finish."
    )
    routing: Routing = Field(
        Routing.SESSION,
        description="Which of several servers gets a request: session (always the same for a session), "
        "least_load, latency (least latest first-byte time, weighted by load) or prefix (most of the prompt "
        "cached). An experiment's arm may say another.",
    )
    prefix_slack: int = Field(
        8,
        ge=0,
        description="Requests that a server may be answering more than the least loaded one before what it "
        "has cached counts for nothing; for routing by prefix.",
    )
    health_interval_seconds: float = Field(
        0.5, gt=0, description="Seconds between two questions for the health of each of several servers."
    )
    health_timeout_seconds: float = Field(
        2.0, gt=0, description="Seconds that a server may take to say that it is healthy."
    )
    abandon_seconds: float = Field(
        10.0,
        gt=0,
        description="Seconds without a healthy answer after which a server's running answers are broken off.",
    )
    deadline: Literal["off", "reject", "fallback"] = Field(
        "off",
        description="What happens to a request whose first token is foretold to come after its header "
        "x-kvscope-deadline-ms: off (it goes on), reject (503 with Retry-After) or fallback.",
    )
    fallback: str | None = Field(
        None, description="Base URL of the server that gets such requests where deadline is fallback."
    )

    @field_validator("fallback")
    @classmethod
    def _base_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{value!r} is not a base URL such as http://127.0.0.1:8000")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.deadline == "fallback") != (self.fallback is not None):
            raise ValueError("deadline: fallback and fallback: URL go together")
        return self

    @field_validator("session_header", "tenant_header")
    @classmethod
    def _lower_case(cls, value: str) -> str:
        if not value.isascii() or not all(letter.isalnum() or letter in "-_" for letter in value):
            raise ValueError("a header name holds letters, digits, - and _ only")
        return value.lower()
