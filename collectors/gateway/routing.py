"""Which of several servers gets a request: policies, set for all traffic or by an experiment's arm."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kvscope.model.advice import Routing
from kvscope.pipeline.contracts import PrefixIndex


class Server(Protocol):
    """What a policy looks at."""

    @property
    def url(self) -> str:
        """The server's base URL."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests that it is answering for this gateway."""
        ...

    @property
    def ttft_seconds(self) -> float | None:
        """A moving average of its latest first bytes; None before the first one."""
        ...


AnyServer = TypeVar("AnyServer", bound=Server)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Routable:
    """What a policy knows of a request; ``key`` is its own id, ``body`` None where it is not JSON."""

    key: str
    session: str | None = None
    api: str | None = None
    body: Mapping[str, Any] | None = None


def order(
    policy: Routing, request: Routable, servers: Sequence[AnyServer], prefixes: PrefixIndex, *, slack: int
) -> Sequence[AnyServer]:
    """Return the servers, the one that should get the request first.

    ``slack`` is how many more requests a server may be answering than the least loaded one before the
    prefixes that it has cached count for nothing. Ties go by the session, so that its turns stay together.
    """
    if len(servers) == 1:
        return servers
    place = _affinity(request, servers)
    match policy:
        case Routing.SESSION if request.session is not None:
            return sorted(servers, key=lambda server: place[server.url])
        case Routing.SESSION | Routing.LEAST_LOAD:
            return sorted(servers, key=lambda server: (server.in_flight, place[server.url]))
        case Routing.LATENCY:
            return sorted(servers, key=lambda server: (_expected_wait(server), place[server.url]))
        case Routing.PREFIX:
            return _by_prefix(request, servers, prefixes, place, slack)


def _affinity(request: Routable, servers: Sequence[Server]) -> dict[str, int]:
    """Return each server's place for the request's session: rendezvous hashing (Thaler and Ravishankar 1998).

    A server that goes or comes moves its own sessions only.
    """
    key = (request.session or request.key).encode("utf-8", "surrogatepass")
    weights = {server.url: _weight(server.url, key) for server in servers}
    ranked = sorted(weights, key=lambda url: weights[url], reverse=True)
    return {url: place for place, url in enumerate(ranked)}


def _weight(url: str, key: bytes) -> bytes:
    return hashlib.blake2b(key, key=hashlib.blake2b(url.encode()).digest(), digest_size=8).digest()


def _expected_wait(server: Server) -> float:
    """Return what the next request may wait: the usual first byte, once for each request before it."""
    return (server.ttft_seconds or 0.0) * (server.in_flight + 1)


def _by_prefix(
    request: Routable,
    servers: Sequence[AnyServer],
    prefixes: PrefixIndex,
    place: Mapping[str, int],
    slack: int,
) -> Sequence[AnyServer]:
    cached: Mapping[str, int] = {}
    if request.api is not None and request.body is not None:
        cached = prefixes.cached_tokens(request.api, request.body)
    most = min(server.in_flight for server in servers) + slack
    return sorted(
        servers,
        key=lambda server: (
            server.in_flight > most,
            -cached.get(server.url, 0),
            place[server.url],
        ),
    )
