"""Faults of an exchange, and the answers that the gateway itself gives, in the form of vLLM's own errors."""

import msgspec


class BadRequestError(Exception):
    """Raised for bytes of a client that are no request; ``status`` is what it is answered."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class BodyTooLargeError(Exception):
    """Raised when a request's body is larger than the limit."""


class UpstreamError(Exception):
    """Raised where the inference server's answer does not come, or not to its end.

    ``code`` is the status that the client gets where nothing was sent to it yet.
    """

    code = 502
    kind = "UpstreamError"
    words = "the inference server at {engine} closed the connection before its answer ended"

    def __init__(self, engine: str) -> None:
        super().__init__(self.words.format(engine=engine))


class UnreachableUpstreamError(UpstreamError):
    """Raised where no connection to the server can be had."""

    kind = "UpstreamUnreachable"
    words = "cannot reach the inference server at {engine}"


class SilentUpstreamError(UpstreamError):
    """Raised where the server sends nothing in time."""

    code = 504
    kind = "UpstreamTimeout"
    words = "the inference server at {engine} sent nothing in time"


class NotHttpUpstreamError(UpstreamError):
    """Raised where the server's answer is not HTTP."""

    words = "the inference server at {engine} sent what is not an HTTP answer"


def error_body(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    """Return an error as vLLM 0.32 words it: message, type, param and code under ``error``."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def error_event(message: str, kind: str, code: int) -> bytes:
    """Return the error as a server-sent event."""
    return b"data: " + error_body(message, kind, code) + b"\n\n"
