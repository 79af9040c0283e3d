"""Takes finished requests from the engine and sends them to the agent from a thread of its own.

The engine's side only appends to a bounded queue. The OpenTelemetry SDK makes and sends the spans, but not
through its batch processor: that one drops a batch that failed, logs each failure, and does not count.
"""

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from collectors.vllm_plugin.finished import FinishedRequest

LOG = logging.getLogger("vllm.kvscope")  # vLLM's own handlers show it

_BATCH = 512
_TRIES = 8  # of one batch; the pauses between them add up to about a minute
_LONGEST_PAUSE_SECONDS = 15.0


class Sender(Protocol):
    """Sends finished requests; the thread that calls it may wait."""

    def send(self, requests: Sequence[FinishedRequest]) -> bool:
        """Send all of them and return whether they arrived; the same ones may be sent again."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Reporter:
    """A bounded queue and the thread that empties it; ``offer`` never waits and never raises."""

    def __init__(
        self,
        connect: Callable[[], Sender],
        *,
        target: str,
        queue_requests: int = 4096,
        delay_seconds: float = 0.5,
        exit_seconds: float = 1.0,
    ) -> None:
        self._connect = connect
        self._target = target
        self._queue: deque[FinishedRequest] = deque()
        self._queue_requests = queue_requests
        self._delay_seconds = delay_seconds
        self._exit_seconds = exit_seconds
        self._stopping = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="kvscope-plugin", daemon=True)
        self.dropped = 0
        self.sent = 0

    def start(self) -> None:
        """Begin sending, and send what waits when the process ends."""
        self._thread.start()
        atexit.register(self.stop)

    def offer(self, request: FinishedRequest) -> None:
        """Queue ``request``, or drop and count it when the queue is full."""
        if len(self._queue) >= self._queue_requests:
            self._drop(1)
        else:
            self._queue.append(request)

    def stop(self) -> None:
        """Send what waits if that is quick; a thread that still waits for an answer then is left behind."""
        atexit.unregister(self.stop)
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(self._exit_seconds)

    def _drop(self, requests: int) -> None:
        if not self.dropped:
            LOG.warning("kvscope: the queue for %s is full; requests are dropped from now on", self._target)
        self.dropped += requests

    def _run(self) -> None:
        try:
            sender = self._connect()
        except Exception as error:  # noqa: BLE001 - in the engine's process nothing may escape
            LOG.warning("kvscope: cannot send to %s (%s); the plugin steps aside", self._target, error)
            self._queue_requests = 0
            return
        while not self._stopping.wait(self._delay_seconds):
            self._send_waiting(sender)
        self._send_waiting(sender)
        sender.close()

    def _send_waiting(self, sender: Sender) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            if not self._deliver(sender, batch):
                self._drop(len(batch))
            if self._stopping.is_set() and self._failing:
                return

    def _deliver(self, sender: Sender, batch: Sequence[FinishedRequest]) -> bool:
        """Try until it arrives, pausing longer each time; stopping ends the pauses."""
        pause = self._delay_seconds
        for _ in range(_TRIES):
            if self._send_once(sender, batch):
                return True
            if self._stopping.wait(pause):
                return False
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        return False

    def _send_once(self, sender: Sender, batch: Sequence[FinishedRequest]) -> bool:
        try:
            arrived = sender.send(batch)
        except Exception:  # noqa: BLE001 - see _run
            arrived = False
        if arrived:
            self.sent += len(batch)
        if arrived == self._failing:
            self._failing = not arrived
            if arrived:
                LOG.info("kvscope: %s answers again", self._target)
            else:
                LOG.warning(
                    "kvscope: %s does not answer; the statistics of up to %d requests wait",
                    self._target,
                    self._queue_requests,
                )
        return arrived


def settings(environment: Any) -> tuple[bool, str]:
    """Return whether the plugin is on, and the endpoint, from the engine's environment."""
    on = environment.get("KVSCOPE_PLUGIN", "on").strip().lower() not in ("off", "0", "false", "no")
    endpoint = environment.get("KVSCOPE_OTLP_ENDPOINT", "").strip()
    return on, endpoint or "http://127.0.0.1:4318/v1/traces"
