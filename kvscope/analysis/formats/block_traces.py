"""Published traces of block ids, a line a request: Mooncake's and Bailian's."""

from collections.abc import Mapping, Sequence
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
from kvscope.analysis.formats.records import BlockHashes, BlockIds, LineError, LoggedRequest, Place

MOONCAKE_BLOCK_SIZE = 512
BAILIAN_BLOCK_SIZE = 16
_MS = 1e3
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class _Line(msgspec.Struct, gc=False):
    """The fields of a line whose ids are still text."""

    timestamp: float
    input_length: _Count
    hash_ids: msgspec.Raw
    output_length: _Count | None = None
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] | None = None
    chat_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Line)


def is_mooncake(value: Mapping[str, Any]) -> bool:
    """Whether the line is of the form of kvcache-ai/Mooncake's FAST'25 traces, which other tools copy."""
    return "hash_ids" in value and "input_length" in value and "chat_id" not in value


def mooncake(value: Mapping[str, Any], place: Place) -> LoggedRequest:
    """Read ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``; raises ``LineError``.

    ``block_size`` in the line, which kvscope itself writes, tells another size than the usual one.
    """
    told = optional_block_size(value)
    if told is not None and place.block_size not in {None, told}:
        raise LineError(f"the line's blocks hold {told} tokens, not {place.block_size}")
    return _request(value, place, place.block_size or told or MOONCAKE_BLOCK_SIZE, unit=_MS)


def mooncake_line(logged: LoggedRequest, begins_at: float) -> dict[str, Any]:
    """Return the line of a request whose prompt is block ids or hashes, its time counted from ``begins_at``.

    Raises ``LineError`` for another prompt. A request that tells no time comes at the beginning.
    """
    prompt, tokens = logged.prompt, logged.prompt_tokens
    if isinstance(prompt, BlockHashes):
        tokens = tokens or 0
        ids = prompt.hashes[: tokens // prompt.block_size]  # those of its answer are not the prompt's
    elif isinstance(prompt, BlockIds):
        ids = prompt.ids
        tokens = len(ids) * prompt.block_size if tokens is None else tokens
    else:
        raise LineError("a prompt that is not hashed")
    output = logged.output if isinstance(logged.output, int | None) else len(logged.output)
    line: dict[str, Any] = {
        "timestamp": _milliseconds(0.0 if logged.at is None else logged.at - begins_at),
        "input_length": tokens,
        "output_length": output or 0,
        "hash_ids": list(ids),
    }
    return line if prompt.block_size == MOONCAKE_BLOCK_SIZE else line | {"block_size": prompt.block_size}


def _milliseconds(at: float) -> int | float:
    """Return milliseconds, a whole number where they are."""
    exact = round(at * _MS, 3)
    return int(exact) if exact.is_integer() else exact


def is_bailian(value: Mapping[str, Any]) -> bool:
    """Whether the line is of alibaba-edu/qwen-bailian-usagetraces-anon's form."""
    return "hash_ids" in value and "input_length" in value and "chat_id" in value


def bailian(value: Mapping[str, Any], place: Place) -> LoggedRequest:
    """Read a turn of a chat: as Mooncake's, but its ``timestamp`` is in seconds; raises ``LineError``."""
    return _request(value, place, place.block_size or BAILIAN_BLOCK_SIZE, unit=1.0)


def _request(value: Mapping[str, Any], place: Place, block_size: int, unit: float) -> LoggedRequest:
    tokens = count(value, "input_length")
    chat = value.get("chat_id")
    return LoggedRequest(
        request_id=place.name if chat is None else f"chat-{chat}",
        origin=place.name,
        at=seconds(value, "timestamp", unit) if "timestamp" in value else None,
        prompt=BlockIds(ids=block_ids(value, "hash_ids", tokens, block_size), block_size=block_size),
        prompt_tokens=tokens,
        output=optional_count(value, "output_length"),
    )


def columns(lines: Sequence[bytes], origin: str, block_size: int | None) -> BlockColumns | None:
    """Return lines of one of the two forms as columns; None where they are mixed or one needs a closer look.

    ``block_size`` is the size that was named for the file.
    """
    try:
        rows = [_decoder.decode(line) for line in lines]
    except (msgspec.MsgspecError, ValueError):
        return None
    chats = {row.chat_id is not msgspec.UNSET for row in rows}
    sizes = {row.block_size for row in rows}
    if len(chats) != 1 or len(sizes) != 1:
        return None
    told = sizes.pop()
    if chats.pop():
        size, unit = block_size or BAILIAN_BLOCK_SIZE, 1.0
    elif told is not None and block_size not in {None, told}:
        return None
    else:
        size, unit = block_size or told or MOONCAKE_BLOCK_SIZE, _MS
    tokens = np.array([row.input_length for row in rows], dtype=np.int64)
    found = id_columns([row.hash_ids for row in rows], tokens, size)
    if found is None:
        return None
    ids, lengths = found
    at = np.array([row.timestamp for row in rows], dtype=np.float64) / unit
    return BlockColumns(origin=origin, block_size=size, ids=ids, lengths=lengths, prompt_tokens=tokens, at=at)
