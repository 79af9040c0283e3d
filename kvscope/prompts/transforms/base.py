"""What every transform offers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.model.prompt import Risk
from kvscope.prompts.segments import COMPLETION

Params = Mapping[str, Any]
Body = dict[str, Any]


def no_params(params: Params) -> None:
    """Check the parameters of a transform that has none."""
    if params:
        raise UsageError(f"this transform takes no parameters, found {', '.join(sorted(map(str, params)))}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """A kind of change: its risk, its exact description, and the change itself.

    ``apply`` takes the parameters of all specs of this kind at once, returns the same object where
    nothing changes, never changes its input, and twice is the same as once.
    """

    kind: str
    risk: Risk
    describe: Callable[[Params], str]
    apply: Callable[[str, Body, Sequence[Params]], Body]
    check: Callable[[Params], None] = no_params
    applied_with: str | None = None  # the kind whose ``apply`` does this one too, at the same time
    rewritten: Callable[[Params], Params] = lambda params: params  # what that one gets


def map_message_texts(body: Body, change: Callable[[str, str], str]) -> Body:
    """Return ``body`` with ``change(role, text)`` applied to each message's text and text parts."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    changed = [_map_message(message, change) for message in messages]
    return body if _same(changed, messages) else {**body, "messages": changed}


def map_prompt_texts(api: str, body: Body, change: Callable[[str], str]) -> Body:
    """Return a completion ``body`` with ``change`` applied to its prompt or prompts."""
    prompt = body.get("prompt")
    if api != COMPLETION:
        return body
    if isinstance(prompt, str):
        new = change(prompt)
        return body if new == prompt else {**body, "prompt": new}
    if isinstance(prompt, list) and prompt and all(isinstance(text, str) for text in prompt):
        texts = [change(text) for text in prompt]
        return body if texts == prompt else {**body, "prompt": texts}
    return body


def _map_message(message: Any, change: Callable[[str, str], str]) -> Any:
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str):
        return message
    content = message.get("content")
    new: Any = content
    if isinstance(content, str):
        new = change(role, content)
    elif isinstance(content, list):
        new = [_map_part(part, role, change) for part in content]
    same = (
        new == content if isinstance(content, str) else not isinstance(content, list) or _same(new, content)
    )
    return message if same else {**message, "content": new}


def _map_part(part: Any, role: str, change: Callable[[str, str], str]) -> Any:
    if isinstance(part, str):
        return change(role, part)
    if isinstance(part, dict) and isinstance(text := part.get("text"), str):
        new = change(role, text)
        return part if new == text else {**part, "text": new}
    return part


def _same(new: list[Any], old: list[Any]) -> bool:
    """Tell whether each item is the very object, or the equal text, that was there."""
    return all(a is b or (isinstance(a, str) and a == b) for a, b in zip(new, old, strict=True))
