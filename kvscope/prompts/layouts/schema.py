"""The form of a layout file, and reading one: what it says, not yet whether it can be rendered."""

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml
from typing_extensions import override

from kvscope.errors import UsageError

DEFAULT_VARIANT = "default"
CONVERSATION = "messages"
"""Role, and name where none is given, of the place where the request's own messages stand."""
_LARGEST_FILE_BYTES = 2**20
_DEFAULT_SEPARATOR = "\n\n"


class Scope(StrEnum):
    """How stable a segment is; the earlier ones stay the same for more requests."""

    GLOBAL = "global"
    PROJECT = "project"
    SESSION = "session"
    DYNAMIC = "dynamic"


class _Form(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What every part of a file is: unknown keys are errors."""


class VariableForm(_Form, frozen=True, kw_only=True):
    """What a variable may hold. A variable without ``default`` must be given."""

    type: Literal["string", "integer", "number", "boolean", "list"] = "string"
    enum: list[Any] | None = None
    regex: str | None = None  # the whole value must match
    max_chars: int | None = None  # of a string, or of each text of a list
    max_items: int | None = None  # of a list
    minimum: float | None = None
    maximum: float | None = None
    default: Any = msgspec.UNSET


class SegmentForm(_Form, frozen=True, kw_only=True):
    """A piece of the prompt. ``pinned`` ones keep their place, ``after`` names what must stand before."""

    name: str = ""
    role: Literal["system", "developer", "user", "assistant", "messages"]
    scope: Scope = Scope.DYNAMIC
    text: str | None = None
    after: list[str] = []
    pinned: bool = False


class VariantForm(_Form, frozen=True, kw_only=True):
    """How another arrangement differs from the default one."""

    order: list[str] | Literal["stable_first"] | None = None
    texts: dict[str, str] = {}  # segment -> its text in this variant
    without: list[str] = []


class LayoutForm(_Form, frozen=True, kw_only=True):
    """A whole file; ``layout`` is its name, the file's own where none is given."""

    layout: str = ""
    description: str = ""
    separator: str = _DEFAULT_SEPARATOR  # between neighbours that become one message
    variables: dict[str, VariableForm] = {}
    tools: list[dict[str, Any]] = []
    segments: list[SegmentForm]
    variants: dict[str, VariantForm] = {}


def read_layout(path: Path) -> LayoutForm:
    """Return what the file at ``path`` says; raises ``UsageError`` with the file and the first fault."""
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise UsageError(f"{path}: larger than {_LARGEST_FILE_BYTES} bytes, so not a prompt layout")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    try:
        return parse_layout(text, name=path.stem)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def parse_layout(text: str, *, name: str) -> LayoutForm:
    """Return what ``text`` says, ``name`` where it does not name itself; raises ``UsageError``."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise UsageError("a prompt layout is a mapping with `segments`")
    try:
        form = msgspec.convert(value, LayoutForm)
    except msgspec.ValidationError as error:
        raise UsageError(_told(str(error))) from error
    return msgspec.structs.replace(form, layout=form.layout or name)


def _told(message: str) -> str:
    """Say where the fault is first, as in other messages of kvscope."""
    fault, _, where = message.partition(" - at `$")
    return f"{where.strip('`.') or 'the file'}: {fault[:1].lower()}{fault[1:]}"


class _Loader(yaml.SafeLoader):
    """YAML as Python reads it safely, without aliases that grow and without keys given twice."""

    @override
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed in a prompt layout")
        return super().compose_node(parent, index)

    @override
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.YAMLError(f"key {key.value!r} is given twice (line {key.start_mark.line + 1})")
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)
