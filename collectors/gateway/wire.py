"""HTTP/1.1 messages as bytes: headers keep the case, order and bytes that they came with."""

from collections.abc import Iterable
from enum import Enum

from collectors.gateway.headers import RawHeaders

HEAD_BYTES = 64 * 2**10
"""The longest head of a message that is read, in bytes."""
LAST_CHUNK = b"0\r\n\r\n"


class Framing(Enum):
    """How the end of a message's body is told (RFC 9112, section 6)."""

    LENGTH = "length"  # by its Content-Length
    CHUNKED = "chunked"
    CLOSE = "close"  # by the end of the connection
    NONE = "none"  # there is no body


def request_head(method: bytes, target: bytes, headers: RawHeaders) -> bytes:
    """Return the head of a request, with its blank line."""
    return b"%s %s HTTP/1.1\r\n%s\r\n" % (method, target, _rows(headers))


def answer_head(status: int, reason: bytes, headers: RawHeaders) -> bytes:
    """Return the head of an answer, with its blank line."""
    return b"HTTP/1.1 %d %s\r\n%s\r\n" % (status, reason, _rows(headers))


def chunk(data: bytes) -> bytes:
    """Return ``data`` as one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def framing_of(headers: Iterable[tuple[bytes, bytes]], *, otherwise: Framing) -> Framing:
    """Return how a message with these headers ends; ``otherwise`` where they do not say."""
    found = otherwise
    for name, value in headers:
        lower = name.lower()
        if lower == b"transfer-encoding" and value.rstrip().lower().endswith(b"chunked"):
            return Framing.CHUNKED
        if lower == b"content-length":
            found = Framing.LENGTH
    return found


def _rows(headers: RawHeaders) -> bytes:
    return b"".join([b"%s: %s\r\n" % row for row in headers])
