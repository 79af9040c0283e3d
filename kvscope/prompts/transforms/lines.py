"""Taking lines out of messages by their keys: what moving, dropping and coarsening share."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.prompts.segments import CHAT
from kvscope.prompts.transforms.base import Body, Params, map_message_texts
from kvscope.prompts.values import line_key_hash

_KEY = re.compile(r"[0-9a-f]{16}")
INSTRUCTIONS = ("system", "developer")


def check_lines(kind: str, params: Params, *, more: Mapping[str, Collection[str]] | None = None) -> None:
    """Raise ``UsageError`` unless ``params`` name a role, keys of lines, and of ``more`` one of the words."""
    role, keys = params.get("role"), params.get("line_keys")
    if not isinstance(role, str) or not role:
        raise UsageError(f"{kind} needs `role`, the role of the messages whose lines it is about")
    if not isinstance(keys, list | tuple) or not all(isinstance(k, str) and _KEY.fullmatch(k) for k in keys):
        raise UsageError(f"{kind} needs `line_keys`, a list of keys of 16 hex digits each")
    known = {"role", "line_keys", *(more or {})}
    if unknown := params.keys() - known:
        raise UsageError(f"{kind} takes {', '.join(sorted(known))}, found {', '.join(sorted(unknown))}")
    for name, words in (more or {}).items():
        if name in params and params[name] not in words:
            raise UsageError(f"{kind}: {name} must be one of {', '.join(words)}, not {params[name]!r}")


def lines_told(params: Params) -> str:
    """Return how many lines of which messages, for descriptions."""
    count = len(params.get("line_keys", ()))
    return f"{count} changing line{'' if count == 1 else 's'} of {params.get('role')} messages"


def keys_by_role(params: Sequence[Params]) -> dict[str, set[str]]:
    """Return the keys of all ``params`` by role."""
    keys: dict[str, set[str]] = {}
    for each in params:
        keys.setdefault(each["role"], set()).update(each["line_keys"])
    return keys


def map_lines(
    api: str, body: Body, keys: Mapping[str, set[str]], change: Callable[[str, str, str], str | None]
) -> Body:
    """Return ``body`` with ``change(role, key, line)`` in place of each line that has a key of its role.

    None takes the line out.
    """
    if api != CHAT:
        return body

    def map_text(role: str, text: str) -> str:
        wanted = keys.get(role)
        if not wanted:
            return text
        kept: list[str] = []
        for line in text.split("\n"):
            if line.strip() and (key := line_key_hash(line)) in wanted:
                new = change(role, key, line)
                if new is not None:
                    kept.append(new)
            else:
                kept.append(line)
        return "\n".join(kept)

    return map_message_texts(body, map_text)


def appended(content: str | list[Any], lines: Sequence[str]) -> str | list[Any]:
    """Return a message's content with the lines after a blank line behind its last text."""
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
