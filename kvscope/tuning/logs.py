"""Reads request logs: JSON lines of OpenAI-style bodies, plain or wrapped, also gzipped.

A line is a chat body (``messages``), a completion body (``prompt``), or an object that holds one under
``body`` or ``request`` beside its time, id, session and the like. A line that is none of these is counted
with its number and the reason, and the rest is read.
"""

import dataclasses
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kvscope.errors import UsageError
from kvscope.model.prompt import Prompt
from kvscope.prompts.routes import route_of

_GZIP_MAGIC = b"\x1f\x8b"
_BODY_KEYS = ("body", "request")
_TIME_KEYS = ("sent_at", "arrived_at", "timestamp", "time", "t_start", "created_at", "ts")
_ID_KEYS = ("request_id", "x_request_id", "id")
_SESSION_KEYS = ("session", "session_id")
_TENANT_KEYS = ("tenant", "tenant_id")
_LATEST_SECONDS = 1e11  # the year 5138: what is above is told in a smaller unit
_UNITS_A_SECOND = (1.0, 1e3, 1e6, 1e9)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """Prompts in order of arrival, and the lines that were left out as (line number, reason)."""

    prompts: tuple[Prompt, ...]
    skipped: tuple[tuple[int, str], ...]


def read_prompts(paths: Sequence[Path]) -> ReadResult:
    """Return the prompts of all files.

    A line that tells no time has that of the line before it, or 0: it keeps its place. Different models
    never share a cache, so the model's name stands for the engine. Raises ``UsageError`` for a file that
    cannot be read, and where no file holds a request.
    """
    prompts: list[Prompt] = []
    skipped: list[tuple[int, str]] = []
    for path in paths:
        named = f"{path.name}: " if len(paths) > 1 else ""
        last_at = 0.0
        for number, line in enumerate(_lines(path), start=1):
            found = (
                _prompt(line, f"{path.name}:{number}", last_at) if isinstance(line, bytes) else line.reason
            )
            if isinstance(found, str):
                skipped.append((number, named + found))
            elif found is not None:
                prompts.append(found)
                last_at = found.arrived_at
    if not prompts:
        reason = f"; line {skipped[0][0]}: {skipped[0][1]}" if skipped else "; it is empty"
        names = ", ".join(str(path) for path in paths)
        raise UsageError(f"no request in {names}: each line must be a chat or completion body{reason}")
    prompts.sort(key=lambda prompt: prompt.arrived_at)
    return ReadResult(prompts=tuple(prompts), skipped=tuple(skipped))


@dataclasses.dataclass(frozen=True, slots=True)
class _Broken:
    """Stands for what could not be read behind the last good line."""

    reason: str


def _lines(path: Path) -> Iterator[bytes | _Broken]:
    """Yield the lines of a file; the end of a broken gzip stream comes as ``_Broken``."""
    try:
        with path.open("rb") as file:
            zipped = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
            source: io.BufferedIOBase = gzip.GzipFile(fileobj=file) if zipped else file
            try:
                yield from source
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                yield _Broken(f"the gzip stream breaks off here: {error}")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def _prompt(line: bytes, name: str, last_at: float) -> Prompt | str | None:
    """Return the prompt of one line, or why there is none; None for a blank line."""
    if not line.strip():
        return None
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return f"not JSON: {error}"
    if not isinstance(value, dict):
        return f"a {type(value).__name__} and no JSON object"
    body = next((value[key] for key in _BODY_KEYS if isinstance(value.get(key), dict)), value)
    api = _api(body)
    if api is None:
        return "no request body: neither `messages` (a list of objects) nor `prompt`"
    at = _time(value, last_at)
    if at is None:
        return "a time that is neither a number nor ISO 8601"
    model = body.get("model")
    return Prompt(
        request_id=_text(value, _ID_KEYS) or name,
        api=api,
        route=route_of(api, body, _text(value, ("route",))),
        arrived_at=at,
        body=body,
        sent_body=body,
        engine=model if isinstance(model, str) else "",
        session=_text(value, _SESSION_KEYS),
        tenant=_text(value, _TENANT_KEYS),
    )


def _api(body: Mapping[str, Any]) -> str | None:
    messages, prompt = body.get("messages"), body.get("prompt")
    if isinstance(messages, list) and messages and all(isinstance(each, dict) for each in messages):
        return "chat"
    return "completion" if isinstance(prompt, str | list) and prompt else None


def _text(value: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((value[key] for key in keys if isinstance(value.get(key), str) and value[key]), None)


def _time(value: Mapping[str, Any], last_at: float) -> float | None:
    """Return the line's time as Unix seconds, None where it cannot be understood."""
    given: Any = next((value[key] for key in _TIME_KEYS if value.get(key) is not None), last_at)
    try:
        seconds = float(given)
    except (TypeError, OverflowError):
        return None
    except ValueError:
        return _iso_time(given)
    return next((seconds / unit for unit in _UNITS_A_SECOND if abs(seconds / unit) < _LATEST_SECONDS), None)


def _iso_time(text: str) -> float | None:
    """Read ISO 8601; a time without a zone is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
