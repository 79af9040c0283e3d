"""Settings of the KV-event subscriber."""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

_ADDRESS = re.compile(r"tcp://[^*\s/]+:(?P<port>\d{1,5})|ipc://\S+|inproc://\S+")
_LAST_PORT = 65_535


def _checked(address: str) -> str:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"] or 1) not in range(1, _LAST_PORT + 1):
        raise ValueError(
            f"{address!r} is not an address to connect to, such as tcp://127.0.0.1:5557 "
            "(the engine binds tcp://*:5557; here its host is named)"
        )
    return address


class EndpointSettings(BaseModel):
    """Where one engine publishes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str = Field(description="Address of the engine's PUB socket, e.g. tcp://127.0.0.1:5557.")
    replay_endpoint: str | None = Field(
        None, description="Address of its ROUTER socket, where missed batches can be asked for."
    )
    engine: str | None = Field(
        None, description="Base URL of the engine; default: the upstream at the same place in the list."
    )

    @field_validator("endpoint", "replay_endpoint")
    @classmethod
    def _addresses(cls, value: str | None) -> str | None:
        return None if value is None else _checked(value)


class KvEventsSettings(BaseModel):
    """Which engines' cache events are heard; without an endpoint the subscriber idles."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoints: tuple[EndpointSettings, ...] = Field(
        (), description="One for each engine: an address, or endpoint, replay_endpoint and engine."
    )
    topic: str = Field("", description="Prefix of the topics to hear; the empty one hears all.")
    replay_timeout_seconds: float = Field(
        5.0, gt=0, description="Seconds without a batch after which a replay is given up."
    )

    @field_validator("endpoints", mode="before")
    @classmethod
    def _from_addresses(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = (value,)
        if isinstance(value, list | tuple):
            return tuple({"endpoint": item} if isinstance(item, str) else item for item in value)
        return value
