"""All inference servers behind the gateway: which one gets a request, and which ones answer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from collectors.gateway.errors import UnreachableUpstreamError, UpstreamError
from collectors.gateway.incoming import Source
from collectors.gateway.outgoing import Answer
from collectors.gateway.replica import Replica
from collectors.gateway.routing import Routable, order
from collectors.gateway.settings import GatewaySettings
from collectors.gateway.wire import request_head
from kvscope.model.advice import Routing
from kvscope.pipeline.contracts import PrefixIndex

_SERVER_ERROR = 500


class Delivery(Protocol):
    """A request that can be sent to one server and, where that fails before its answer, to another."""

    @property
    def begun(self) -> bool:
        """Whether an answer has begun."""
        ...

    async def send(self, replica: Replica) -> None:
        """Send it; raises ``UpstreamError``."""
        ...


class Upstreams:
    """The servers; those that do not answer get nothing while others do.

    With several, each is asked for ``/health`` again and again. A server that died is left at its first
    refusal, at the latest after the interval and the time that its answer may take.
    """

    def __init__(self, urls: Sequence[str], settings: GatewaySettings, prefixes: PrefixIndex) -> None:
        self._settings = settings
        self._prefixes = prefixes
        self._replicas = tuple(self._replica(url) for url in urls)
        self._probes: list[asyncio.Task[None]] = []
        self.fallback = None if settings.fallback is None else self._replica(settings.fallback)

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers' base URLs."""
        return tuple(replica.url for replica in self._replicas)

    async def open(self) -> None:
        """Begin to ask for the servers' health."""
        if len(self._replicas) > 1:
            self._probes = [asyncio.create_task(self._watch(replica)) for replica in self._replicas]

    async def close(self) -> None:
        """Close all connections."""
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        self._probes.clear()
        for replica in (*self._replicas, *([self.fallback] if self.fallback else [])):
            replica.abandon()

    def choose(self, request: Routable, routing: Routing | None = None) -> Sequence[Replica]:
        """Return the servers for a request, the best first; those that do not answer are last."""
        if len(self._replicas) == 1:
            return self._replicas
        ranked = order(
            routing or self._settings.routing,
            request,
            self._replicas,
            self._prefixes,
            slack=self._settings.prefix_slack,
        )
        return sorted(ranked, key=lambda replica: replica.down)

    async def deliver(
        self,
        delivery: Delivery,
        replicas: Sequence[Replica],
        *,
        again: bool,
        chosen: Callable[[Replica], None],
    ) -> None:
        """Send to the first server that takes it; raises the last one's ``UpstreamError``.

        A server that cannot be reached has seen nothing of the request. One that broke off before its answer
        began may have; then the request goes elsewhere where ``again`` says that this is safe.
        """
        last = len(replicas) - 1
        for place, replica in enumerate(replicas):
            chosen(replica)
            try:
                await delivery.send(replica)
            except UpstreamError as error:
                safe = isinstance(error, UnreachableUpstreamError) or (again and type(error) is UpstreamError)
                if place == last or delivery.begun or not safe:
                    raise
            else:
                return

    def silent(self) -> tuple[str, ...]:
        """Return the servers that do not answer."""
        return tuple(sorted(replica.url for replica in self._replicas if replica.down))

    def _replica(self, url: str) -> Replica:
        return Replica(
            url,
            connect_seconds=self._settings.connect_timeout_seconds,
            read_seconds=self._settings.read_timeout_seconds,
        )

    async def _watch(self, replica: Replica) -> None:
        """Ask one server for its health for ever."""
        loop = asyncio.get_running_loop()
        healthy_at = loop.time()
        while True:
            if await self._healthy(replica):
                replica.answered()
                healthy_at = loop.time()
            elif loop.time() - healthy_at > self._settings.abandon_seconds:
                replica.abandon()
            await asyncio.sleep(self._settings.health_interval_seconds)

    async def _healthy(self, replica: Replica) -> bool:
        seen = _Status()
        head = request_head(b"GET", replica.target(b"/health"), [(b"Host", replica.host)])
        try:
            async with asyncio.timeout(self._settings.health_timeout_seconds):
                await replica.exchange(head, b"", seen, counted=False)
        except (UpstreamError, TimeoutError) as error:
            replica.failed(error)
            return False
        healthy = seen.status < _SERVER_ERROR  # vLLM says 503 where its engine is dead
        if not healthy:
            replica.failed(f"status {seen.status} at /health")
        return healthy


class _Status:
    """Keeps the status of an answer."""

    def __init__(self) -> None:
        self.status = 0

    def head(self, answer: Answer, source: Source) -> None:
        """Note the status."""
        del source
        self.status = answer.status

    def part(self, data: bytes, at: float) -> None:
        """Nothing of the body matters."""

    def flush(self) -> None:
        """Nothing waits."""

    def end(self) -> None:
        """Nothing is left to do."""
