"""Finds the changes of a route that are worth an exact judgement.

The search goes by stand-in tokens: it starts from everything that varies and leaves out, one by one, what can
stay without loss, so that a change moves as little as it must.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from kvscope.model.prompt import Risk, TransformSpec
from kvscope.prompts.transforms import risk_of
from kvscope.tuning.forms import Place
from kvscope.tuning.judge import Judge, Outcome
from kvscope.tuning.structure import LEADING_ROLES, RouteStructure, VaryingLine
from kvscope.tuning.window import RouteWindow

MOVE_VOLATILE = "move_volatile"
SORT_TOOLS = "sort_tools"
CANONICAL_JSON = "canonical_json"
NORMALIZE_WHITESPACE = "normalize_whitespace"
SPLIT_TENANT = "split_tenant"
SORT_DOCUMENTS = "sort_documents"
FIX_EXAMPLE_ORDER = "fix_example_order"
_MOST_LINES = 16
_MOST_TENANT_LINES = 256
_RISKS = list(Risk)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing that could be changed: lines that could move, or a form that could be made canonical.

    ``flag`` is a parameter of the transform that is set for it.
    """

    kind: str
    place: Place
    lines: tuple[VaryingLine, ...] = ()
    flag: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """Options that are taken together."""

    options: tuple[Option, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds in it, each once."""
        return tuple(dict.fromkeys(option.kind for option in self.options))

    @property
    def specs(self) -> tuple[TransformSpec, ...]:
        """The transforms that make the change, in one canonical form."""
        keys: dict[tuple[str, str], list[str]] = {}
        flags: dict[str, dict[str, bool]] = {}
        for option in self.options:
            for line in option.lines:
                keys.setdefault((option.kind, option.place.role), []).append(line.key_hash)
            if not option.lines:
                flags.setdefault(option.kind, {}).update({option.flag: True} if option.flag else {})
        moves = [
            TransformSpec(kind=kind, params={"role": role, "line_keys": sorted(found)})
            for (kind, role), found in sorted(keys.items())
        ]
        return (*moves, *(TransformSpec(kind=kind, params=params) for kind, params in flags.items()))

    @property
    def risk(self) -> Risk:
        """The greatest risk of its transforms."""
        return max((risk_of(spec) for spec in self.specs), key=_RISKS.index)

    def only(self, kind: str) -> "Change":
        """Return the part of the change that is of ``kind``."""
        return Change(tuple(option for option in self.options if option.kind == kind))


def options_of(structure: RouteStructure) -> tuple[Option, ...]:
    """Return all that could be changed, lines that vary most first.

    Items of lists (lines that stand several times in a message) belong to their neighbours and do not move.
    """
    single = [line for line in structure.lines if not line.repeated and line.place.role in LEADING_ROLES]
    movable = [line for line in single if not line.of_tenant]
    movable.sort(key=lambda line: -line.entropy_bits)
    forms = (
        (SORT_TOOLS, structure.tool_order, None),
        (CANONICAL_JSON, structure.tool_keys, None),
        (CANONICAL_JSON, structure.text_keys, "texts"),
        (CANONICAL_JSON, structure.schema_lists, "lists"),
        (NORMALIZE_WHITESPACE, structure.whitespace, None),
        (FIX_EXAMPLE_ORDER, structure.example_order, None),
        (SORT_DOCUMENTS, structure.document_order, None),
    )
    return (
        *(Option(kind=MOVE_VOLATILE, place=line.place, lines=(line,)) for line in movable[:_MOST_LINES]),
        *_tenant_options([line for line in single if line.of_tenant]),
        *(Option(kind=kind, place=form.place, flag=flag) for kind, form, flag in forms if form is not None),
    )


def _tenant_options(lines: Sequence[VaryingLine]) -> Iterator[Option]:
    """Yield one option a role: what a tenant's own lines say belongs together."""
    for role in LEADING_ROLES:
        own = tuple(line for line in lines if line.place.role == role)[:_MOST_TENANT_LINES]
        if own:
            yield Option(kind=SPLIT_TENANT, place=own[0].place, lines=own)


def promising(
    rough: Judge, route: RouteWindow, options: Sequence[Option], *, min_gain: float
) -> list[Change]:
    """Return the changes that may gain ``min_gain``: each kind alone, the safe kinds, all kinds together."""
    kinds = dict.fromkeys(option.kind for option in options)
    groups = [[option for option in options if option.kind == kind] for kind in kinds]
    groups.append([option for option in options if Change((option,)).risk is Risk.SAFE])
    groups.append(list(options))
    now = _rate(rough.now, route)
    # what stand-ins estimate may be off by a little, so they refuse only what is well below the bar
    bar, slack = now + min_gain / 2, min_gain / 4
    changes: dict[frozenset[Option], Change] = {}
    for group in groups:
        if group:
            change = _without_idle(rough, route, Change(tuple(group)), slack)
            if change.options and _rate(rough.outcome(route, change.specs), route) >= bar:
                changes.setdefault(frozenset(change.options), change)
    return list(changes.values())


def _without_idle(rough: Judge, route: RouteWindow, change: Change, slack: float) -> Change:
    """Return ``change`` without the options that can be left out at a loss of ``slack`` at most.

    Those that vary least go first. Leaving one out may gain, too: then that is the new mark.
    """
    mark = _rate(rough.outcome(route, change.specs), route)
    for option in reversed(change.options):
        fewer = Change(tuple(each for each in change.options if each != option))
        if _done_by(fewer, option):
            continue  # the transform does it anyway, so the suggestion has to name its place
        rate = _rate(rough.outcome(route, fewer.specs), route)
        if rate >= mark - slack:
            change, mark = fewer, max(mark, rate)
    return change


def _done_by(change: Change, option: Option) -> bool:
    """Whether ``change`` makes the form of ``option`` canonical without it: flags only add to a transform."""
    return not option.lines and option.flag is None and option.kind in change.kinds


def _rate(outcome: Outcome, route: RouteWindow) -> float:
    return outcome.hit_rate(route.newer_half)


def merged(specs: Iterable[TransformSpec]) -> tuple[TransformSpec, ...]:
    """Return ``specs`` without repetition; moves of lines of one role become one."""
    merged: dict[tuple[str, str], TransformSpec] = {}
    for spec in specs:
        role = str(spec.params.get("role", ""))
        known = merged.get((spec.kind, role))
        if known is not None and "line_keys" in spec.params:
            keys = sorted({*known.params["line_keys"], *spec.params["line_keys"]})
            merged[spec.kind, role] = TransformSpec(kind=spec.kind, params={**spec.params, "line_keys": keys})
        else:
            params = {**known.params, **spec.params} if known is not None else spec.params
            merged[spec.kind, role] = TransformSpec(kind=spec.kind, params=params)
    return tuple(merged[key] for key in sorted(merged))
