"""Values of a decoded line, checked: times, counts, ids."""

import dataclasses
from array import array
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from kvscope.analysis.formats.records import LineError

_LATEST_SECONDS = 1e11  # the year 5138: what is above is told in a smaller unit
_UNITS_A_SECOND = (1.0, 1e3, 1e6, 1e9)


def unix_seconds(value: Any) -> float | None:
    """Return a time as Unix seconds: epoch seconds, ms, µs or ns by size, or a written date.

    Dates are ISO 8601, with slashes, of RFC 5322 (mail and HTTP) or of web servers' logs; UTC where they name
    no zone. None where a time cannot be understood.
    """
    try:
        seconds = float(value)
    except (TypeError, OverflowError):
        return None
    except ValueError:
        return _date(value)
    return next((seconds / unit for unit in _UNITS_A_SECOND if abs(seconds / unit) < _LATEST_SECONDS), None)


def _date(text: str) -> float | None:
    for read in (datetime.fromisoformat, _slashed, _of_web_log, parsedate_to_datetime):
        try:
            moment = read(text.strip())
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None


def _slashed(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("/", "-"))


def _of_web_log(text: str) -> datetime:
    return datetime.strptime(text.strip("[]"), "%d/%b/%Y:%H:%M:%S %z")


def first_text(value: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    """Return the first non-empty text under one of ``keys``."""
    return next((value[key] for key in keys if isinstance(value.get(key), str) and value[key]), None)


def count(value: Mapping[str, Any], key: str) -> int:
    """Return a number of tokens; raises ``LineError``."""
    given = value.get(key)
    if type(given) is not int or given < 0:
        raise LineError(f"`{key}` must be a whole number of tokens, not {given!r:.40}")
    return given


def optional_count(value: Mapping[str, Any], key: str) -> int | None:
    """Return a number of tokens, None where there is none; raises ``LineError``."""
    return None if value.get(key) is None else count(value, key)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a server counted; None where it did not say."""

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


def usage_of(value: Mapping[str, Any]) -> Usage:
    """Read OpenAI's or Anthropic's counts; raises ``LineError``.

    Anthropic's ``input_tokens`` leave out what was read from the cache or written to it.
    """
    if "input_tokens" not in value:
        details = value.get("prompt_tokens_details")
        return Usage(
            prompt_tokens=optional_count(value, "prompt_tokens"),
            cached_tokens=optional_count(details if isinstance(details, dict) else value, "cached_tokens"),
            output_tokens=optional_count(value, "completion_tokens"),
        )
    details = value.get("input_tokens_details")
    if isinstance(details, dict):  # OpenAI's newer names: cached ones are among them
        read, beside = optional_count(details, "cached_tokens"), 0
    else:
        read = optional_count(value, "cache_read_input_tokens")
        beside = (read or 0) + (optional_count(value, "cache_creation_input_tokens") or 0)
    return Usage(
        prompt_tokens=count(value, "input_tokens") + beside,
        cached_tokens=read,
        output_tokens=optional_count(value, "output_tokens"),
    )


def optional_block_size(value: Mapping[str, Any]) -> int | None:
    """Return a ``block_size``, None where there is none; raises ``LineError``."""
    size = value.get("block_size")
    if size is not None and (type(size) is not int or size < 1):
        raise LineError("`block_size` must be a whole number of tokens of at least 1")
    return size


def seconds(value: Mapping[str, Any], key: str, unit: float) -> float:
    """Return a trace's own time in seconds; ``unit`` is how many of the trace's units make one."""
    given = value.get(key)
    if not isinstance(given, int | float) or isinstance(given, bool) or given != given:  # noqa: PLR0124 - NaN
        raise LineError(f"`{key}` must be a number, not {given!r:.40}")
    return given / unit


def hashes(value: Mapping[str, Any], key: str, blocks: int) -> "array[int]":
    """Return ``blocks`` salted hashes; raises ``LineError``."""
    given = value.get(key)
    try:
        found = array("q", given if isinstance(given, list) else ())
    except (TypeError, OverflowError) as error:
        raise LineError(f"`{key}` must hold whole numbers from 0 to 2**63 - 1") from error
    if len(found) != blocks or (found and min(found) < 0):
        raise LineError(f"`{key}` must be a list of {blocks:,} hashes of full blocks, one a block")
    return found


def block_ids(value: Mapping[str, Any], key: str, tokens: int, block_size: int) -> "array[int]":
    """Return the ids of a prompt's blocks; raises ``LineError`` where they have gaps or do not fit.

    The last partial block may have an id or not; some traces count one token less than the prompt has.
    """
    given = value.get(key)
    if not isinstance(given, list):
        raise LineError(f"`{key}` must be a list of block ids")
    try:
        ids = array("Q", given)
    except (TypeError, OverflowError) as error:
        raise LineError(f"`{key}` has a gap: every block needs an id from 0 to 2**64 - 1") from error
    if not max(tokens - 1, 0) // block_size <= len(ids) <= -(-tokens // block_size):
        raise LineError(
            f"{len(ids)} block ids do not fit {tokens:,} tokens in blocks of {block_size}; if the trace has "
            "another block size, name it with --block-size"
        )
    return ids
