"""The texts of a request body in the order in which chat templates render them."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

CHAT = "chat"
COMPLETION = "completion"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One text of a request.

    ``role`` is ``tools``, a message's role, or ``prompt``. ``message_index`` counts from 0 in ``messages``
    (or in a list of prompts) and is None for tools and for a single prompt.
    """

    role: str
    message_index: int | None
    text: str


def segments(api: str, body: Mapping[str, Any]) -> tuple[Segment, ...]:
    """Return the body's texts: tools, then messages; for completions the prompts.

    Tools are one segment, a line of JSON each. A message is one segment; its tool calls, if any, are a second
    one with the same role and index. Token ids, images and what is not understood have no text.
    """
    return tuple(_chat(body) if api == CHAT else _completion(body))


def prompts_in(api: str, body: Mapping[str, Any]) -> int:
    """Return how many prompts the body holds: completions take a list of them."""
    prompt = body.get("prompt") if api == COMPLETION else None
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1


def sequences_asked(api: str, body: Mapping[str, Any]) -> int:
    """Return how many answers the body asks for, over all its prompts: the engine computes each by itself."""
    n = body.get("n")
    return prompts_in(api, body) * (n if isinstance(n, int) and n > 0 else 1)


def prompt_text(parts: tuple[Segment, ...]) -> str:
    """Return all texts as one, a line break between them."""
    return parts[0].text if len(parts) == 1 else "\n".join(part.text for part in parts)


def content_text(content: Any) -> str:
    """Return the text of a message's content; text parts are joined by line breaks, as vLLM does."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(text for part in content if (text := part_text(part)) is not None)


def part_text(part: Any) -> str | None:
    """Return the text of one part of a content list, or None where it holds none."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(text := part.get("text"), str):
        return text
    return None


def _chat(body: Mapping[str, Any]) -> Iterator[Segment]:
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        yield Segment(role="tools", message_index=None, text="\n".join(map(_json, tools)))
    messages = body.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            continue
        role = str(message.get("role", ""))
        yield Segment(role=role, message_index=index, text=content_text(message.get("content")))
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            yield Segment(role=role, message_index=index, text="\n".join(map(_json, calls)))


def _completion(body: Mapping[str, Any]) -> Iterator[Segment]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        yield Segment(role="prompt", message_index=None, text=prompt)
    elif isinstance(prompt, list):
        for index, text in enumerate(prompt):
            if isinstance(text, str):
                yield Segment(role="prompt", message_index=index, text=text)


def _json(value: Any) -> str:
    """Write JSON as chat templates do: Hugging Face's ``tojson`` keeps order and non-ASCII letters."""
    return json.dumps(value, ensure_ascii=False)
