"""Recorded KV-cache events of an engine: what its publisher sent, kept as JSON lines."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvscope.analysis.formats.sources import BrokenStreamError, opened
from kvscope.errors import UsageError
from kvscope.model.telemetry import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent, CacheEventBatch

_FRAMES = 3  # topic, sequence number, payload
_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
_REMOVED = ("block_hashes", "medium")


def read_event_log(path: Path) -> list[CacheEventBatch]:
    """Return the batches of a file, packed or not, in its order.

    A line is a batch, ``{"sequence": 7, "at": 1796000000.5, "events": [{"type": "BlockStored", ...}]}`` with
    vLLM's own field names, or the three frames of its message in base64, ``{"frames": [...]}``. Raises
    ``UsageError`` naming the first line that is neither.
    """
    batches = []
    with opened(path) as lines:
        try:
            for number, line in lines:
                if line.strip():
                    batches.append(_batch(line, f"{path}:{number}"))
        except BrokenStreamError as error:
            raise UsageError(f"{path}: {error}") from error
    if not batches:
        raise UsageError(f"{path} holds no batches of KV events")
    return batches


def _batch(line: bytes, place: str) -> CacheEventBatch:
    try:
        given = json.loads(line)
        if "frames" in given:
            given = _unpacked([base64.b64decode(frame, validate=True) for frame in given["frames"]])
        return CacheEventBatch(
            engine="",
            replica=str(given.get("replica", 0)),
            sequence=int(given["sequence"]),
            at=float(given["at"]),
            events=tuple(map(_event, given["events"])),
        )
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        binascii.Error,
        msgspec.MsgspecError,
    ) as error:
        raise UsageError(
            f"{place} is no batch of KV events ({error!r}): a line is "
            '{"sequence", "at", "events"} or {"frames": [topic, sequence, payload in base64]}'
        ) from error


def _unpacked(frames: Sequence[bytes]) -> dict[str, Any]:
    _, sequence, payload = frames[-_FRAMES:]
    at, events, *rank = msgspec.msgpack.decode(payload)
    return {
        "sequence": int.from_bytes(sequence, "big", signed=True),
        "at": at,
        "events": events,
        "replica": rank[0] if rank and rank[0] is not None else 0,
    }


def _event(given: Any) -> CacheEvent:
    """Read an event; up to vLLM 0.23 they are arrays, in the order of their fields."""
    if isinstance(given, list):
        fields = _STORED if given[0] == "BlockStored" else _REMOVED
        given = {"type": given[0]} | dict(zip(fields, given[1:], strict=False))
    kind = given["type"]
    if kind == "BlockStored":
        return _stored(given)
    if kind == "BlockRemoved":
        return BlockRemoved(block_hashes=tuple(given["block_hashes"]), **_where(given))
    if kind == "AllBlocksCleared":
        return AllBlocksCleared()
    raise ValueError(f"no event of type {kind!r}")


def _stored(given: Mapping[str, Any]) -> BlockStored:
    keys = given.get("extra_keys")
    return BlockStored(
        block_hashes=tuple(given["block_hashes"]),
        parent_block_hash=given.get("parent_block_hash"),
        token_ids=tuple(given["token_ids"]),
        block_size=int(given["block_size"]),
        lora_name=given.get("lora_name"),
        extra_keys=None if keys is None else tuple(None if each is None else _frozen(each) for each in keys),
        **_where(given),
    )


def _where(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: given.get(key) for key in ("medium", "group_idx", "locality")}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
