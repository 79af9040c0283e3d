"""OTLP over HTTP: ``POST /v1/traces`` as a plain ASGI application."""

import http
import math
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from collectors.otlp.ingest import Ingest
from kvscope.errors import IngestError, PermanentIngestError, RetryableIngestError

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_PROTOBUF = "application/x-protobuf"
_JSON = "application/json"
_LONGEST_LENGTH = 18  # digits; Python refuses to read thousands of them
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class _RefusedError(PermanentIngestError):
    """Raised for a request that fails before its body is looked at."""

    def __init__(self, status: http.HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _GoneError(Exception):
    """Raised when the sender left before its body was whole."""


class HttpApp:
    """Answers export requests of both forms, gzip or not, after the commit."""

    def __init__(self, ingest: Ingest, *, max_body_bytes: int, max_decompressed_bytes: int) -> None:
        self._ingest = ingest
        self._max_body_bytes = max_body_bytes
        self._max_decompressed_bytes = max_decompressed_bytes

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        form = headers.get("content-type", _PROTOBUF).partition(";")[0].strip().lower()
        try:
            status, message, extra = await self._answer(scope, headers, form, receive)
        except _GoneError:
            return
        await _respond(send, status, message, _JSON if form == _JSON else _PROTOBUF, extra)

    async def _answer(
        self, scope: dict[str, Any], headers: dict[str, str], form: str, receive: Receive
    ) -> tuple[int, Message, list[tuple[bytes, bytes]]]:
        response = ExportTraceServiceResponse()
        try:
            _check(scope, form)
            body = self._decompress(await self._read(headers, receive), headers.get("content-encoding", ""))
        except PermanentIngestError as error:
            self._ingest.refused()
            return _failure(error)
        try:
            take = self._ingest.json if form == _JSON else self._ingest.protobuf
            outcome = await take(body)
        except IngestError as error:
            return _failure(error)
        if outcome.rejected:
            response.partial_success.rejected_spans = outcome.rejected
            response.partial_success.error_message = outcome.message
        return http.HTTPStatus.OK, response, []

    async def _read(self, headers: dict[str, str], receive: Receive) -> bytes:
        length = headers.get("content-length", "0")
        if length.isdecimal() and (len(length) > _LONGEST_LENGTH or int(length) > self._max_body_bytes):
            raise self._too_large("body", self._max_body_bytes)
        body = bytearray()
        more = True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise _GoneError
            body += event.get("body", b"")
            more = event.get("more_body", False)
            if len(body) > self._max_body_bytes:
                raise self._too_large("body", self._max_body_bytes)
        return bytes(body)

    def _decompress(self, body: bytes, encoding: str) -> bytes:
        encoding = encoding.strip().lower()
        if encoding in ("", "identity"):
            return body
        if encoding not in _WINDOW_BITS:
            raise _RefusedError(
                http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"content encoding {encoding[:40]!r} is not known; use gzip, deflate or none",
            )
        inflate = zlib.decompressobj(_WINDOW_BITS[encoding])
        try:
            plain = inflate.decompress(body, self._max_decompressed_bytes)
        except zlib.error as error:
            raise PermanentIngestError(f"the body is not {encoding}") from error
        if inflate.unconsumed_tail:
            raise self._too_large("decompressed body", self._max_decompressed_bytes)
        if not inflate.eof:
            raise PermanentIngestError(f"the {encoding} body is cut off")
        return plain

    @staticmethod
    def _too_large(what: str, limit: int) -> _RefusedError:
        return _RefusedError(
            http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the {what} is larger than {limit} bytes; send smaller batches",
        )


def _check(scope: dict[str, Any], form: str) -> None:
    if scope["path"] != "/v1/traces":
        raise _RefusedError(http.HTTPStatus.NOT_FOUND, "only /v1/traces is served here")
    if scope["method"] != "POST":
        raise _RefusedError(http.HTTPStatus.METHOD_NOT_ALLOWED, "send spans with POST")
    if form not in (_PROTOBUF, _JSON):
        raise _RefusedError(
            http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"content type {form[:40]!r} is not known; use {_PROTOBUF} or {_JSON}",
        )


def _failure(error: IngestError) -> tuple[int, Message, list[tuple[bytes, bytes]]]:
    if isinstance(error, RetryableIngestError):
        seconds = max(1, math.ceil(error.retry_after_seconds))
        status = status_pb2.Status(code=code_pb2.UNAVAILABLE, message=str(error))
        return http.HTTPStatus.SERVICE_UNAVAILABLE, status, [(b"retry-after", str(seconds).encode())]
    code = error.status if isinstance(error, _RefusedError) else http.HTTPStatus.BAD_REQUEST
    extra = [(b"allow", b"POST")] if code == http.HTTPStatus.METHOD_NOT_ALLOWED else []
    return code, status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message=str(error)), extra


async def _respond(
    send: Send, status: int, message: Message, form: str, extra: list[tuple[bytes, bytes]]
) -> None:
    """Answer in the form that was sent, as OTLP asks."""
    if form == _JSON:
        body = json_format.MessageToJson(message, indent=None).encode()
    else:
        body = message.SerializeToString()
    headers = [(b"content-type", form.encode()), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
