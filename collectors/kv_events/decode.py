"""ZMQ frames to own types; any bytes give a batch or ``PermanentIngestError``.

vLLM to 0.23 sends events as arrays, from 0.24 on as maps (both executed). SGLang sent arrays and now sends
maps, of the same names, with signed hashes and the salt in a field of its own; its batch ends in
``attn_dp_rank``, at the place of vLLM's ``data_parallel_rank``.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kvscope.errors import PermanentIngestError
from kvscope.model.telemetry import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent

_INT, _HASH = {int}, {int, bytes}  # types as they are: a bool is no int
END_OF_REPLAY = b"\xff" * 8
_SEQUENCE_BYTES = 8

# Places of the fields in an array-encoded event, after its type; later versions only add at the end.
_PLACES = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """One payload; ``skipped`` counts events of unknown types, ``malformed`` those that made no sense."""

    at: float
    replica: str  # "" where the engine does not tell its data-parallel rank
    events: tuple[CacheEvent, ...]
    skipped: int
    malformed: int


def decode_payload(payload: bytes) -> DecodedBatch:
    """Decode one event batch; raises ``PermanentIngestError`` when it is none."""
    try:
        batch = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PermanentIngestError("the payload is not msgpack") from error
    match batch:
        case [int() | float() as at, list() as encoded, *rest] if math.isfinite(at):
            rank = rest[0] if rest else None
        case _:
            raise PermanentIngestError("the payload is not a batch of KV-cache events")
    events: list[CacheEvent] = []
    skipped = malformed = 0
    for one in encoded:
        kind, fields = _fields(one)
        if (build := _BUILDERS.get(kind)) is None:
            skipped += 1
        elif (event := build(fields)) is None:
            malformed += 1
        else:
            events.append(event)
    return DecodedBatch(
        at=float(at),
        replica=str(rank) if _is_int(rank) else "",
        events=tuple(events),
        skipped=skipped,
        malformed=malformed,
    )


def decode_sequence(frame: bytes) -> int:
    """Return a sequence number; raises ``PermanentIngestError`` when the frame is none."""
    if len(frame) != _SEQUENCE_BYTES or frame == END_OF_REPLAY:
        raise PermanentIngestError("the second frame is not a sequence number")
    return int.from_bytes(frame, "big")


def decode_reply(frames: list[bytes]) -> tuple[int, bytes] | None:
    """Return sequence and payload of one replayed batch, or None at the end of the replay.

    To 0.25 vLLM leaves the topic out, from 0.26 on it is there. Raises ``PermanentIngestError``.
    """
    inner = frames[1:] if frames and not frames[0] else frames
    if len(inner) not in (2, 3):
        raise PermanentIngestError(f"a replayed batch has {len(inner)} frames, not 2 or 3")
    if inner[-2] == END_OF_REPLAY:
        return None
    return decode_sequence(inner[-2]), inner[-1]


def _fields(event: Any) -> tuple[str, Mapping[str, Any]]:
    """Return an event's type and its fields by name, whichever its encoding."""
    match event:
        case {"type": str() as kind}:
            return kind, event
        case [str() as kind, *values]:
            return kind, dict(zip(_PLACES.get(kind, ()), values, strict=False))
        case _:
            return "", {}


def _stored(fields: Mapping[str, Any]) -> BlockStored | None:
    hashes, parent = _hashes(fields), fields.get("parent_block_hash")
    tokens, block_size = fields.get("token_ids"), fields.get("block_size")
    if hashes is None or not (parent is None or _is_hash(parent)):
        return None
    if not (isinstance(tokens, list) and set(map(type, tokens)) <= _INT):
        return None
    if not isinstance(block_size, int) or isinstance(block_size, bool) or block_size <= 0:
        return None
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=parent,
        token_ids=tuple(tokens),
        block_size=block_size,
        medium=_text(fields, "medium"),
        lora_name=_text(fields, "lora_name"),
        group_idx=_group(fields),
        extra_keys=_extra_keys(fields.get("extra_keys")) or _salted(_text(fields, "cache_salt"), len(hashes)),
        locality=_text(fields, "locality"),
    )


def _removed(fields: Mapping[str, Any]) -> BlockRemoved | None:
    hashes = _hashes(fields)
    if hashes is None:
        return None
    return BlockRemoved(
        block_hashes=hashes,
        medium=_text(fields, "medium"),
        group_idx=_group(fields),
        locality=_text(fields, "locality"),
    )


def _cleared(_: Mapping[str, Any]) -> AllBlocksCleared:
    return AllBlocksCleared()


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any]], CacheEvent | None]] = {
    "BlockStored": _stored,
    "BlockRemoved": _removed,
    "AllBlocksCleared": _cleared,
}


def _hashes(fields: Mapping[str, Any]) -> tuple[int | bytes, ...] | None:
    hashes = fields.get("block_hashes")
    return tuple(hashes) if isinstance(hashes, list) and set(map(type, hashes)) <= _HASH else None


def _is_hash(value: Any) -> bool:
    return type(value) in _HASH


def _is_int(value: Any) -> bool:
    return type(value) is int  # a bool is none


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None


def _group(fields: Mapping[str, Any]) -> int | None:
    value = fields.get("group_idx")
    return value if _is_int(value) else None


def _extra_keys(value: Any) -> tuple[Any, ...] | None:
    """Return one tuple per block, or None for a block without: hashable throughout."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else None


def _salted(salt: str | None, blocks: int) -> tuple[Any, ...] | None:
    """Return SGLang's ``cache_salt`` as vLLM tells it: the first block's further key."""
    return ((salt,), *(None,) * (blocks - 1)) if salt and blocks else None


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return value if isinstance(value, str | bytes | int | float) or value is None else repr(value)
