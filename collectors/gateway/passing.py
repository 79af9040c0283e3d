"""Passes any request on and its answer back, both as they come."""

import asyncio
from collections.abc import Iterable

import aiohttp

from collectors.gateway.errors import ClientGoneError, error_body, upstream_error
from collectors.gateway.headers import client_headers, upstream_headers
from collectors.gateway.incoming import Receive, Scope, Send, Upload, WhileConnected
from collectors.gateway.upstream import Upstreams

UPSTREAM_FAILURES = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


async def pass_through(scope: Scope, receive: Receive, send: Send, upstreams: Upstreams) -> None:
    """Pass one exchange through, unread. An answer that breaks off breaks off for the client too."""
    raw = scope["headers"]
    upload = Upload(receive) if _has_body(raw) else None
    engine = upstreams.choose(scope["path"])
    started = False
    try:
        async with WhileConnected(receive, upload):
            headers = upstream_headers(raw, length_known=upload is None)
            answer = await upstreams.send(scope["method"], target_url(scope, engine), headers, upload)
            try:
                started = True
                await start_answer(send, answer.status, client_headers(answer.raw_headers, engine=engine))
                async for data, _ in answer.content.iter_chunks():
                    if data:
                        await send_part(send, data)
                await send_part(send, b"", last=True)
            finally:
                answer.close()
    except ClientGoneError:
        return
    except UPSTREAM_FAILURES as error:
        if not started:
            await send_error(send, *upstream_error(error, engine))


def target_url(scope: Scope, engine: str) -> str:
    """Return the request's path and query, as sent, at ``engine``."""
    path = scope.get("raw_path") or scope["path"].encode()
    query = scope.get("query_string") or b""
    target = path.decode("latin-1") + (f"?{query.decode('latin-1')}" if query else "")
    return f"{engine}{target}" if target.startswith("/") else f"{engine}/{target}"


async def start_answer(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Send the status line and the headers."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def send_part(send: Send, data: bytes, *, last: bool = False) -> None:
    """Send a part of the answer's body; waits while the client reads slowly."""
    await send({"type": "http.response.body", "body": data, "more_body": not last})


async def send_error(
    send: Send,
    message: str,
    kind: str,
    code: int,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    param: str | None = None,
) -> None:
    """Answer with an error in vLLM's form."""
    body = error_body(message, kind, code, param)
    framing = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await start_answer(send, code, [*framing, *headers])
    await send_part(send, body, last=True)


def _has_body(raw: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in raw
    )
