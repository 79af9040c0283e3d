"""A declared layout drafted from traffic: what all prompts of a route say as text, the rest as variables."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from kvscope.prompts.mining.alignment import MinedSegment, mined_segments, tokens_of
from kvscope.prompts.segments import content_text

FEWEST_PROMPTS = 5
_MOST_PROMPTS = 40  # a dozen outvote noise; more cost time and teach little
_LEAST_STATIC_CHARS = 40
_ROLES = ("system", "developer", "user")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MinedLayout:
    """What the first message of a route's prompts is made of, as of ``prompts`` different ones."""

    route: str
    role: str
    prompts: int
    pieces: tuple[MinedSegment, ...]

    @property
    def static_chars(self) -> int:
        """Characters that most prompts share."""
        return sum(len(_text(piece)) for piece in self.pieces)

    @property
    def prefix_chars(self) -> int:
        """Characters that most prompts share before the first place where they differ."""
        return len(_text(self.pieces[0])) if self.pieces else 0


def mined_layouts(bodies: Iterable[tuple[str, Mapping[str, Any]]]) -> list[MinedLayout]:
    """Return a layout for each route of ``bodies`` (route, chat body) whose prompts have enough in common."""
    texts: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for route, body in bodies:
        messages = body.get("messages")
        first = messages[0] if isinstance(messages, list) and messages else None
        if isinstance(first, dict) and (role := first.get("role")) in _ROLES:
            texts[route, role][content_text(first.get("content"))] = None
    found = [_mined(route, role, list(distinct)) for (route, role), distinct in sorted(texts.items())]
    return [layout for layout in found if layout is not None]


def _mined(route: str, role: str, texts: Sequence[str]) -> MinedLayout | None:
    if len(texts) < FEWEST_PROMPTS:
        return None
    step = max(1, len(texts) // _MOST_PROMPTS)
    chosen = texts[::step][:_MOST_PROMPTS]
    pieces = tuple(mined_segments([tokens_of(text) for text in chosen]))
    layout = MinedLayout(route=route, role=role, prompts=len(chosen), pieces=pieces)
    return layout if layout.static_chars >= _LEAST_STATIC_CHARS else None


def drafted(layout: MinedLayout) -> str:
    """Return the YAML of a layout that renders these prompts; a person names its parts and scopes."""
    text = ""
    variables: dict[str, dict[str, int]] = {}
    for piece in layout.pieces:
        if piece.static:
            text += _escaped(_text(piece))
        else:
            name = f"v{len(variables) + 1}"
            variables[name] = {"max_chars": max(64, 8 * piece.longest)}
            text += f"{{{{ {name} }}}}"
    segment = {"name": "instructions", "role": layout.role, "scope": "global", "text": text}
    form = {
        "layout": layout.route,
        "description": f"Drafted from {layout.prompts} prompts; give the variables names and constraints.",
        "variables": variables,
        "segments": [segment, {"role": "messages"}],
    }
    return yaml.dump(form, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _text(piece: MinedSegment) -> str:
    return "".join(map(str, piece.tokens))


def _escaped(text: str) -> str:
    """Return text that a template renders as itself."""
    if "{" not in text:
        return text
    for mark in ("{{", "{%", "{#"):
        text = text.replace(mark, "\0" + mark[1])
    for mark in ("{{", "{%", "{#"):
        text = text.replace("\0" + mark[1], f"{{{{ '{mark}' }}}}")
    return text


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, which people can read."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)
