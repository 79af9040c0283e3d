"""Canonical order of tools and of the keys of their schemas."""

import json
from collections.abc import Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.model.prompt import Risk
from kvscope.prompts.routes import tool_name
from kvscope.prompts.segments import CHAT
from kvscope.prompts.transforms.base import Body, Params, Transform, map_message_texts
from kvscope.prompts.transforms.json_text import sort_json

_KEYWORDS = (
    "type",
    "function",
    "name",
    "title",
    "description",
    "strict",
    "parameters",
    "$ref",
    "enum",
    "const",
    "default",
    "format",
    "items",
    "properties",
    "required",
)
_RANK = {word: rank for rank, word in enumerate(_KEYWORDS)}
_NAME_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"default", "const", "enum", "examples", "example"})
_SETS = frozenset({"required", "enum"})
_FLAGS = frozenset({"texts", "lists"})
_DEEPEST = 64  # a schema nested deeper is left as it is


def _sort_tools(api: str, body: Body, _params: Sequence[Params]) -> Body:
    tools = _function_tools(api, body)
    if tools is None:
        return body
    ordered = sorted(tools, key=lambda tool: (tool_name(tool), json.dumps(tool, sort_keys=True)))
    if all(new is old for new, old in zip(ordered, tools, strict=True)):
        return body
    return {**body, "tools": ordered}


def _canonical_json(api: str, body: Body, params: Sequence[Params]) -> Body:
    if api == CHAT and any(each.get("texts") for each in params):
        # what the engine wrote stays: its tokens are in the cache in just that form
        body = map_message_texts(body, lambda role, text: text if role == "assistant" else sort_json(text))
    tools = _function_tools(api, body)
    if tools is None:
        return body
    ordered = [_canonical(tool) for tool in tools]
    if any(each.get("lists") for each in params):
        ordered = [with_sorted_lists(tool) for tool in ordered]
    return {**body, "tools": ordered} if json.dumps(ordered) != json.dumps(tools) else body


def _check_canonical(params: Params) -> None:
    if params.keys() - _FLAGS or not all(isinstance(value, bool) for value in params.values()):
        raise UsageError("canonical_json takes `texts` and `lists`, true or false, and nothing else")


def _describe_canonical(params: Params) -> str:
    texts = " and of JSON in texts other than the assistant's" if params.get("texts") else ""
    lists = "; so with the lists `required` and `enum`" if params.get("lists") else ""
    return f"Writes the keys of every tool's schema{texts} in one fixed order{lists}."


def with_sorted_lists(value: Any, *, names: bool = False) -> Any:
    """Return a schema with the texts under ``required`` and ``enum`` sorted: as sets they stay the same.

    ``names``: the keys are a user's own, so that none of them is JSON Schema's word.
    """
    if isinstance(value, list):
        return [with_sorted_lists(item, names=names) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: sorted(item)
        if not names and key in _SETS and isinstance(item, list) and all(isinstance(one, str) for one in item)
        else item
        if not names and key in _DATA
        else with_sorted_lists(item, names=not names and key in _NAME_MAPS)
        for key, item in value.items()
    }


def written_canonically(value: Any) -> str:
    """Return JSON with sorted keys, to compare by."""
    return json.dumps(value, sort_keys=True, default=str)


def _function_tools(api: str, body: Body) -> list[Any] | None:
    """Return the tools where all are functions with a name, else None: nothing is changed then."""
    tools = body.get("tools")
    if api != CHAT or not isinstance(tools, list) or not tools or _too_deep(tools, _DEEPEST):
        return None
    return None if any(tool_name(tool) is None for tool in tools) else tools


def _too_deep(value: Any, left: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_too_deep(item, left - 1) for item in items)


def _canonical(value: Any, *, names: bool = False) -> Any:
    """Order the keys of a schema: JSON Schema's words by a fixed rank, all others by the alphabet.

    ``names``: the keys are a user's names (as under ``properties``) or plain data: only the alphabet counts.
    """
    if isinstance(value, list):
        return [_canonical(item, names=names) for item in value]
    if not isinstance(value, dict):
        return value
    last = len(_RANK)
    keys = sorted(value) if names else sorted(value, key=lambda key: (_RANK.get(key, last), key))
    return {key: _canonical(value[key], names=_holds_names(key, names=names)) for key in keys}


def _holds_names(key: str, *, names: bool) -> bool:
    """Tell whether what stands under ``key`` has names for keys; below a name a schema begins again."""
    return not names and (key in _NAME_MAPS or key in _DATA)


SORT_TOOLS = Transform(
    kind="sort_tools",
    risk=Risk.SAFE,
    describe=lambda _: "Sends the tools sorted by function name.",
    apply=_sort_tools,
)
CANONICAL_JSON = Transform(
    kind="canonical_json",
    risk=Risk.SAFE,
    describe=_describe_canonical,
    apply=_canonical_json,
    check=_check_canonical,
)
