"""Gives each request the name of its route: declared by a header, or mined from what stays the same."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from kvscope.prompts.segments import CHAT, content_text
from kvscope.prompts.values import line_key_hash

ROUTE_HEADER = "x-kvscope-route"
_NAME_CHARS = 128
_MINED_LINES = 200
_INSTRUCTION_ROLES = frozenset({"system", "developer"})


def route_of(api: str, body: Mapping[str, Any], header: str | None) -> str:
    """Return the declared route, or ``auto-<8 hex>`` of model, tool names and system lines.

    Order of tools and lines and the values in lines do not matter.
    """
    if header and (name := header.strip()) and name.isprintable():
        return name[:_NAME_CHARS]
    digest = hashlib.sha256()
    for word in _identity(api, body):
        digest.update(word.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return f"auto-{digest.hexdigest()[:8]}"


def tool_name(tool: Any) -> str | None:
    """Return the name of a function tool, or None for what is not one."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _identity(api: str, body: Mapping[str, Any]) -> Iterator[str]:
    yield api
    yield str(body.get("model", ""))
    if api != CHAT:
        return
    tools = body.get("tools")
    if isinstance(tools, list):
        yield from sorted(tool_name(tool) or "" for tool in tools)
    yield "\0"
    yield from sorted(set(_system_keys(body)))


def _system_keys(body: Mapping[str, Any]) -> Iterator[str]:
    messages = body.get("messages")
    left = _MINED_LINES
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict) or message.get("role") not in _INSTRUCTION_ROLES:
            return
        for line in content_text(message.get("content")).split("\n", left)[:left]:
            if line.strip():
                left -= 1
                yield line_key_hash(line)
