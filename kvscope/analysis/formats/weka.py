"""Coding-agent sessions of callanjfox/kv-cache-tester: one JSON document a file, sub-agents nested.

Block ids are local to a file, its sub-agents included. A sub-agent's times count from its own start (seen on
the published set; its file's times are seconds from the session's start).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

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
    scope = f"{place.path} {place.name}" if value.get("hash_id_scope") == "local" else ""
    yield from _requests(_Session(name, place.name, scope, size), value.get("requests"), name, 0.0)


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
