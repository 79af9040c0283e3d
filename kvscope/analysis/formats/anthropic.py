"""Anthropic message bodies as OpenAI chat bodies: what a model's chat template can render.

The system prompt stands beside the messages there, tools have an ``input_schema``, and calls of tools and
their results are parts of messages.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_OWN_PARTS = {"tool_use", "tool_result", "thinking", "redacted_thinking"}


def is_anthropic(body: Mapping[str, Any]) -> bool:
    """Whether a body with messages is Anthropic's."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        return False
    if "system" in body or "anthropic_version" in body:
        return True
    tools = body.get("tools")
    if isinstance(tools, list) and any(isinstance(each, dict) and "input_schema" in each for each in tools):
        return True
    return any(
        part.get("type") in _OWN_PARTS for message in messages for part in _parts(message.get("content"))
    )


def as_openai(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAI chat body that says the same; texts stay as they are."""
    messages: list[dict[str, Any]] = []
    system = _text(body.get("system"))
    if system:
        messages.append({"role": "system", "content": system})
    for message in body["messages"]:
        messages += openai_messages(message)
    converted = {key: value for key, value in body.items() if key not in {"system", "messages", "tools"}}
    converted["messages"] = messages
    if isinstance(body.get("tools"), list):
        converted["tools"] = [_tool(tool) for tool in body["tools"] if isinstance(tool, dict)]
    return converted


def openai_messages(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the OpenAI messages that say what one message says: results of tools, then the rest."""
    parts = _parts(message.get("content"))
    for part in parts:
        if part.get("type") == "tool_result":
            yield {
                "role": "tool",
                "tool_call_id": part.get("tool_use_id"),
                "content": _text(part.get("content")),
            }
    calls = [_call(part) for part in parts if part.get("type") == "tool_use"]
    text = _text(message.get("content"))
    if text or calls or not parts:
        converted: dict[str, Any] = {"role": message.get("role"), "content": text}
        yield converted | ({"tool_calls": calls} if calls else {})


def _parts(content: Any) -> Sequence[Mapping[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _text(content: Any) -> str:
    """Return the text of a content: itself, or its text parts, one a line."""
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in _parts(content) if part.get("type") == "text")
    return "\n".join(text for text in texts if isinstance(text, str))


def _call(part: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(part.get("input") or {}, ensure_ascii=False)
    return {
        "id": part.get("id"),
        "type": "function",
        "function": {"name": part.get("name"), "arguments": arguments},
    }


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": tool.get("name"), "description": tool.get("description")}
    function["parameters"] = tool.get("input_schema")
    return {
        "type": "function",
        "function": {key: value for key, value in function.items() if value is not None},
    }
