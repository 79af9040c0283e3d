"""What happens to headers on their way through, and the ids that every inference request gets."""

import hashlib
import random
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

RawHeaders = Iterable[tuple[bytes, bytes]]
Headers = list[tuple[bytes, bytes]]

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
_REQUEST_ONLY = _HOP_BY_HOP | {b"host", b"expect", b"x-kvscope-route", b"x-kvscope-deadline-ms"}
_FRAMING = b"content-length"
_REQUEST_ID = b"x-request-id"
_TRACEPARENT = b"traceparent"
OBSERVED = b"x-kvscope-observed"
"""Tells the middleware inside an engine that the gateway has seen a request."""
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_NOT_IN_HEADERS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_NO_TRACE = "0" * 32
_RANDOM = random.Random()  # noqa: S311 - ids tell requests apart and keep no secret


_REMEMBERED_IDS = 50_000
_SHORT = 64  # characters; longer ids are remembered by their hash


class Identity(NamedTuple):
    """A request's ids, and the headers that carry those that the client did not send.

    ``asked_id`` is the client's own where it was used before and ``request_id`` replaces it.
    """

    request_id: str
    trace_id: str | None
    added: Headers
    asked_id: str | None = None


class UsedIds:
    """Keeps requests apart whose clients give them one id: retries, a proxy's constant id.

    The engine's span and plugin name a request by this id alone, so two requests with one id could not be
    told apart. Remembers the ``most`` ids used last.
    """

    def __init__(self, most: int = _REMEMBERED_IDS) -> None:
        self._most = most
        self._times: OrderedDict[str, int] = OrderedDict()

    def unused(self, wanted: str) -> str:
        """Return ``wanted`` where no request had it lately, else ``<wanted>~2``, ``~3`` and so on."""
        times = self._note(wanted)
        if times == 1:
            return wanted
        if not (wanted.isascii() and wanted.isprintable()):  # a body may name what no header can hold
            return f"{_RANDOM.getrandbits(128):032x}"
        while _key(own := f"{wanted}~{times}") in self._times:
            times = self._note(wanted)
        self._note(own)
        return own

    def _note(self, used: str) -> int:
        key = _key(used)
        times = self._times.pop(key, 0) + 1
        self._times[key] = times
        if len(self._times) > self._most:
            self._times.popitem(last=False)
        return times


def _key(request_id: str) -> str:
    if len(request_id) <= _SHORT:
        return request_id
    return hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def first_values(raw: RawHeaders) -> dict[str, str]:
    """Return each header's first value by its lower-case name."""
    values: dict[str, str] = {}
    for name, value in raw:
        values.setdefault(name.decode("latin-1").lower(), text(value))
    return values


def onward(raw: RawHeaders, *, host: bytes, without: frozenset[bytes] = frozenset()) -> Headers:
    """Return the client's headers as they go on to ``host``; ``without`` names in lower case."""
    dropped = _REQUEST_ONLY | _named_by_connection(raw) | without
    return [(b"Host", host), *[row for row in raw if row[0].lower() not in dropped]]


def sized(headers: Headers, length: int) -> Headers:
    """Return headers that tell a body's length, where it stood if it did."""
    value = str(length).encode()
    told = [(name, value if name.lower() == b"content-length" else old) for name, old in headers]
    known = any(name.lower() == b"content-length" for name, _ in headers)
    return told if known else [*told, (b"Content-Length", value)]


def uncompressed(headers: Headers) -> Headers:
    """Return headers that ask for an answer that can be read: what was asked for must be taken out again."""
    kept = [row for row in headers if row[0].lower() != b"accept-encoding"]
    return [*kept, (b"accept-encoding", b"identity")]


def client_headers(raw: RawHeaders, *, engine: str, length_changes: bool = False) -> Headers:
    """Return the server's headers as they go back, without the length where the body may change.

    A redirect to ``engine`` itself leads through the gateway again: the client may not reach the engine.
    """
    dropped = _HOP_BY_HOP | _named_by_connection(raw)
    if length_changes:
        dropped |= {b"content-length"}
    kept: Headers = []
    for name, value in raw:
        lower = name.lower()
        if lower not in dropped:
            kept.append((name, _place(value, engine) if lower == b"location" else value))
    return kept


def _place(value: bytes, engine: str) -> bytes:
    own = f"{engine}/".encode()
    return value[len(own) - 1 :] if value.startswith(own) else value


def identify(raw: RawHeaders, body: Mapping[str, Any] | None, used: UsedIds) -> Identity:
    """Return the request's ids: the client's own where it sent them, else new ones.

    vLLM takes the id from the header, else from the body's ``request_id``; a new header would hide that, so
    there is one only where the client's id was used before.
    """
    added: Headers = []
    asked_id: str | None = None
    told = {name.lower(): value for name, value in reversed(list(raw))}
    # servers read the bytes of a header as Latin-1, and so does the engine's span
    own = told.get(_REQUEST_ID, b"").decode("latin-1") or (body or {}).get("request_id")
    if isinstance(own, str) and own:
        request_id = used.unused(own)
        if request_id != own:
            asked_id = own
            added.append((_REQUEST_ID, id_bytes(request_id)))
    else:
        request_id = f"{_RANDOM.getrandbits(128):032x}"
        added.append((_REQUEST_ID, request_id.encode()))
    parent = told.get(_TRACEPARENT)
    trace_id: str | None
    if parent is None:
        drawn = f"{_RANDOM.getrandbits(192):048x}"
        trace_id = drawn[:32]
        added.append((_TRACEPARENT, f"00-{trace_id}-{drawn[32:]}-01".encode()))
    else:
        found = _TRACE.fullmatch(parent.decode("latin-1").strip())
        trace_id = found[1] if found and found[1] != _NO_TRACE else None
    return Identity(request_id, trace_id, added, asked_id)


def replaced(headers: Headers, was: str, own: str) -> Headers:
    """Return an answer's headers with the client's id where the server says back the one that it was sent.

    vLLM does so with ``--enable-request-id-headers``.
    """
    name, sent = _REQUEST_ID, id_bytes(own)
    return [
        (key, id_bytes(was) if value == sent and key.lower() == name else value) for key, value in headers
    ]


def id_bytes(request_id: str) -> bytes:
    """Return a request's id as a header says it: one that came in a header with the bytes it came with."""
    try:
        value = request_id.encode("latin-1")
    except UnicodeEncodeError:
        return header_value(request_id)
    return value if _NOT_IN_HEADERS.search(value) is None else header_value(request_id)


def header_value(text: str) -> bytes:
    """Return text as a header can hold it; a name from a body or a person may hold anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).encode("utf-8", "replace")


def _named_by_connection(raw: RawHeaders) -> frozenset[bytes]:
    """Return the headers that ``Connection`` claims for this hop.

    Never the body's length: without it the server would take the body for further requests.
    """
    named = frozenset(
        word.strip().lower()
        for name, value in raw
        if name.lower() == b"connection"
        for word in value.split(b",")
    )
    return named - {_FRAMING}


def text(value: bytes) -> str:
    """Decode a header: as UTF-8 where it is, else as Latin-1, which takes all bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
