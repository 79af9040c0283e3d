"""One publisher's stream of cache events, in order and without gaps as far as they can be closed."""

import asyncio
import contextlib
import dataclasses
import logging

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from collectors.kv_events.decode import DecodedBatch, decode_payload, decode_sequence
from collectors.kv_events.metrics import EventMetrics
from collectors.kv_events.replay import replay
from collectors.kv_events.sequence import Judgement, SequenceTracker
from kvscope.errors import ConfigError, PermanentIngestError
from kvscope.model.telemetry import AllBlocksCleared, CacheEventBatch
from kvscope.pipeline.contracts import CacheEventListener

_LOG = logging.getLogger(__name__)
_FRAMES = 3  # topic, sequence, payload
_WAITING_MESSAGES = 100_000  # as many as vLLM keeps for a slow subscriber by default
_LARGEST_MESSAGE_BYTES = 64 * 1024 * 1024
_BREATHE_EVERY = 32  # messages: with many waiting, receiving alone would never let the loop go
SYNTHETIC = -1
"""Sequence of the batch that kvscope itself makes when an engine has restarted."""


@dataclasses.dataclass(slots=True, kw_only=True)
class SourceState:
    """What is known of the stream, for health."""

    connected: bool = False
    batches: int = 0
    lost: int = 0
    joined_at: int | None = None  # sequence of the first batch heard, when earlier ones are unknown
    restarts: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank of one engine publishes; ``replica`` is "" where its batches alone tell the rank."""

    engine: str
    replica: str = ""
    endpoint: str
    replay_endpoint: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """What all sources share."""

    topic: str
    replay_timeout_seconds: float
    listener: CacheEventListener
    metrics: EventMetrics


class EventSource:
    """Hears one rank of one engine and hands its batches on."""

    def __init__(self, place: Place, hearing: Hearing) -> None:
        self._topic = hearing.topic
        self._timeout = hearing.replay_timeout_seconds
        self._listener = hearing.listener
        self._metrics = hearing.metrics
        self._tracker = SequenceTracker()
        self.place = place
        self.engine = place.engine
        self.where = place.endpoint
        self.state = SourceState()

    def connect(self, sockets: zmq.asyncio.Context) -> list[asyncio.Task[None]]:
        """Subscribe and begin; the tasks run until they are cancelled. Raises ``ConfigError``."""
        socket = sockets.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, _WAITING_MESSAGES)
        socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST_MESSAGE_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)  # milliseconds
        socket.setsockopt(zmq.IPV6, "[" in self.where)  # else a name could lead to IPv6 alone
        socket.subscribe(self._topic)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            socket.connect(self.where)
        except zmq.ZMQError as error:
            socket.close()
            raise ConfigError(
                f"cannot subscribe to {self.where} ({error.strerror}); choose another with --kv-events"
            ) from error
        return [
            asyncio.create_task(self._watch(monitor)),
            asyncio.create_task(self._receive(sockets, socket)),
        ]

    def gone(self, at: float) -> None:
        """Tell listeners that the cache is empty, as its engine is gone or publishes elsewhere now."""
        self._tell(self._cleared(self.place.replica, at))

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            event = await recv_monitor_message(monitor)
            self.state.connected = event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED

    async def _receive(self, sockets: zmq.asyncio.Context, socket: zmq.asyncio.Socket) -> None:
        try:
            await self._receive_from(sockets, socket)
        finally:
            socket.disable_monitor()
            socket.close()

    async def _receive_from(self, sockets: zmq.asyncio.Context, socket: zmq.asyncio.Socket) -> None:
        # what was published before we came; live batches wait in the socket meanwhile
        await self._fill(sockets, None)
        received = 0
        while True:
            frames = await socket.recv_multipart()
            try:
                await self._take(sockets, frames)
            except PermanentIngestError as error:
                self._metrics.malformed(self.engine)
                _LOG.debug("a message from %s was left out: %s", self.where, error)
            received += 1
            if received % _BREATHE_EVERY == 0:
                await asyncio.sleep(0)

    async def _take(self, sockets: zmq.asyncio.Context, frames: list[bytes]) -> None:
        if len(frames) != _FRAMES:
            raise PermanentIngestError(f"a message has {len(frames)} frames, not {_FRAMES}")
        sequence, payload = decode_sequence(frames[1]), frames[2]
        batch = decode_payload(payload)
        judgement = self._tracker.judge(sequence, batch.at)
        if judgement is Judgement.DUPLICATE:
            return
        if judgement is Judgement.RESTART:
            self._restart(batch)
        if sequence > self._tracker.expected:
            await self._close_gap(sockets, sequence, batch)
        self._hand_on(sequence, payload, batch)

    async def _close_gap(self, sockets: zmq.asyncio.Context, sequence: int, batch: DecodedBatch) -> None:
        """Fetch what lies before ``sequence``; what cannot be had is counted as lost."""
        if self._tracker.last is not None:
            self._metrics.gap(self.engine)
        if await self._is_another_engine(sockets):
            self._restart(batch)
        await self._fill(sockets, sequence - 1)
        if missing := sequence - self._tracker.expected:
            self._miss(sequence, missing)

    async def _is_another_engine(self, sockets: zmq.asyncio.Context) -> bool:
        """A new engine may have passed our last number unheard; its batch of that number is another."""
        last = self._tracker.last
        if last is None or self.place.replay_endpoint is None:
            return False
        asked = replay(sockets, self.place.replay_endpoint, last, last, timeout_seconds=self._timeout)
        async with contextlib.aclosing(asked):
            async for _, payload in asked:
                return hash(payload) != self._tracker.last_payload
        return False

    async def _fill(self, sockets: zmq.asyncio.Context, last: int | None) -> None:
        """Hand on what the engine still has, from the number that is expected next up to ``last``."""
        endpoint = self.place.replay_endpoint
        if endpoint is None:
            return
        asked = replay(sockets, endpoint, self._tracker.expected, last, timeout_seconds=self._timeout)
        async with contextlib.aclosing(asked):
            async for sequence, payload in asked:
                self._take_replayed(sequence, payload)
                if sequence % _BREATHE_EVERY == 0:
                    await asyncio.sleep(0)

    def _take_replayed(self, sequence: int, payload: bytes) -> None:
        missing = sequence - self._tracker.expected
        if missing < 0:
            return
        try:
            batch = decode_payload(payload)
        except PermanentIngestError:
            self._metrics.malformed(self.engine)
            return
        if missing:
            self._miss(sequence, missing)
        self._hand_on(sequence, payload, batch)
        self._metrics.replayed(self.engine)

    def _miss(self, sequence: int, missing: int) -> None:
        """Note batches that nobody has any more; before our first one they were never ours to lose."""
        if self._tracker.last is None:
            self.state.joined_at = sequence
        else:
            self.state.lost += missing
            self._metrics.lost(self.engine, missing)

    def _restart(self, batch: DecodedBatch) -> None:
        """Tell listeners that the cache is empty: a restarted engine has none of its old blocks."""
        self._tracker.restarted()
        self.state.restarts += 1
        self.state.joined_at = None
        self._metrics.restart(self.engine)
        self._tell(self._cleared(batch.replica or self.place.replica, batch.at))

    def _cleared(self, replica: str, at: float) -> CacheEventBatch:
        return CacheEventBatch(
            engine=self.engine, replica=replica, sequence=SYNTHETIC, at=at, events=(AllBlocksCleared(),)
        )

    def _hand_on(self, sequence: int, payload: bytes, batch: DecodedBatch) -> None:
        self._tracker.handed_on(sequence, batch.at, payload)
        self.state.batches += 1
        self._metrics.taken(self.engine, batch)
        if any(isinstance(event, AllBlocksCleared) for event in batch.events):
            self.state.joined_at = None  # from here on all that is cached is known
        self._tell(
            CacheEventBatch(
                engine=self.engine,
                replica=batch.replica or self.place.replica,
                sequence=sequence,
                at=batch.at,
                events=batch.events,
            )
        )

    def _tell(self, batch: CacheEventBatch) -> None:
        try:
            self._listener.on_events(batch)
        except Exception:  # noqa: BLE001 - a listener's fault must not stop the stream after this batch
            self._metrics.listener_failed(self.engine)
            _LOG.exception("a listener of cache events failed")
