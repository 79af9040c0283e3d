"""Variables of a layout: their constraints, compiled once, and the check of what a request gives.

Regular expressions run in Rust's engine (through pydantic), whose time is linear in the text whatever the
pattern is; it knows no look-around and no back-references, and says so when a layout is compiled.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from kvscope.errors import UsageError
from kvscope.prompts.layouts.schema import VariableForm

DEFAULT_MAX_CHARS = 32_768
DEFAULT_MAX_ITEMS = 1_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SHOWN_CHARS = 60

Values = Mapping[str, Any]
Fault = Callable[[Any], str | None]
"""Returns what is wrong with a value, or None."""


class VariableError(UsageError):
    """Raised when what a request gives for its variables cannot be used; ``variable`` is the one at fault."""

    def __init__(self, message: str, variable: str | None = None) -> None:
        super().__init__(message)
        self.variable = variable


@dataclasses.dataclass(frozen=True, slots=True)
class Variables:
    """All variables of a layout."""

    faults: Mapping[str, Fault]
    defaults: Values

    def checked(self, given: Values) -> Values:
        """Return values for all variables; raises ``VariableError`` with the first fault."""
        for name, value in given.items():
            find = self.faults.get(name)
            if find is None:
                known = ", ".join(sorted(self.faults)) or "none"
                raise VariableError(f"unknown variable {_shown(name)}; the layout has: {known}", name)
            fault = find(value)
            if fault is not None:
                raise VariableError(f"variable {name} {fault}", name)
        if len(given) == len(self.faults):
            return given
        values = {**self.defaults, **given}
        if len(values) < len(self.faults):
            missing = sorted(self.faults.keys() - values.keys())
            raise VariableError(f"missing variable: {', '.join(missing)}", missing[0])
        return values


def compile_variables(forms: Mapping[str, VariableForm]) -> Variables:
    """Return the check of these variables; raises ``UsageError`` where a constraint makes no sense."""
    faults: dict[str, Fault] = {}
    defaults: dict[str, Any] = {}
    for name, form in forms.items():
        if not _NAME.fullmatch(name):
            raise UsageError(f"variables: {name!r} is no name; letters, digits and _ only, 64 at most")
        faults[name] = find = _compiled(name, form)
        if form.enum is not None and not form.enum:
            raise UsageError(f"variables.{name}: an empty enum allows nothing")
        for value in form.enum or ():
            if fault := find(value):
                raise UsageError(f"variables.{name}: the enum's value {_shown(value)} {fault}")
        if form.default is not msgspec.UNSET:
            if fault := find(form.default):
                raise UsageError(f"variables.{name}: the default {fault}")
            defaults[name] = form.default
    return Variables(faults, defaults)


def _compiled(name: str, form: VariableForm) -> Fault:
    _check_fit(name, form)
    find = _of_type(name, form)
    if form.enum is None:
        return find
    allowed = tuple(form.enum)
    told = "must be one of " + ", ".join(map(_shown, allowed))

    def of_enum(value: Any) -> str | None:
        # True == 1 in Python, and not in JSON: the type is looked at first
        return find(value) or (None if value in allowed else f"{told}, not {_shown(value)}")

    return of_enum


def _of_type(name: str, form: VariableForm) -> Fault:
    match form.type:
        case "string":
            return _text_fault(name, form)
        case "integer":
            return _number_fault(form, (int,), "an integer")
        case "number":
            return _number_fault(form, (int, float), "a number")
        case "boolean":
            return _boolean_fault
        case "list":
            return _list_fault(form, _text_fault(name, form))


def _check_fit(name: str, form: VariableForm) -> None:
    """Raise where a constraint is for another type: it would silently do nothing."""
    text, number = form.type in ("string", "list"), form.type in ("integer", "number")
    for key, fits in (
        ("regex", text), ("max_chars", text), ("max_items", form.type == "list"),
        ("minimum", number), ("maximum", number), ("enum", form.type != "list"),
    ):  # fmt: skip
        if getattr(form, key) is not None and not fits:
            raise UsageError(f"variables.{name}: {key} does not go with type {form.type}")
    for key in ("max_chars", "max_items"):
        limit = getattr(form, key)
        if limit is not None and limit < 1:
            raise UsageError(f"variables.{name}: {key} must be 1 or more, not {limit}")


def _text_fault(name: str, form: VariableForm) -> Fault:
    most = form.max_chars or DEFAULT_MAX_CHARS
    matches = None if form.regex is None else _matcher(name, form.regex)

    def fault(value: Any) -> str | None:
        if not isinstance(value, str):
            return f"must be a string, not {_type_name(value)}"
        if len(value) > most:
            return f"must have {most} characters at most, not {len(value)}"
        if matches is not None and not matches(value):
            return f"must match {form.regex}, which {_shown(value)} does not"
        return None

    return fault


def _matcher(name: str, pattern: str) -> Callable[[str], bool]:
    """Return whether a whole text matches, by an engine without backtracking."""
    try:
        schema = core_schema.str_schema(pattern=rf"\A(?:{pattern})\z", regex_engine="rust-regex")
        validator = SchemaValidator(schema)
    except SchemaError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1].removeprefix("error: ")
        raise UsageError(
            f"variables.{name}: the regex {pattern!r} cannot be used: {reason}"
            " (no look-around, no back-references)"
        ) from error

    def matches(value: str) -> bool:
        try:
            validator.validate_python(value)
        except ValidationError:
            return False
        return True

    return matches


def _number_fault(form: VariableForm, types: tuple[type[int] | type[float], ...], told: str) -> Fault:
    low, high = form.minimum, form.maximum

    def fault(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, types):
            return f"must be {told}, not {_type_name(value)}"
        if isinstance(value, float) and not math.isfinite(value):
            return "must be a finite number"
        if low is not None and value < low:
            return f"must be {low:g} or more, not {_shown(value)}"
        if high is not None and value > high:
            return f"must be {high:g} or less, not {_shown(value)}"
        return None

    return fault


def _boolean_fault(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"must be true or false, not {_type_name(value)}"


def _list_fault(form: VariableForm, text_fault: Fault) -> Fault:
    most = form.max_items or DEFAULT_MAX_ITEMS

    def fault(value: Any) -> str | None:
        if not isinstance(value, list):
            return f"must be a list of strings, not {_type_name(value)}"
        if len(value) > most:
            return f"must have {most} items at most, not {len(value)}"
        for place, item in enumerate(value):
            if found := text_fault(item):
                return f"[{place}] {found}"
        return None

    return fault


def _type_name(value: Any) -> str:
    names = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", list: "a list"}
    return names.get(type(value), "null" if value is None else "an object")


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
