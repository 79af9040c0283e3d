"""The order of a layout's segments: what each variant says, and what may not be broken."""

import dataclasses
from collections.abc import Collection, Sequence

import msgspec

from kvscope.errors import UsageError
from kvscope.prompts.layouts.schema import CONVERSATION, LayoutForm, Scope, SegmentForm, VariantForm

_INSTRUCTIONS = ("system", "developer")
_STABILITY = {scope: rank for rank, scope in enumerate(Scope)}


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """A segment that varies more than one behind it, so that the latter is never a prefix hit."""

    segment: str
    scope: Scope
    behind: tuple[str, ...]  # the more stable ones that it stands before


def named(form: LayoutForm) -> tuple[SegmentForm, ...]:
    """Return the segments in the file's order, with the place of the conversation among them.

    Raises ``UsageError`` where names are missing or used twice.
    """
    segments = list(form.segments)
    if not any(segment.role == CONVERSATION for segment in segments):
        segments.append(SegmentForm(role="messages"))
    found: dict[str, SegmentForm] = {}
    for place, segment in enumerate(segments):
        name = segment.name or (CONVERSATION if segment.role == CONVERSATION else "")
        if not name:
            raise UsageError(f"segments[{place}] needs a name")
        if name in found:
            raise UsageError(f"segments[{place}]: the name {name} is used twice")
        if (segment.text is None) != (segment.role == CONVERSATION):
            must = "has no text: the request's messages stand there" if segment.text else "needs a text"
            raise UsageError(f"segment {name} {must}")
        found[name] = msgspec.structs.replace(segment, name=name)
    if sum(segment.role == CONVERSATION for segment in found.values()) > 1:
        raise UsageError(f"only one segment can have the role {CONVERSATION}")
    for segment in found.values():
        if unknown := [name for name in segment.after if name not in found]:
            raise UsageError(f"segment {segment.name}: after names {unknown[0]}, which is no segment")
    return tuple(found.values())


def arranged(segments: Sequence[SegmentForm], variant: VariantForm, name: str) -> tuple[SegmentForm, ...]:
    """Return the segments as ``variant`` has them; raises ``UsageError`` where it breaks a constraint."""
    by_name = {segment.name: segment for segment in segments}
    _require_known(name, [*variant.texts, *variant.without], by_name)
    left = [segment for segment in segments if segment.name not in variant.without]
    for segment in segments:
        if segment.name in variant.without and segment.role == CONVERSATION:
            raise UsageError(f"variant {name}: the request's messages cannot be left out")
        if segment.name in variant.texts and segment.role == CONVERSATION:
            raise UsageError(f"variant {name}: the request's messages have no text here")
    changed = [
        msgspec.structs.replace(segment, text=variant.texts.get(segment.name, segment.text))
        for segment in left
    ]
    if variant.order == "stable_first":
        ordered = _stable_first(changed)
    elif variant.order is not None:
        ordered = _as_listed(name, variant.order, changed)
    else:
        ordered = changed
    _check(name, ordered, [segment.name for segment in left])
    return tuple(ordered)


def broken_prefixes(ordered: Sequence[SegmentForm]) -> list[Broken]:
    """Return which segments stand before more stable ones, in order."""
    found = []
    for place, segment in enumerate(ordered):
        rank = _STABILITY[segment.scope]
        behind = tuple(
            later.name
            for later in ordered[place + 1 :]
            if later.role != CONVERSATION and _STABILITY[later.scope] < rank
        )
        if behind and segment.role != CONVERSATION:
            found.append(Broken(segment.name, segment.scope, behind))
    return found


def _require_known(variant: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"variant {variant} names {name}, which is no segment")


def _as_listed(variant: str, order: Sequence[str], segments: Sequence[SegmentForm]) -> list[SegmentForm]:
    by_name = {segment.name: segment for segment in segments}
    _require_known(variant, order, by_name)
    if len(set(order)) < len(order):
        raise UsageError(f"variant {variant}: its order names a segment twice")
    if missing := [name for name in by_name if name not in order]:
        if missing != [CONVERSATION]:
            raise UsageError(f"variant {variant}: its order lacks {', '.join(missing)}")
        return [*(by_name[name] for name in order), by_name[CONVERSATION]]
    return [by_name[name] for name in order]


def _stable_first(segments: Sequence[SegmentForm]) -> list[SegmentForm]:
    """Return the segments with stable ones first, as far as roles, ``after`` and ``pinned`` let them.

    Segments before and behind the conversation do not cross it: what was meant to follow the question
    still follows it. Of those that may stand next the most stable is taken, of equals the first.
    """
    left = list(segments)
    ordered: list[SegmentForm] = []
    while left:
        wall = next((at for at, one in enumerate(left) if one.pinned or one.role == CONVERSATION), len(left))
        waiting = {one.name for one in left}
        group = left[:wall] or left[:1]
        ready = [one for one in group if waiting.isdisjoint(one.after)] or group
        chosen = min(ready, key=lambda one: (one.role not in _INSTRUCTIONS, _STABILITY[one.scope]))
        ordered.append(chosen)
        left.remove(chosen)
    return ordered


def _check(variant: str, ordered: Sequence[SegmentForm], base: Sequence[str]) -> None:
    """Raise where an order breaks what the file or a chat template asks for."""
    places = {segment.name: place for place, segment in enumerate(ordered)}
    spoken = ""
    for segment in ordered:
        for before in segment.after:
            if places.get(before, -1) > places[segment.name]:
                raise UsageError(f"variant {variant}: {segment.name} must stand after {before}")
        if segment.pinned and set(base[: base.index(segment.name)]) != {
            one.name for one in ordered[: places[segment.name]]
        }:
            raise UsageError(f"variant {variant}: {segment.name} is pinned, so it keeps its place")
        if segment.role not in _INSTRUCTIONS:
            spoken = spoken or segment.name
        elif spoken:
            raise UsageError(
                f"variant {variant}: {segment.name} ({segment.role}) stands after {spoken};"
                " chat templates take tools, then system, then messages"
            )
