"""Passes any request on and its answer back, both as they come."""

import http
from collections.abc import AsyncIterator

from collectors.gateway.errors import UpstreamError, error_body
from collectors.gateway.headers import Headers, client_headers, onward
from collectors.gateway.incoming import Exchange, Source, has_body
from collectors.gateway.outgoing import Answer
from collectors.gateway.replica import Replica
from collectors.gateway.routing import Routable
from collectors.gateway.upstream import Upstreams
from collectors.gateway.wire import LAST_CHUNK, Framing, chunk, framing_of, request_head

_REPEATABLE = (b"GET", b"HEAD", b"OPTIONS")


class _Passage:
    """One request that passes unread, and the way of its answer."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._engine = ""
        self._framing = framing_of(exchange.headers, otherwise=Framing.NONE)
        self._upload = has_body(exchange)

    @property
    def begun(self) -> bool:
        """Whether an answer has begun."""
        return self._exchange.started

    async def send(self, replica: Replica) -> None:
        """Send it to a server."""
        exchange = self._exchange
        self._engine = replica.url
        headers = onward(exchange.headers, host=replica.host)
        if self._framing is Framing.CHUNKED:
            headers.append((b"Transfer-Encoding", b"chunked"))
        head = request_head(exchange.method, replica.target(exchange.target), headers)
        await replica.exchange(
            head, self._parts() if self._upload else b"", self, head_only=exchange.method == b"HEAD"
        )

    def head(self, answer: Answer, source: Source) -> None:
        """Begin the client's answer."""
        self._exchange.source = source
        headers = client_headers(answer.headers, engine=self._engine)
        self._exchange.start(answer.status, answer.reason, headers, answer.framing)

    def part(self, data: bytes, at: float) -> None:
        """Pass a part on."""
        del at
        self._exchange.write(data)

    def flush(self) -> None:
        """Send what was passed on."""
        self._exchange.flush()

    def end(self) -> None:
        """End the client's answer."""
        self._exchange.finish()

    async def _parts(self) -> AsyncIterator[bytes]:
        chunked = self._framing is Framing.CHUNKED
        async for part in self._exchange.parts():
            yield chunk(part) if chunked else part
        if chunked:
            yield LAST_CHUNK


async def pass_through(exchange: Exchange, upstreams: Upstreams) -> None:
    """Pass one exchange through, unread. An answer that breaks off breaks off for the client too."""
    replicas = upstreams.choose(Routable(key=exchange.path))
    again = exchange.method in _REPEATABLE and not has_body(exchange)
    try:
        await upstreams.deliver(_Passage(exchange), replicas, again=again, chosen=_nothing)
    except UpstreamError as error:
        if not exchange.started:
            send_error(exchange, error)


def send_error(exchange: Exchange, error: UpstreamError, headers: Headers | None = None) -> None:
    """Answer that no answer comes from the server."""
    send_refusal(exchange, str(error), error.kind, error.code, headers)


def send_refusal(
    exchange: Exchange,
    message: str,
    kind: str,
    code: int,
    headers: Headers | None = None,
    *,
    param: str | None = None,
) -> None:
    """Answer with an error in vLLM's form; ``param`` is the key of the request's body that is at fault."""
    body = error_body(message, kind, code, param)
    framing = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    reason = http.HTTPStatus(code).phrase.encode()
    exchange.start(code, reason, [*framing, *(headers or [])], Framing.LENGTH)
    if exchange.method != b"HEAD":
        exchange.write(body)
    exchange.finish()


def _nothing(replica: Replica) -> None:
    """Nothing is noted of requests that pass unread."""
    del replica
