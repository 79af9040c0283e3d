"""What an answer can be held against without its prompt: JSON, a regular expression, a JSON schema."""

import dataclasses
import importlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from kvscope.errors import UsageError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A named test of one answer."""

    name: str
    holds: Callable[[str], bool]


def valid_json() -> Check:
    """Return the check that an answer is one JSON value."""
    return Check(name="json", holds=lambda text: _parsed(text) is not _NOTHING)


def matches(pattern: str) -> Check:
    """Return the check that ``pattern`` occurs in an answer; raises ``UsageError`` for a wrong pattern."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--regex {pattern!r}: {error}") from error
    return Check(name=f"regex {pattern}", holds=lambda text: compiled.search(text) is not None)


def conforms(schema: Mapping[str, Any], name: str) -> Check:
    """Return the check that an answer is JSON of ``schema``; raises ``UsageError`` for a wrong schema."""
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError as error:
        raise UsageError("a schema is checked by the library jsonschema: pip install jsonschema") from error
    try:
        kind = jsonschema.validators.validator_for(schema)
        kind.check_schema(schema)
    except jsonschema.exceptions.SchemaError as error:
        raise UsageError(f"{name} is no JSON schema: {error.message}") from error
    validator = kind(schema)

    def holds(text: str) -> bool:
        value = _parsed(text)
        return value is not _NOTHING and bool(validator.is_valid(value))

    return Check(name=f"schema {name}", holds=holds)


_NOTHING = object()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING
