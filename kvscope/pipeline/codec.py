"""Batches as bytes, for the disk: MessagePack, or JSON for the few that MessagePack cannot hold."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kvscope.model.request import Status
from kvscope.pipeline.contracts import Batch

_JSON_BEGINS = b"{"  # as MessagePack this is the number 123, and a batch is no number
_STATUSES = frozenset(Status)


class UnreadableError(ValueError):
    """Raised for bytes that are no batch, or a batch with fields that this version does not know."""


def encode(batch: Batch) -> bytes:
    """Return ``batch`` as bytes; values of no kind that JSON knows become their text."""
    try:
        return _ENCODER.encode(batch)
    except (UnicodeEncodeError, OverflowError):
        # lone surrogates and numbers beyond 64 bits: the standard library's JSON writes and reads both
        return json.dumps(msgspec.to_builtins(batch, enc_hook=_plain)).encode()


def decode(data: bytes) -> Batch:
    """Return the batch that ``encode`` wrote; raises ``UnreadableError``."""
    try:
        if data.startswith(_JSON_BEGINS):
            batch = msgspec.convert(json.loads(data), Batch)
        else:
            batch = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise UnreadableError(str(error)) from error
    for part in batch.parts:
        values: Any = part.values
        if isinstance(status := values.get("status"), str) and status in _STATUSES:
            values["status"] = Status(status)
    return batch


def _plain(value: Any) -> Any:
    """Return the plain form of numpy's numbers and arrays and of other collections, else the text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Iterable) else str(value)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER = msgspec.msgpack.Decoder(Batch)
