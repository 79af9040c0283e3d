"""What happens to headers on their way through, and the ids that every inference request gets."""

import re
import secrets
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

RawHeaders = Iterable[tuple[bytes, bytes]]

# RFC 9110, section 7.6.1, and what this hop does itself: framing, and `Expect` (the server here answers it)
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_REQUEST_ONLY = _HOP_BY_HOP | {b"host", b"expect", b"x-kvscope-route"}
_REQUEST_ID = "x-request-id"
_TRACEPARENT = "traceparent"
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_NO_TRACE = "0" * 32


class Identity(NamedTuple):
    """A request's ids, and the headers that carry those that the client did not send."""

    request_id: str
    trace_id: str | None
    added: list[tuple[str, str]]


def first_values(raw: RawHeaders) -> dict[str, str]:
    """Return each header's first value by its lower-case name."""
    values: dict[str, str] = {}
    for name, value in raw:
        values.setdefault(name.decode("latin-1"), _text(value))
    return values


def upstream_headers(raw: RawHeaders, *, length_known: bool) -> list[tuple[str, str]]:
    """Return the client's headers as they go on; without the length where the client library states it."""
    dropped = _REQUEST_ONLY | _named_by_connection(raw)
    if length_known:
        dropped |= {b"content-length"}
    return [(name.decode("latin-1"), _text(value)) for name, value in raw if name not in dropped]


def client_headers(raw: RawHeaders, *, length_changes: bool = False) -> list[tuple[bytes, bytes]]:
    """Return the server's headers as they go back, without the length where the body may change."""
    lowered = [(name.lower(), value) for name, value in raw]
    dropped = _HOP_BY_HOP | _named_by_connection(lowered)
    if length_changes:
        dropped |= {b"content-length"}
    return [(name, value) for name, value in lowered if name not in dropped]


def identify(headers: Mapping[str, str], body: Mapping[str, Any] | None) -> Identity:
    """Return the request's ids: the client's own where it sent them, else new ones.

    vLLM takes the id from the header, else from the body's ``request_id``; a new header would hide that.
    """
    added: list[tuple[str, str]] = []
    own = headers.get(_REQUEST_ID) or (body or {}).get("request_id")
    if isinstance(own, str) and own:
        request_id = own
    else:
        request_id = uuid.uuid4().hex
        added.append((_REQUEST_ID, request_id))
    parent = headers.get(_TRACEPARENT)
    trace_id: str | None
    if parent is None:
        trace_id = secrets.token_hex(16)
        added.append((_TRACEPARENT, f"00-{trace_id}-{secrets.token_hex(8)}-01"))
    else:
        found = _TRACE.fullmatch(parent.strip())
        trace_id = found[1] if found and found[1] != _NO_TRACE else None
    return Identity(request_id, trace_id, added)


def _named_by_connection(raw: RawHeaders) -> frozenset[bytes]:
    return frozenset(
        word.strip().lower() for name, value in raw if name == b"connection" for word in value.split(b",")
    )


def _text(value: bytes) -> str:
    """Decode a header so that the client library's UTF-8 gives the same bytes again where it can."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
