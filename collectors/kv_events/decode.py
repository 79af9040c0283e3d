"""ZMQ frames to own types; any bytes give a batch or ``PermanentIngestError``."""

import dataclasses
import math
from collections.abc import Iterable

import msgspec

from collectors.kv_events.shapes import SHAPES, ArrayBatch, MapBatch, Removed, Shape, lenient
from kvscope.errors import PermanentIngestError
from kvscope.model.telemetry import BlockRemoved, CacheEvent

END_OF_REPLAY = b"\xff" * 8
_SEQUENCE_BYTES = 8
_DECODERS = (msgspec.msgpack.Decoder(MapBatch), msgspec.msgpack.Decoder(ArrayBatch))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """One payload; ``skipped`` counts events of unknown types, ``malformed`` those that made no sense.

    ``taken`` counts the others as they were sent: removals that followed each other are one of ``events``.
    """

    at: float
    replica: str  # "" where the engine does not tell its data-parallel rank
    events: tuple[CacheEvent, ...]
    taken: int
    skipped: int = 0
    malformed: int = 0


def decode_payload(payload: bytes) -> DecodedBatch:
    """Decode one event batch; raises ``PermanentIngestError`` when it is none."""
    for decoder in _DECODERS:
        try:
            batch = decoder.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if math.isfinite(batch.at):
            return DecodedBatch(
                at=batch.at,
                replica="" if batch.rank is None else str(batch.rank),
                events=tuple(_merged(batch.events)),
                taken=len(batch.events),
            )
    return _decode_leniently(payload)


def _decode_leniently(payload: bytes) -> DecodedBatch:
    """Decode a batch of which not every event is as expected, event by event."""
    try:
        batch = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PermanentIngestError("the payload is not msgpack") from error
    match batch:
        case [int() | float() as at, list() as encoded, *rest] if math.isfinite(at):
            rank = rest[0] if rest else None
        case _:
            raise PermanentIngestError("the payload is not a batch of KV-cache events")
    read = [lenient(one) for one in encoded]
    shapes = [shape for _, shape in read if shape is not None]
    malformed = sum(shape is None and kind in SHAPES for kind, shape in read)
    return DecodedBatch(
        at=float(at),
        replica=str(rank) if type(rank) is int else "",  # a bool is none
        events=tuple(_merged(shapes)),
        taken=len(shapes),
        skipped=len(read) - len(shapes) - malformed,
        malformed=malformed,
    )


def _merged(shapes: Iterable[Shape]) -> list[CacheEvent]:
    """Return the events, with removals that follow each other in one."""
    events: list[CacheEvent] = []
    first: Removed | None = None
    hashes: list[int | bytes] = []
    for shape in shapes:
        if isinstance(shape, Removed):
            if first is None:
                first = shape
            elif (
                shape.medium != first.medium
                or shape.group_idx != first.group_idx
                or shape.locality != first.locality
                or shape.ownership != first.ownership
            ):
                events.append(_removed(first, hashes))
                first, hashes = shape, []
            hashes += shape.block_hashes
            continue
        if first is not None:
            events.append(_removed(first, hashes))
            first, hashes = None, []
        events.append(shape.event())
    if first is not None:
        events.append(_removed(first, hashes))
    return events


def _removed(first: Removed, hashes: list[int | bytes]) -> BlockRemoved:
    return BlockRemoved(
        block_hashes=tuple(hashes),
        medium=first.medium,
        group_idx=first.group_idx,
        locality=first.locality,
        ownership=first.ownership,
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
