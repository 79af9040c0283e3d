"""The structure of each route as rows to show: its segments, and what varies in them. No text of a prompt."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from kvscope.model.prompt import Prompt
from kvscope.prompts.segments import segments
from kvscope.tuning.forms import Variation
from kvscope.tuning.structure import RouteStructure, learn, scope_of

_FIRST_MESSAGES = 2  # told by their index; later ones are told by their role
_ROLES = ("system", "developer", "user", "prompt", "tool")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A segment of a route's prompts (``kind`` is `segment`), or something that varies within one.

    ``scope`` is what has one value of it: the whole `route`, a `tenant`, a `session`, a `request`, or `some`
    requests. ``char_start`` and ``char_end`` are those of a typical request, None for whole segments.
    """

    route: str
    role: str
    message_index: int | str | None
    kind: str
    scope: str
    occurrences: int
    distinct: int
    characters: float | None
    char_start: int | None
    char_end: int | None


def described(prompts: Sequence[Prompt]) -> list[Part]:
    """Return the parts of all routes, in the order in which they stand in the prompt."""
    by_route: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_route.setdefault(prompt.route, []).append(prompt)
    return [
        part
        for route, own in by_route.items()
        for part in (*_segments(route, own), *_varying(route, learn(own, roles=_ROLES)))
    ]


class _Segment:
    """What was seen of one segment."""

    def __init__(self) -> None:
        self.total = self.characters = 0
        self.texts: set[int] = set()
        self.by_session: dict[str | None, set[int]] = {}
        self.by_tenant: dict[str | None, set[int]] = {}


def _segments(route: str, prompts: Sequence[Prompt]) -> Iterator[Part]:
    found: dict[tuple[str, int | str | None], _Segment] = {}
    for prompt in prompts:
        for part in segments(prompt.api, prompt.sent_body):
            index: int | str | None = part.message_index
            if part.message_index is not None and part.message_index >= _FIRST_MESSAGES:
                index = "later"
            segment = found.setdefault((part.role, index), _Segment())
            text = hash(part.text)
            segment.total += 1
            segment.characters += len(part.text)
            segment.texts.add(text)
            segment.by_session.setdefault(prompt.session, set()).add(text)
            segment.by_tenant.setdefault(prompt.tenant, set()).add(text)
    for (role, index), segment in found.items():
        scope = scope_of(segment.by_tenant, segment.total, len(segment.texts))
        if scope == "session":
            scope = "tenant"
        elif scope != "route":
            scope = scope_of(segment.by_session, segment.total, len(segment.texts))
        yield Part(
            route=route,
            role=role,
            message_index=index,
            kind="segment",
            scope=scope,
            occurrences=segment.total,
            distinct=len(segment.texts),
            characters=segment.characters / segment.total,
            char_start=None,
            char_end=None,
        )


def _varying(route: str, structure: RouteStructure) -> Iterator[Part]:
    for line in structure.lines:
        kind = "counter" if line.counting else str(line.place.value_kind)
        yield Part(
            route=route,
            kind=kind,
            scope=line.scope,
            occurrences=line.occurrences,
            distinct=line.distinct,
            characters=line.characters,
            **_place(line.place),
        )
    forms: tuple[Variation | None, ...] = (
        structure.tool_order,
        structure.tool_keys,
        structure.schema_lists,
        structure.text_keys,
        structure.example_order,
        structure.document_order,
        structure.whitespace,
    )
    for form in forms:
        if form is not None:
            yield Part(
                route=route,
                kind=str(form.place.value_kind),
                scope="some",
                occurrences=structure.prompts,
                distinct=form.distinct,
                characters=None,
                **_place(form.place),
            )


def _place(place: Any) -> dict[str, Any]:
    return {
        "role": place.role,
        "message_index": place.message_index,
        "char_start": place.char_start,
        "char_end": place.char_end,
    }
