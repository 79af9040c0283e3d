"""Conversations in ShareGPT's form: each answer in one was a request with all that stands before it."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvscope.analysis.formats.records import Body, LineError, LoggedRequest, Place

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}


def is_sharegpt(value: Mapping[str, Any]) -> bool:
    """Whether the object holds turns under ``conversations``."""
    return isinstance(value.get("conversations"), list)


def sharegpt(value: Mapping[str, Any], place: Place) -> Iterator[LoggedRequest]:
    """Yield a request for each answer; raises ``LineError`` for a turn that is none."""
    session = str(value.get("id") or place.name)
    messages: list[dict[str, str]] = []
    for turn in value["conversations"]:
        role = _ROLES.get(turn.get("from", "")) if isinstance(turn, Mapping) else None
        text = turn.get("value") if isinstance(turn, Mapping) else None
        if role is None or not isinstance(text, str):
            raise LineError("a turn needs `from` (human, gpt, system, tool ...) and `value`, a text")
        if role == "assistant" and messages:
            yield LoggedRequest(
                request_id=f"{session}/{len(messages)}",
                origin=place.name,
                at=None,
                prompt=Body(api="chat", body={"messages": list(messages)}),
                session=session,
            )
        messages.append({"role": role, "content": text})
