"""JSON inside texts with its keys in one order; everything else of it stays, byte for byte.

A piece is changed only where writing it again in its own order gives exactly what stands there: then writing
it with sorted keys changes their order and nothing else.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

_FENCE = re.compile(r"^[ \t]*```[ \t]*(?:json|JSON)?[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL | re.MULTILINE)
_DEEPEST = 64
_LARGEST = 2**18
_SEPARATORS = ((", ", ": "), (",", ":"), (",", ": "))


def sort_json(text: str) -> str:
    """Return ``text`` with the keys of JSON objects sorted: of the whole text, of fences, of whole lines."""
    if "{" not in text:
        return text
    if (whole := _sorted(text.strip())) is not None:
        return text.replace(text.strip(), whole, 1)
    pieces: list[str] = []
    position = 0
    for start, end in _candidates(text):
        if start >= position and (new := _sorted(text[start:end])) is not None:
            pieces += text[position:start], new
            position = end
    return "".join([*pieces, text[position:]])


def json_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield where ``sort_json`` looks for JSON: the whole text where it is JSON, else fences and lines."""
    bare = text.strip()
    if bare.startswith("{") and bare.endswith("}") and _sorted(bare) is not None:
        start = text.index("{")
        yield start, start + len(bare)
        return
    if "{" in text:
        yield from _candidates(text)


def _candidates(text: str) -> Iterator[tuple[int, int]]:
    """Yield where JSON may stand, in order: in fences, and in lines that begin and end with braces."""
    fences = [(found.start(1), found.end(1)) for found in _FENCE.finditer(text)]
    lines: list[tuple[int, int]] = []
    start = 0
    for line in text.split("\n"):
        bare = line.strip()
        if bare.startswith("{") and bare.endswith("}"):
            begin = start + line.index("{")
            lines.append((begin, begin + len(bare)))
        start += len(line) + 1
    yield from sorted([*fences, *lines], key=lambda span: (span[0], -span[1]))


def _sorted(text: str) -> str | None:
    """Return JSON with sorted keys, or None where that could change more than the order of keys."""
    if not text.startswith(("{", "[")) or len(text) > _LARGEST:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if _depth(value, _DEEPEST):
        return None
    for indent in _indents(text):
        for separators in _SEPARATORS:
            for ascii_only in (False, True):
                if json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators) == text:
                    return json.dumps(
                        value, ensure_ascii=ascii_only, indent=indent, separators=separators, sort_keys=True
                    )
    return None


def _indents(text: str) -> tuple[int | str | None, ...]:
    second = text.split("\n", 2)[1:2]
    if not second:
        return (None,)
    space = second[0][: len(second[0]) - len(second[0].lstrip())]
    return ("\t" if space.startswith("\t") else len(space),)


def _depth(value: Any, left: int) -> bool:
    """Tell whether ``value`` is nested deeper than ``left``."""
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_depth(item, left - 1) for item in items)
