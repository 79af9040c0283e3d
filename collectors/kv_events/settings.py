"""Settings of the KV-event subscriber."""

import re
from collections.abc import Iterator
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_ADDRESS = re.compile(r"tcp://[^*\s/]+:(?P<port>\d{1,5})|ipc://\S+|inproc://\S+")
_LAST_PORT = 65_535
_MOST_RANKS = 1_024


def _checked(address: str) -> str:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"] or 1) not in range(1, _LAST_PORT + 1):
        raise ValueError(
            f"{address!r} is not an address to connect to, such as tcp://127.0.0.1:5557 "
            "(the engine binds tcp://*:5557; here its host is named)"
        )
    return address


def address_of_rank(address: str, rank: int) -> str:
    """Return where an engine of data-parallel ``rank`` binds instead of ``address`` (vLLM 0.32, read).

    Raises ``ValueError`` for an address that has no other ranks: an ``ipc`` one, or a port past the last.
    """
    if rank == 0:
        return address
    if address.startswith("inproc://"):
        return f"{address}_dp{rank}"
    host, _, port = address.rpartition(":")
    if not address.startswith("tcp://") or int(port) + rank > _LAST_PORT:
        raise ValueError(
            f"{address!r} leaves no address for rank {rank}; ranks need tcp and ports up to 65535"
        )
    return f"{host}:{int(port) + rank}"


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
    ranks: int = Field(
        1,
        ge=1,
        le=_MOST_RANKS,
        description="Data-parallel ranks; rank r publishes and replays at the port + r.",
    )

    @field_validator("endpoint", "replay_endpoint")
    @classmethod
    def _addresses(cls, value: str | None) -> str | None:
        return None if value is None else _checked(value)

    @model_validator(mode="after")
    def _has_addresses_for_all_ranks(self) -> Self:
        for _ in self.each_rank():
            pass
        return self

    def each_rank(self) -> Iterator[tuple[str, str | None]]:
        """Yield endpoint and replay endpoint of each rank in order."""
        for rank in range(self.ranks):
            replay = self.replay_endpoint
            yield (
                address_of_rank(self.endpoint, rank),
                None if replay is None else address_of_rank(replay, rank),
            )


class KvEventsSettings(BaseModel):
    """Which engines' cache events are heard: the named ones, else those that tell where they publish."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoints: tuple[EndpointSettings, ...] = Field(
        (), description="One for each engine: an address, or endpoint, replay_endpoint, engine and ranks."
    )
    discovery_seconds: float = Field(
        30.0,
        ge=0,
        description="Where no endpoint is named: seconds between two questions to each upstream's "
        "/kv_event_sources (vLLM 0.31 and later); 0 asks nobody.",
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
