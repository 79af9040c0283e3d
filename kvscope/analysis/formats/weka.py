"""Coding-agent sessions of callanjfox/kv-cache-tester: one JSON document a file, sub-agents nested.

Block ids are local to a file, its sub-agents included. A sub-agent's times count from its own start (seen on
the published set; its file's times are seconds from the session's start).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from kvscope.analysis.formats.columns import BlockColumns, id_columns
from kvscope.analysis.formats.fields import (
    block_ids,
    count,
    optional_block_size,
    optional_count,
    seconds,
)
from kvscope.analysis.formats.records import BlockIds, LineError, LoggedRequest, Place


def is_weka(value: Mapping[str, Any]) -> bool:
    """Whether the document is a session."""
    return "hash_id_scope" in value and isinstance(value.get("requests"), list)


@dataclasses.dataclass(frozen=True, slots=True)
class _Session:
    name: str
    origin: str
    scope: str
    block_size: int


def weka(value: Mapping[str, Any], place: Place) -> Iterator[LoggedRequest | LineError]:
    """Yield the session's requests, those of sub-agents among them; a bad one comes as its error.

    Raises ``LineError`` for a document without a block size, or with another than the place's.
    """
    size = optional_block_size(value)
    if size is None:
        raise LineError("`block_size` must be a whole number of tokens of at least 1")
    if place.block_size not in {None, size}:
        raise LineError(f"the session's blocks hold {size} tokens, not {place.block_size}")
    name = str(value.get("id") or place.name)
    scope = _scope(value.get("hash_id_scope"), place)
    yield from _requests(_Session(name, place.name, scope, size), value.get("requests"), name, 0.0)


def _scope(told: Any, place: Place) -> str:
    return f"{place.path} {place.name}" if told == "local" else ""


def _requests(
    session: _Session, given: Any, within: str, start: float
) -> Iterator[LoggedRequest | LineError]:
    if not isinstance(given, list):
        yield LineError(f"{within}: `requests` must be a list")
        return
    for at, each in enumerate(given):
        name = f"{within}/{at}"
        if not isinstance(each, Mapping):
            yield LineError(f"{name}: a request must be an object")
            continue
        try:
            if each.get("type") == "subagent":
                begins = start + seconds(each, "t", 1.0)
                yield from _requests(session, each.get("requests"), name, begins)
            else:
                yield _request(session, each, name, start)
        except LineError as error:
            yield LineError(f"{name}: {error}")


def _request(session: _Session, value: Mapping[str, Any], name: str, start: float) -> LoggedRequest:
    tokens = count(value, "in")
    ids = block_ids(value, "hash_ids", tokens, session.block_size)
    return LoggedRequest(
        request_id=name,
        origin=session.origin,
        at=start + seconds(value, "t", 1.0),
        prompt=BlockIds(ids=ids, block_size=session.block_size, scope=session.scope),
        prompt_tokens=tokens,
        output=optional_count(value, "out"),
        session=session.name,
    )


_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class _Entry(msgspec.Struct, gc=False, rename={"tokens": "in", "output": "out"}):
    """A request or a sub-agent; the ids are still text."""

    t: float
    type: str | None = None
    tokens: _Count | None = None
    output: _Count | None = None
    hash_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    requests: "list[_Entry] | None" = None


class _Document(msgspec.Struct):
    hash_id_scope: Any
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
    requests: list[_Entry]


_decoder = msgspec.json.Decoder(_Document)


def columns(document: bytes, place: Place) -> BlockColumns | None:
    """Return a whole session's requests as columns; None where anything in it needs a closer look."""
    try:
        session = _decoder.decode(document)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if place.block_size not in {None, session.block_size}:
        return None
    found = list(_flat(session.requests, 0.0))
    lists = [entry.hash_ids for _, entry in found if entry.hash_ids is not msgspec.UNSET]
    tokens = [entry.tokens for _, entry in found if entry.tokens is not None]
    if not found or not len(lists) == len(tokens) == len(found):
        return None
    prompt_tokens = np.array(tokens, dtype=np.int64)
    ids = id_columns(lists, prompt_tokens, session.block_size)
    if ids is None:
        return None
    return BlockColumns(
        origin=place.name.rpartition(":")[0],
        block_size=session.block_size,
        ids=ids[0],
        lengths=ids[1],
        prompt_tokens=prompt_tokens,
        at=np.array([at for at, _ in found], dtype=np.float64),
        scope=_scope(session.hash_id_scope, place),
    )


def _flat(entries: list[_Entry], start: float) -> Iterator[tuple[float, _Entry]]:
    """Yield all requests with their times; a sub-agent without a list of them stands for itself."""
    for entry in entries:
        if entry.type == "subagent" and entry.requests is not None:
            yield from _flat(entry.requests, start + entry.t)
        else:
            yield start + entry.t, entry
