"""The running KV-event subscriber: one source for each rank of each engine."""

import asyncio
import contextlib
import logging

import aiohttp
import zmq.asyncio

from collectors.kv_events.discovery import ask
from collectors.kv_events.metrics import EventMetrics
from collectors.kv_events.settings import EndpointSettings, KvEventsSettings
from collectors.kv_events.source import EventSource, Hearing, Place
from kvscope.errors import ConfigError, UnreachableError
from kvscope.pipeline.contracts import CollectorContext

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 5.0
_SOON_SECONDS = 1.0  # the first questions to an engine that is still starting

_Tasks = list[asyncio.Task[None]]


class KvEventSubscriber:
    """Hears the engines; nothing here can slow one down, a PUB socket waits for nobody."""

    def __init__(self, settings: KvEventsSettings, context: CollectorContext) -> None:
        self._settings = settings
        self._context = context
        self._hearing = Hearing(
            topic=settings.topic,
            replay_timeout_seconds=settings.replay_timeout_seconds,
            listener=context.cache_events,
            metrics=EventMetrics(context.registry),
        )
        self._named = [EventSource(place, self._hearing) for place in named_places(settings, context)]
        self._found: dict[Place, tuple[EventSource, _Tasks]] = {}
        self._asking = () if self._named or not settings.discovery_seconds else tuple(context.upstreams)
        self._sockets: zmq.asyncio.Context | None = None
        self._tasks: _Tasks = []

    async def start(self) -> None:
        """Subscribe; an engine that is not there yet is heard when it comes. Raises ``ConfigError``."""
        if not self._named and not self._asking:
            return
        self._sockets = zmq.asyncio.Context()
        try:
            for source in self._named:
                self._tasks += source.connect(self._sockets)
        except BaseException:
            await self.stop()
            raise
        self._tasks += [asyncio.create_task(self._discover(engine)) for engine in self._asking]

    async def stop(self) -> None:
        """Stop hearing; what was heard has been handed on."""
        tasks, self._tasks = self._tasks, []
        await _ended(tasks)
        for _, found in self._found.values():
            await _ended(found)
        if self._sockets is not None:
            self._sockets.destroy(linger=0)
            self._sockets = None

    def health(self) -> tuple[bool, str]:
        """Return whether every engine that was named is connected, and how it goes.

        Nobody asked for those that were found: that one cannot be reached is told, and is no fault.
        """
        sources = [*self._named, *(source for source, _ in self._found.values())]
        if not sources:
            return True, "no upstream tells of published events" if self._asking else "not configured"
        silent = [source.where for source in sources if not source.state.connected]
        if silent and self._named:
            return False, f"not connected to {silent[0]}"
        if silent:
            return True, f"not connected to {silent[0]}, where an engine says that it publishes"
        states = [source.state for source in sources]
        engines = len({source.engine for source in sources})
        line = f"{sum(state.batches for state in states)} batches of {engines} engines"
        if len(sources) > engines:
            line += f" ({len(sources)} ranks)"
        if lost := sum(state.lost for state in states):
            line += f"; {lost} batches lost: what is cached is known in part"
        elif any(state.joined_at is not None for state in states):
            line += "; joined late: blocks that were cached before are unknown until they are stored again"
        return True, line

    async def _discover(self, engine: str) -> None:
        """Ask ``engine`` again and again where it publishes: it may restart with other ports or ranks."""
        pause = _SOON_SECONDS
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    places = await ask(session, engine)
                except UnreachableError as error:
                    _LOG.debug("%s", error)  # the metrics scraper says that the engine is away
                else:
                    pause = self._settings.discovery_seconds
                    await self._hear(engine, places or [])
                await asyncio.sleep(min(pause, self._settings.discovery_seconds))
                pause *= 2

    async def _hear(self, engine: str, places: list[Place]) -> None:
        """Hear exactly ``places`` of ``engine`` from now on."""
        if self._sockets is None:
            return
        for place in [place for place in self._found if place.engine == engine and place not in places]:
            source, tasks = self._found.pop(place)
            await _ended(tasks)
            source.gone(self._context.clock())
        for place in places:
            if place in self._found:
                continue
            source = EventSource(place, self._hearing)
            try:
                self._found[place] = (source, source.connect(self._sockets))
            except ConfigError as error:
                _LOG.warning("%s says that it publishes where nobody can listen: %s", engine, error)


async def _ended(tasks: _Tasks) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task


def named_places(settings: KvEventsSettings, context: CollectorContext) -> list[Place]:
    """Return where the configured endpoints publish, each rank at its own port."""
    return [
        Place(
            engine=_engine(endpoint, number, settings, context),
            replica=str(rank) if endpoint.ranks > 1 else "",
            endpoint=address,
            replay_endpoint=replay,
        )
        for number, endpoint in enumerate(settings.endpoints)
        for rank, (address, replay) in enumerate(endpoint.each_rank())
    ]


def _engine(
    endpoint: EndpointSettings, place: int, settings: KvEventsSettings, context: CollectorContext
) -> str:
    """Return the engine's name: its URL as configured, the upstream at its place, or the address."""
    if endpoint.engine is not None:
        return endpoint.engine.rstrip("/")
    if len(context.upstreams) == len(settings.endpoints):
        return context.upstreams[place]
    return context.upstreams[0] if len(context.upstreams) == 1 else endpoint.endpoint
