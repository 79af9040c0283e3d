"""Logs of salted block hashes, as ``kvscope export --format hashed`` writes them: no text, same replay."""

from collections.abc import Mapping
from typing import Any

from kvscope.analysis.formats.fields import (
    count,
    first_text,
    hashes,
    optional_block_size,
    optional_count,
    unix_seconds,
)
from kvscope.analysis.formats.records import BlockHashes, LineError, LoggedRequest, Place


def is_hashed(value: Mapping[str, Any]) -> bool:
    """Whether the line is one of kvscope's own."""
    return "block_hashes" in value and "prompt_tokens" in value


def hashed(value: Mapping[str, Any], place: Place) -> LoggedRequest:
    """Read a line that ``hashed_line`` wrote; raises ``LineError``."""
    block_size = optional_block_size(value)
    if block_size is None:
        raise LineError("`block_size` must be a whole number of tokens of at least 1")
    if place.block_size not in {None, block_size}:
        raise LineError(f"the line's blocks hold {block_size} tokens, not {place.block_size}")
    tokens = count(value, "prompt_tokens")
    output = optional_count(value, "output_tokens")
    answer_hashed = value.get("answer_hashed") is True
    computed = tokens + max((output or 0) - 1, 0) if answer_hashed else tokens
    return LoggedRequest(
        request_id=first_text(value, ("request_id",)) or place.name,
        origin=place.name,
        at=unix_seconds(value.get("at")),
        finished_at=unix_seconds(value.get("finished_at")),
        prompt=BlockHashes(
            hashes=hashes(value, "block_hashes", computed // block_size),
            block_size=block_size,
            answer_hashed=answer_hashed,
        ),
        prompt_tokens=tokens,
        cached_tokens=optional_count(value, "cached_tokens"),
        output=output,
        session=first_text(value, ("session",)),
        tenant=first_text(value, ("tenant",)),
        route=first_text(value, ("route",)),
        model=first_text(value, ("model",)),
        lookup=value.get("lookup") is not False,
    )


def hashed_line(logged: LoggedRequest, prompt: BlockHashes) -> dict[str, Any]:
    """Return the line that ``hashed`` reads as ``logged``; what is not known is left out."""
    output = logged.output if isinstance(logged.output, int) or logged.output is None else len(logged.output)
    line = {
        "request_id": logged.request_id,
        "at": logged.at,
        "finished_at": logged.finished_at,
        "block_size": prompt.block_size,
        "prompt_tokens": logged.prompt_tokens,
        "cached_tokens": logged.cached_tokens,
        "output_tokens": output,
        "answer_hashed": prompt.answer_hashed,
        "session": logged.session,
        "tenant": logged.tenant,
        "route": logged.route,
        "model": logged.model,
        "lookup": None if logged.lookup else False,
        "block_hashes": list(prompt.hashes),
    }
    return {key: value for key, value in line.items() if value is not None}
