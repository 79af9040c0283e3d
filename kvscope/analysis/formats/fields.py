"""Values of a decoded line, checked: times, counts, ids."""

from array import array
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kvscope.analysis.formats.records import LineError

_LATEST_SECONDS = 1e11  # the year 5138: what is above is told in a smaller unit
_UNITS_A_SECOND = (1.0, 1e3, 1e6, 1e9)


def unix_seconds(value: Any) -> float | None:
    """Return a time as Unix seconds: epoch seconds, ms, µs or ns by size, or ISO 8601 (UTC where no zone).

    None where it cannot be understood.
    """
    try:
        seconds = float(value)
    except (TypeError, OverflowError):
        return None
    except ValueError:
        return _iso_time(value)
    return next((seconds / unit for unit in _UNITS_A_SECOND if abs(seconds / unit) < _LATEST_SECONDS), None)


def _iso_time(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


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


def seconds(value: Mapping[str, Any], key: str, unit: float) -> float:
    """Return a trace's own time in seconds; ``unit`` is how many of the trace's units make one."""
    given = value.get(key)
    if not isinstance(given, int | float) or isinstance(given, bool) or given != given:  # noqa: PLR0124 - NaN
        raise LineError(f"`{key}` must be a number, not {given!r:.40}")
    return given / unit


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
