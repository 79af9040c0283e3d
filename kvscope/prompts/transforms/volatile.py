"""Moves lines whose values change behind what stays the same, and a tenant's lines behind what all share."""

from collections.abc import Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.model.prompt import Risk
from kvscope.prompts.segments import CHAT
from kvscope.prompts.transforms.base import Body, Params, Transform
from kvscope.prompts.transforms.lines import (
    INSTRUCTIONS,
    appended,
    check_lines,
    keys_by_role,
    lines_told,
    map_lines,
)

_USER = "user"
_LAST_TURN, _SYSTEM_END = "last_turn", "system_end"
_PLACES = {
    _LAST_TURN: "to the end of the last user message",
    _SYSTEM_END: "to the end of the last message of that role at the prompt's head",
}
_TENANT = "tenant"  # set for the lines of `split_tenant`, which stand before what changes more often


def _check(params: Params) -> None:
    check_lines("move_volatile", params, more={"to": _PLACES})
    if params.get("to") == _SYSTEM_END and params["role"] not in INSTRUCTIONS:
        raise UsageError(
            f"move_volatile: only lines of {' and '.join(INSTRUCTIONS)} messages move to system_end"
        )


def _check_tenant(params: Params) -> None:
    check_lines("split_tenant", params)
    if params["role"] not in INSTRUCTIONS:
        raise UsageError(f"split_tenant is about {' and '.join(INSTRUCTIONS)} messages")


def _describe(params: Params) -> str:
    place = _PLACES[params.get("to", _LAST_TURN)]
    return f"Moves {lines_told(params)} {place}, after a blank line, in their order."


def _move(api: str, body: Body, params: Sequence[Params]) -> Body:
    """Move lines behind what stays, a tenant's before volatile ones; all at once, so that twice is once."""
    if api != CHAT or not isinstance(body.get("messages"), list):
        return body
    changed = _to_last_turn(body, [each for each in params if each.get("to", _LAST_TURN) == _LAST_TURN])
    return _to_system_end(changed, [each for each in params if each.get("to") == _SYSTEM_END])


def _to_last_turn(body: Body, params: Sequence[Params]) -> Body:
    messages: list[Any] = body["messages"]
    target = _last(messages, (_USER,), len(messages))
    if target is None or not params:
        return body
    moved: list[str] = []
    # what stands behind the last user message keeps its lines: an agent's newer turns come after it
    head = _taken({**body, "messages": messages[: target + 1]}, params, moved)
    if not moved:
        return body
    changed = list(head["messages"])
    changed[target] = {**changed[target], "content": appended(changed[target]["content"], moved)}
    return {**body, "messages": [*changed, *messages[target + 1 :]]}


def _to_system_end(body: Body, params: Sequence[Params]) -> Body:
    for role in INSTRUCTIONS:
        own = [each for each in params if each["role"] == role]
        messages: list[Any] = body["messages"]
        target = _last(messages, (role,), _head(messages))
        if target is None or not own:
            continue
        moved: list[str] = []
        head: Body = {**body, "messages": messages[: target + 1]}
        for tenant in (True, False):
            head = _taken(head, [each for each in own if bool(each.get(_TENANT)) is tenant], moved)
        if moved:
            changed = list(head["messages"])
            changed[target] = {**changed[target], "content": appended(changed[target]["content"], moved)}
            body = {**body, "messages": [*changed, *messages[target + 1 :]]}
    return body


def _taken(body: Body, params: Sequence[Params], moved: list[str]) -> Body:
    """Return ``body`` without the lines that ``params`` name; these are added to ``moved``."""
    return map_lines(CHAT, body, keys_by_role(params), lambda _role, _key, line: moved.append(line.rstrip()))


def _last(messages: list[Any], roles: Sequence[str], before: int) -> int | None:
    """Return the index of the last message of ``roles``, or None where there is none with a known content."""
    for index in range(before - 1, -1, -1):
        message = messages[index]
        if isinstance(message, dict) and message.get("role") in roles:
            return index if isinstance(message.get("content"), str | list) else None
    return None


def _head(messages: list[Any]) -> int:
    """Return how many messages of instructions stand at the head."""
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in INSTRUCTIONS:
            return index
    return len(messages)


MOVE_VOLATILE = Transform(
    kind="move_volatile", risk=Risk.REVIEW, describe=_describe, apply=_move, check=_check
)
SPLIT_TENANT = Transform(
    kind="split_tenant",
    risk=Risk.REVIEW,
    describe=lambda params: (
        f"Moves {lines_told(params)} {_PLACES[_SYSTEM_END]}, after a blank line and before other lines that"
        " move there: what all tenants share comes first."
    ),
    apply=_move,
    check=_check_tenant,
    applied_with=MOVE_VOLATILE.kind,
    rewritten=lambda params: {**params, "to": _SYSTEM_END, _TENANT: True},
)
