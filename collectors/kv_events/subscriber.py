"""The running KV-event subscriber: one source for each engine."""

import asyncio
import contextlib

import zmq.asyncio

from collectors.kv_events.metrics import EventMetrics
from collectors.kv_events.settings import EndpointSettings, KvEventsSettings
from collectors.kv_events.source import EventSource
from kvscope.pipeline.contracts import CollectorContext


class KvEventSubscriber:
    """Hears the configured engines; nothing here can slow one down, a PUB socket waits for nobody."""

    def __init__(self, settings: KvEventsSettings, context: CollectorContext) -> None:
        metrics = EventMetrics(context.registry)
        self._sources = [
            EventSource(
                endpoint,
                engine=_engine(endpoint, place, settings, context),
                topic=settings.topic,
                replay_timeout_seconds=settings.replay_timeout_seconds,
                listener=context.cache_events,
                metrics=metrics,
            )
            for place, endpoint in enumerate(settings.endpoints)
        ]
        self._sockets: zmq.asyncio.Context | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Subscribe; an engine that is not there yet is heard when it comes. Raises ``ConfigError``."""
        if not self._sources:
            return
        self._sockets = zmq.asyncio.Context()
        try:
            for source in self._sources:
                self._tasks += source.connect(self._sockets)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop hearing; what was heard has been handed on."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._sockets is not None:
            self._sockets.destroy(linger=0)
            self._sockets = None

    def health(self) -> tuple[bool, str]:
        """Return whether every engine is connected and heard without loss, and how it goes."""
        if not self._sources:
            return True, "not configured"
        silent = [source for source in self._sources if not source.state.connected]
        if silent:
            return False, f"not connected to {silent[0].where}"
        states = [source.state for source in self._sources]
        line = f"{sum(state.batches for state in states)} batches of {len(states)} engines"
        if lost := sum(state.lost for state in states):
            line += f"; {lost} batches lost: what is cached is known in part"
        elif any(state.joined_at is not None for state in states):
            line += "; joined late: blocks that were cached before are unknown until they are stored again"
        return True, line


def _engine(
    endpoint: EndpointSettings, place: int, settings: KvEventsSettings, context: CollectorContext
) -> str:
    """Return the engine's name: its URL as configured, the upstream at its place, or the address."""
    if endpoint.engine is not None:
        return endpoint.engine.rstrip("/")
    if len(context.upstreams) == len(settings.endpoints):
        return context.upstreams[place]
    return context.upstreams[0] if len(context.upstreams) == 1 else endpoint.endpoint
