"""Prompts as text: the agent traces of LMCache/lmcache-agent-trace, and plain lines of text."""

from collections.abc import Mapping
from typing import Any

from kvscope.analysis.formats.bodies import SESSION_KEYS, TIME_KEYS
from kvscope.analysis.formats.fields import first_text, unix_seconds
from kvscope.analysis.formats.records import Body, LineError, LoggedRequest, Place


def is_agent_trace(value: Mapping[str, Any]) -> bool:
    """Whether the line holds a whole rendered prompt under ``input``, and its answer under ``output``."""
    return isinstance(value.get("input"), str) and "output" in value


def agent_trace(value: Mapping[str, Any], place: Place) -> LoggedRequest:
    """Read a prompt under ``input``; raises ``LineError``. No special tokens are added to it."""
    if not isinstance(value.get("input"), str):
        raise LineError("`input` must be a text")
    given = next((value[key] for key in TIME_KEYS if value.get(key) is not None), None)
    return LoggedRequest(
        request_id=place.name,
        origin=place.name,
        at=None if given is None else unix_seconds(given),
        prompt=Body(api="completion", body={"prompt": value["input"], "add_special_tokens": False}),
        session=first_text(value, SESSION_KEYS),
    )


def plain_line(line: bytes, name: str) -> LoggedRequest:
    """Read a line that is a prompt; raises ``LineError`` for one that is no UTF-8 text."""
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LineError(f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    return LoggedRequest(
        request_id=name, origin=name, at=None, prompt=Body(api="completion", body={"prompt": text})
    )
