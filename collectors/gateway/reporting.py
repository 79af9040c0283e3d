"""Sends the middleware's reports to the agent, from a thread of its own inside the engine's server.

The server's side only appends to a queue that is bounded in reports and in bytes.
"""

import atexit
import http.client
import logging
import threading
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

from collectors.gateway.reports import CONTENT_TYPE, PATH, Arrival, Ending, Reports, encode

LOG = logging.getLogger("vllm.kvscope")  # vLLM's own handlers show it

DEFAULT_ENDPOINT = "http://127.0.0.1:8802"
_MOST_REPORTS = 4_096
_MOST_BYTES = 64 * 2**20
_BATCH = 256
_TRIES = 20  # of one message; the pauses between them add up to about half a minute
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 2.0  # then prompts are not much older than the answers that they explain
_TIMEOUT_SECONDS = 5.0
_EXIT_SECONDS = 1.0
_SUCCESS, _CLIENT_ERROR, _SERVER_ERROR = 200, 400, 500


class Reporter:
    """A bounded queue and the thread that empties it; ``offer`` never waits and never raises."""

    def __init__(self, endpoint: str) -> None:
        """Send to ``endpoint``; raises ``ValueError`` where that is no URL of a host and a port."""
        parts = urlsplit(endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{endpoint!r} is not a URL such as {DEFAULT_ENDPOINT}")
        self._endpoint = endpoint
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port or 80, timeout=_TIMEOUT_SECONDS
        )
        self._queue: deque[Arrival | Ending] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._started = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="kvscope-middleware", daemon=True)
        self.refused = False
        self.lost = 0
        self._lost_told = 0

    def offer(self, report: Arrival | Ending) -> None:
        """Queue ``report``, or drop and count it when there is no room or the agent speaks otherwise."""
        size = _size(report)
        with self._changed:
            if self.refused or self._stopping:
                return
            if len(self._queue) >= _MOST_REPORTS or self._bytes + size > _MOST_BYTES:
                self.lost += 1
                return
            self._queue.append(report)
            self._bytes += size
            if not self._started:  # not before: a server may fork after it made its application
                self._started = True
                self._thread.start()
                atexit.register(self.stop)
            self._changed.notify()

    def stop(self) -> None:
        """Send what waits if that is quick; a thread that still waits for an answer then is left behind."""
        atexit.unregister(self.stop)
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(_EXIT_SECONDS)

    def _run(self) -> None:
        while reports := self._take():
            if not self._deliver(reports):
                self.lost += len(reports)
        self._connection.close()

    def _take(self) -> list[Arrival | Ending]:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping)
            taken = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            self._bytes -= sum(map(_size, taken))
            return taken

    def _deliver(self, reports: list[Arrival | Ending]) -> bool:
        """Try until they have arrived, pausing longer each time; False when they are given up."""
        lost = self.lost
        body = encode(
            Reports(
                lost=lost - self._lost_told,
                arrivals=[report for report in reports if isinstance(report, Arrival)],
                endings=[report for report in reports if isinstance(report, Ending)],
            )
        )
        pause = _FIRST_PAUSE_SECONDS
        for _ in range(_TRIES):
            status, words = self._post(body)
            self._note(status)
            if status < _CLIENT_ERROR and status >= _SUCCESS:
                self._lost_told = lost
                return True
            if _CLIENT_ERROR <= status < _SERVER_ERROR:
                self._step_aside(words)
                return False
            with self._changed:
                if self._changed.wait_for(lambda: self._stopping, timeout=pause):
                    return False
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        return False

    def _post(self, body: bytes) -> tuple[int, str]:
        """Return the answer's status and text, or 0 where there is none."""
        headers: Mapping[str, str] = {"Content-Type": CONTENT_TYPE}
        try:
            self._connection.request("POST", PATH, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return 0, ""

    def _note(self, status: int) -> None:
        """Log that the agent went away or is back: once, not for each message."""
        failing = not _SUCCESS <= status < _SERVER_ERROR
        if failing != self._failing:
            self._failing = failing
            if failing:
                LOG.warning("kvscope: %s does not take reports; up to %d wait", self._endpoint, _MOST_REPORTS)
            else:
                LOG.info("kvscope: %s takes reports again", self._endpoint)

    def _step_aside(self, words: str) -> None:
        """Report nothing more: what listens there is no agent of this version."""
        self.refused = True
        LOG.warning(
            "kvscope: %s refuses reports (%s); the middleware steps aside", self._endpoint, words[:200]
        )
        with self._changed:
            self._queue.clear()
            self._bytes = 0


def _size(report: Arrival | Ending) -> int:
    return len(report.body) if isinstance(report, Arrival) else 0
