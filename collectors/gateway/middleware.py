"""The gateway's eyes inside the engine: ``vllm serve --middleware collectors.gateway.middleware.Observe``.

It sees what the gateway sees, without a hop, and changes nothing but one thing: a request without ids gets
the ids that the gateway would give it, so that all sources speak of one request. It knows ASGI alone, nothing
of vLLM. Whatever fails in here is logged once, and requests go on without it.
"""

import contextlib
import functools
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator

from collectors.gateway.asgi import Message, Receive, Scope, Send
from collectors.gateway.call import json_object, now, session_of, word
from collectors.gateway.dialects import PATHS
from collectors.gateway.headers import OBSERVED, UsedIds, first_values, identify, replaced
from collectors.gateway.observation import Observation
from collectors.gateway.observe import Observer, observer_of
from collectors.gateway.reporting import DEFAULT_ENDPOINT, LOG, Reporter
from collectors.gateway.reports import Arrival, Ending, Seen
from kvscope.prompts.routes import ROUTE_HEADER
from kvscope.prompts.segments import sequences_asked

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_BODY_BYTES = 16 * 2**20
_ANSWER_BYTES = 16 * 2**20
_SESSION_HEADER, _TENANT_HEADER = "x-session-id", "x-tenant-id"
_OFF = ("off", "0", "false", "no")
_QUIET_SECONDS = 60.0


class Observe:
    """ASGI middleware: reports inference requests to the agent; other traffic passes untouched.

    Environment of the engine: ``KVSCOPE_MIDDLEWARE`` (``off`` turns it off), ``KVSCOPE_MIDDLEWARE_ENDPOINT``
    (address of the agent's ``collectors.middleware``, ``http://127.0.0.1:8802``), and ``KVSCOPE_ENGINE_URL``
    (base URL by which the agent knows this server; needed where the agent has several).
    """

    def __init__(self, app: App, *, reporter: Reporter | None = None) -> None:
        self._app = app
        self._reporter = reporter or _shared_reporter()
        self._engine = os.environ.get("KVSCOPE_ENGINE_URL", "").strip().rstrip("/") or None
        self._ids = UsedIds()
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request by the application inside."""
        if self._reporter is None or self._reporter.refused or not _is_seen(scope):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(self._reporter, self._ids, self._engine, in_flight=self._inside)
        self._inside += 1
        try:
            receive = await exchange.begin(scope, receive)
            await self._app(scope, receive, exchange.watched(send))
        except BaseException:
            exchange.broken = True
            raise
        finally:
            self._inside -= 1
            exchange.end()


def _is_seen(scope: Scope) -> bool:
    """Whether this is an inference request that no gateway has observed before."""
    return (
        scope["type"] == "http"
        and scope.get("method") == "POST"
        and scope.get("path") in PATHS
        and all(name != OBSERVED for name, _ in scope["headers"])
    )


class _Exchange:
    """One request and its answer; what fails in here is left out of the report."""

    def __init__(self, reporter: Reporter, ids: UsedIds, engine: str | None, *, in_flight: int) -> None:
        self._reporter = reporter
        self._ids = ids
        self._engine = engine
        self._in_flight = in_flight
        self._seen: Seen | None = None
        self._asked_id: str | None = None
        self._choices = 1
        self._read_at = 0.0
        self._overhead_seconds = 0.0
        self._status: int | None = None
        self._observer: Observer | None = None
        self._whole = False
        self._gone = False
        self.broken = False

    async def begin(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body, note the request, and return what gives the application the same messages."""
        messages, body = await _first_messages(receive)
        begun = now()
        if body is not None:
            with _guarded():
                self._note_request(scope, body)
        self._overhead_seconds = now() - begun
        return self._replaying(messages, receive)

    def watched(self, send: Send) -> Send:
        """Return ``send`` with the answer observed on its way."""

        async def watching(message: Message) -> None:
            with _guarded():
                self._note_answer(message)
            await send(message)

        return watching

    def end(self) -> None:
        """Report how the answer ended."""
        if self._seen is None:
            return
        with _guarded():
            self._reporter.offer(
                Ending(
                    seen=self._seen,
                    choices=self._choices,
                    http_status=self._status,
                    whole=self._whole and not self.broken,
                    aborted=self._gone,
                    overhead_seconds=self._overhead_seconds,
                    observation=self._observation(),
                )
            )

    def _note_request(self, scope: Scope, body: bytes) -> None:
        headers = first_values(scope["headers"])
        decoded = json_object(body)
        ids = identify(scope["headers"], decoded, self._ids)
        hidden = {name for name, _ in ids.added}
        scope["headers"] = [*(pair for pair in scope["headers"] if pair[0] not in hidden), *ids.added]
        self._asked_id = ids.asked_id
        self._read_at = now()
        self._choices = sequences_asked(PATHS[scope["path"]], decoded or {})
        self._seen = Seen(
            key=secrets.token_hex(8),
            api=PATHS[scope["path"]],
            request_id=ids.request_id,
            trace_id=ids.trace_id,
            engine=self._engine,
            arrived_at=time.time(),
            in_flight=self._in_flight,
            session=session_of(headers, decoded, _SESSION_HEADER),
            tenant=word(headers.get(_TENANT_HEADER)),
            route=headers.get(ROUTE_HEADER),
        )
        self._reporter.offer(Arrival(seen=self._seen, body=body))

    def _note_answer(self, message: Message) -> None:
        if self._seen is None:
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = list(message.get("headers") or ())
            if self._asked_id is not None:
                message["headers"] = headers = replaced(headers, self._asked_id, self._seen.request_id)
            self._observer = observer_of(
                self._seen.api,
                first_values(headers),
                single=self._choices == 1,
                stripper=None,
                limit=_ANSWER_BYTES,
            )
        elif message["type"] == "http.response.body":
            if self._observer is not None and (data := message.get("body", b"")):
                self._observer.feed(data, now())
            if not message.get("more_body", False):
                self._whole = True
                if self._observer is not None:
                    self._observer.end()

    def _observation(self) -> Observation:
        seen = Observation() if self._observer is None else self._observer.observed()
        if seen.first_content_at is not None:
            seen.first_content_at -= self._read_at
        return seen

    def _replaying(self, messages: list[Message], receive: Receive) -> Receive:
        waiting = iter(messages)

        async def replay() -> Message:
            message = next(waiting, None)
            if message is None:
                message = await receive()
            if message["type"] == "http.disconnect" and not self._whole:
                self._gone = True
            return message

        return replay


async def _first_messages(receive: Receive) -> tuple[list[Message], bytes | None]:
    """Return the messages of the body, and the body itself; None where it is too large or broke off."""
    messages: list[Message] = []
    parts: list[bytes] = []
    left = _BODY_BYTES
    while left >= 0:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            return messages, None
        parts.append(message.get("body", b""))
        left -= len(parts[-1])
        if not message.get("more_body", False):
            return messages, b"".join(parts) if left >= 0 else None
    return messages, None


@functools.cache
def _shared_reporter() -> Reporter | None:
    """Return the process's one reporter, or None where the environment turns it off or is wrong."""
    if os.environ.get("KVSCOPE_MIDDLEWARE", "on").strip().lower() in _OFF:
        LOG.info("kvscope: the middleware is off (KVSCOPE_MIDDLEWARE)")
        return None
    endpoint = os.environ.get("KVSCOPE_MIDDLEWARE_ENDPOINT", "").strip() or DEFAULT_ENDPOINT
    try:
        reporter = Reporter(endpoint)
    except ValueError as error:
        LOG.warning("kvscope: KVSCOPE_MIDDLEWARE_ENDPOINT: %s; the middleware steps aside", error)
        return None
    LOG.info("kvscope: requests are reported to %s", endpoint)
    return reporter


class _Guard:
    """Swallows and logs what fails in here, by its kind once a minute: its text may hold a prompt."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Go on whatever is raised inside."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the engine's requests go on whatever fails beside them
            kind, at = type(error).__name__, time.monotonic()
            if at - self._told_at.get(kind, -_QUIET_SECONDS) >= _QUIET_SECONDS:
                self._told_at[kind] = at
                LOG.warning("kvscope: observing failed with %s; requests go on without it", kind)


_guarded = _Guard()
