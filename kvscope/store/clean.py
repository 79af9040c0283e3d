"""Makes values fit for both databases, the same way on each, so that a row reads back as it was written.

What no text column holds (NUL, lone surrogates) becomes U+FFFD; a number that is not finite says nothing.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

_INT32 = 2**31
TEXT_CHARS = 2_000
"""Longest text of other columns: ids and names, no prose."""
KEY_CHARS = 256
"""Longest text of an indexed column: PostgreSQL refuses index rows over 2,704 bytes, and two share one."""


class UnfitError(ValueError):
    """Raised when a value can be stored in neither database."""


def text(value: object, limit: int = TEXT_CHARS) -> str:
    """Return ``value`` as storable text; one over ``limit`` keeps its start and a hash of the whole."""
    if value.__class__ is str and is_plain_text(value):
        return value
    if not isinstance(value, str):
        raise UnfitError(f"not a text: {type(value).__name__}")
    value = str(value)  # an enum's member becomes its plain value
    if not value.isascii() or "\x00" in value:
        value = value.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if len(value) > limit:
        digest = hashlib.blake2b(value.encode(), digest_size=16).hexdigest()
        value = f"{value[: limit - 33]}~{digest}"
    return value


def key(value: object) -> str:
    """Return ``value`` as text for an indexed column."""
    return value if value.__class__ is str and is_plain_text(value) else text(value, KEY_CHARS)


def is_plain_text(value: str) -> bool:
    """Whether ``value`` fits any text column as it is."""
    return len(value) <= KEY_CHARS and value.isascii() and "\x00" not in value


def is_plain_count(value: int) -> bool:
    """Whether ``value`` is a count."""
    return 0 <= value < _INT32


def _plain_number(value: object) -> object:
    """Return the Python number of one of numpy's, which both drivers would take for something else."""
    item = getattr(value, "item", None)
    return item() if callable(item) else value


def count(value: object) -> int:
    """Return ``value`` as a whole number from 0 to 2^31 - 1, so that no sum of them overflows."""
    if type(value) is not int:
        value = _plain_number(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnfitError("not a count")
    if not 0 <= value < _INT32:
        raise UnfitError("not a count, or too large for one")
    return value


def real(value: object) -> float | None:
    """Return ``value`` as a float, or None where it is not finite."""
    if type(value) is not float:
        value = _plain_number(value)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise UnfitError(f"not a number: {type(value).__name__}")
        try:
            value = float(value)
        except OverflowError as error:
            raise UnfitError("a number out of range") from error
    return value if math.isfinite(value) else None


def finite(value: object) -> float:
    """Return ``value`` as a float that is finite."""
    if value.__class__ is float and math.isfinite(value):
        return value
    number = real(value)
    if number is None:
        raise UnfitError("not a finite number")
    return number


def boolean(value: object) -> bool:
    """Return ``value``, which must be true or false."""
    value = _plain_number(value)
    if not isinstance(value, bool):
        raise UnfitError(f"not true or false: {type(value).__name__}")
    return value


def counts(value: object) -> dict[str, int]:
    """Return a mapping of names to whole numbers, in the order of the names."""
    if not isinstance(value, Mapping):
        raise UnfitError(f"not a mapping: {type(value).__name__}")
    return {key(name): count(value[name]) for name in sorted(value)}


def json_text(value: Any) -> str:
    """Return ``value`` as JSON in canonical key order; numbers that are not finite become null."""
    return _storable_json(value, _SORTING_ENCODER)


def json_as_given(value: Any) -> str:
    """Return ``value`` as JSON in the order of its keys, for what is never compared: a third quicker."""
    return _storable_json(value, _ENCODER)


def _storable_json(value: Any, encoder: msgspec.json.Encoder) -> str:
    try:
        encoded = encoder.encode(value).decode()
        if "\\u0000" not in encoded:
            return encoded
    except (TypeError, UnicodeEncodeError):
        pass  # a key that is no text, or a text that is not storable: the slow way makes them so
    except RecursionError as error:
        raise UnfitError("nested too deep for JSON") from error
    try:
        return encoder.encode(_json_value(value)).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UnfitError(f"not storable as JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Return the plain form of what the encoder does not know, such as numpy's numbers and arrays."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_SORTING_ENCODER = msgspec.json.Encoder(enc_hook=_plain, order="sorted")


def _json_value(value: Any) -> Any:
    """Return ``value`` with every text in it made storable, none of them shortened."""
    if isinstance(value, str):
        return text(value, len(value) + 1)
    if isinstance(value, Mapping):
        return {_json_value(str(name)): _json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_json_value(item) for item in value]
    return value
