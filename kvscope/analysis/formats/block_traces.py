"""Published traces of block ids, a line a request: Mooncake's and Bailian's."""

from collections.abc import Mapping
from typing import Any

from kvscope.analysis.formats.fields import (
    block_ids,
    count,
    optional_block_size,
    optional_count,
    seconds,
)
from kvscope.analysis.formats.records import BlockIds, LineError, LoggedRequest, Place

MOONCAKE_BLOCK_SIZE = 512
BAILIAN_BLOCK_SIZE = 16
_MS = 1e3


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
