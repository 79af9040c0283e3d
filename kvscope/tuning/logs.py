"""Reads request logs: JSON lines of OpenAI-style bodies, plain or wrapped, also gzipped.

A line is a chat body (``messages``), a completion body (``prompt``), or an object that holds one under
``body`` or ``request`` beside its time, id, session and the like. A line that is none of these is counted
with its number and the reason, and the rest is read.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvscope.analysis.formats.bodies import ID_KEYS, SESSION_KEYS, TIME_KEYS, api_of, body_of
from kvscope.analysis.formats.fields import first_text, unix_seconds
from kvscope.analysis.formats.sources import BrokenStreamError, opened
from kvscope.errors import UsageError
from kvscope.model.prompt import Prompt
from kvscope.prompts.routes import RouteMiner

_TENANT_KEYS = ("tenant", "tenant_id")


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
    miner = RouteMiner()
    for path in paths:
        named = f"{path.name}: " if len(paths) > 1 else ""
        for number, found in _prompts(path, miner):
            if isinstance(found, Prompt):
                prompts.append(found)
            else:
                skipped.append((number, named + found))
    if not prompts:
        reason = f"; line {skipped[0][0]}: {skipped[0][1]}" if skipped else "; it is empty"
        names = ", ".join(str(path) for path in paths)
        raise UsageError(f"no request in {names}: each line must be a chat or completion body{reason}")
    prompts.sort(key=lambda prompt: prompt.arrived_at)
    return ReadResult(prompts=tuple(prompts), skipped=tuple(skipped))


def _prompts(path: Path, miner: RouteMiner) -> Iterator[tuple[int, Prompt | str]]:
    """Yield each line's number with its prompt, or why there is none."""
    number = 0
    last_at = 0.0
    with opened(path) as lines:
        try:
            for number, line in lines:
                found = _prompt(line, f"{path.name}:{number}", last_at, miner)
                if isinstance(found, Prompt):
                    last_at = found.arrived_at
                if found is not None:
                    yield number, found
        except BrokenStreamError as error:
            yield number + 1, str(error)


def _prompt(line: bytes, name: str, last_at: float, miner: RouteMiner) -> Prompt | str | None:
    """Return the prompt of one line, or why there is none; None for a blank line."""
    if not line.strip():
        return None
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return f"not JSON: {error}"
    if not isinstance(value, dict):
        return f"a {type(value).__name__} and no JSON object"
    body = body_of(value)
    api = api_of(body)
    if api is None:
        return "no request body: neither `messages` (a list of objects) nor `prompt`"
    at = _time(value, last_at)
    if at is None:
        return "a time that is neither a number nor ISO 8601"
    model = body.get("model")
    return Prompt(
        request_id=first_text(value, ID_KEYS) or name,
        api=api,
        route=miner.route(api, body, first_text(value, ("route",))),
        arrived_at=at,
        body=body,
        sent_body=body,
        engine=model if isinstance(model, str) else "",
        session=first_text(value, SESSION_KEYS),
        tenant=first_text(value, _TENANT_KEYS),
    )


def _time(value: Mapping[str, Any], last_at: float) -> float | None:
    """Return the line's time as Unix seconds, None where it cannot be understood."""
    return unix_seconds(next((value[key] for key in TIME_KEYS if value.get(key) is not None), last_at))
