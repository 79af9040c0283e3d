"""Answers that the gateway itself gives, in the form of vLLM's own errors."""

import asyncio

import aiohttp
import msgspec


class ClientGoneError(Exception):
    """Raised inside a request whose client has closed its connection."""


class BodyTooLargeError(Exception):
    """Raised when a request's body is larger than the limit."""


def error_body(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    """Return an error as vLLM 0.32 words it: message, type, param and code under ``error``."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def error_event(message: str, kind: str, code: int) -> bytes:
    """Return the error as a server-sent event."""
    return b"data: " + error_body(message, kind, code) + b"\n\n"


def upstream_error(error: BaseException, engine: str) -> tuple[str, str, int]:
    """Return message, type and status for a failure to get an answer from ``engine``."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return f"cannot reach the inference server at {engine}", "UpstreamUnreachable", 502
    if isinstance(error, asyncio.TimeoutError):
        return f"the inference server at {engine} sent nothing in time", "UpstreamTimeout", 504
    return (
        f"the inference server at {engine} closed the connection before its answer ended",
        "UpstreamError",
        502,
    )
