"""Moves lines whose values change from request to request behind everything that stays the same."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.model.prompt import Risk
from kvscope.prompts.segments import CHAT
from kvscope.prompts.transforms.base import Body, Params, Transform
from kvscope.prompts.values import line_key_hash

_KEY = re.compile(r"[0-9a-f]{16}")
_USER = "user"


def _check(params: Params) -> None:
    role, keys = params.get("role"), params.get("line_keys")
    if not isinstance(role, str) or not role:
        raise UsageError("move_volatile needs `role`, the role of the messages whose lines move")
    if not isinstance(keys, list | tuple) or not all(isinstance(k, str) and _KEY.fullmatch(k) for k in keys):
        raise UsageError("move_volatile needs `line_keys`, a list of keys of 16 hex digits each")
    if unknown := params.keys() - {"role", "line_keys"}:
        raise UsageError(f"move_volatile takes `role` and `line_keys`, found {', '.join(sorted(unknown))}")


def _describe(params: Params) -> str:
    keys = params.get("line_keys", ())
    return (
        f"Moves {len(keys)} changing line{'' if len(keys) == 1 else 's'} of {params.get('role')} messages "
        "to the end of the last user message, after a blank line, in their order."
    )


def _move_volatile(api: str, body: Body, params: Sequence[Params]) -> Body:
    messages = body.get("messages")
    if api != CHAT or not isinstance(messages, list):
        return body
    target = _last_user(messages)
    if target is None:
        return body
    keys: dict[str, set[str]] = {}
    for each in params:
        keys.setdefault(each["role"], set()).update(each["line_keys"])
    moved: list[str] = []
    changed = [_take(message, keys, moved) for message in messages[: target + 1]]
    if not moved:
        return body
    changed[target] = {**changed[target], "content": _append(changed[target]["content"], moved)}
    if changed[target] == messages[target] and all(
        new is old for new, old in zip(changed[:target], messages, strict=False)
    ):
        return body
    return {**body, "messages": [*changed, *messages[target + 1 :]]}


def _last_user(messages: list[Any]) -> int | None:
    """Return the index of the last user message, or None where there is none with a known content."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, dict) and message.get("role") == _USER:
            return index if isinstance(message.get("content"), str | list) else None
    return None


def _take(message: Any, keys: Mapping[str, set[str]], moved: list[str]) -> Any:
    """Return the message without the lines that move; these are added to ``moved``."""
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str):
        return message
    wanted = keys.get(role)
    content = message.get("content")
    if not wanted or not isinstance(content, str | list):
        return message
    before = len(moved)
    if isinstance(content, str):
        new: Any = _without(content, wanted, moved)
    else:
        new = [_part_without(part, wanted, moved) for part in content]
    return message if len(moved) == before else {**message, "content": new}


def _part_without(part: Any, wanted: set[str], moved: list[str]) -> Any:
    if isinstance(part, str):
        return _without(part, wanted, moved)
    if isinstance(part, dict) and isinstance(text := part.get("text"), str):
        return {**part, "text": _without(text, wanted, moved)}
    return part


def _without(text: str, wanted: set[str], moved: list[str]) -> str:
    kept: list[str] = []
    for line in text.split("\n"):
        if line.strip() and line_key_hash(line) in wanted:
            moved.append(line.rstrip())
        else:
            kept.append(line)
    return "\n".join(kept)


def _append(content: str | list[Any], lines: Sequence[str]) -> str | list[Any]:
    """Return the content with the lines after a blank line behind its last text."""
    if isinstance(content, str):
        return _joined(content, lines)
    for index in range(len(content) - 1, -1, -1):
        part = content[index]
        if isinstance(part, str):
            return [*content[:index], _joined(part, lines), *content[index + 1 :]]
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            new = {**part, "text": _joined(text, lines)}
            return [*content[:index], new, *content[index + 1 :]]
    return [*content, {"type": "text", "text": "\n".join(lines)}]


def _joined(text: str, lines: Sequence[str]) -> str:
    kept = text.rstrip()
    return "\n".join([kept, "", *lines] if kept else lines)


MOVE_VOLATILE = Transform(
    kind="move_volatile", risk=Risk.REVIEW, describe=_describe, apply=_move_volatile, check=_check
)
