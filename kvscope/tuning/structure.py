"""What a route's prompts have in common and where they vary, learned from the traffic alone.

Variation over requests finds a volatile value; patterns only give it a name. Whether moving it gains anything
is not decided here: the advisor's replay is the judge. Work is linear in the characters of the prompts.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kvscope.model.prompt import Prompt
from kvscope.prompts.segments import Segment, segments
from kvscope.prompts.values import ValueKind, kind_at, line_key_hash

LEADING_ROLES = ("system", "developer")
NAME_LIKE = "name_like"
_ROLES_OF_OTHERS = ("assistant", "tools")
_SAMPLES = 16  # distinct lines that name a value's kind by vote
_NAME_WORDS = 4
_NAME_CHARACTERS = 48


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something varies; the range is that of a typical request, within the segment's text.

    ``message_index`` is None for tools.
    """

    role: str
    message_index: int | None
    char_start: int
    char_end: int
    value_kind: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VaryingLine:
    """A line whose label (``line_key``) stays while its value changes from prompt to prompt.

    ``entropy_bits`` is the Shannon entropy of its values over the prompts that have it. ``repeated`` lines
    stand several times in one message: items of a list, which belong together.
    """

    key_hash: str
    place: Place
    occurrences: int  # messages that have the line
    distinct: int
    entropy_bits: float
    characters: float  # mean length
    repeated: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Texts that differ only in order or form: ``distinct`` forms of what would be ``canonical`` texts."""

    place: Place
    distinct: int
    canonical: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteStructure:
    """How the prompts of one route vary; None where a thing does not vary."""

    prompts: int
    lines: tuple[VaryingLine, ...]  # in the order in which they stand
    tool_order: Variation | None
    tool_keys: Variation | None
    whitespace: Variation | None


def learn(prompts: Sequence[Prompt], *, roles: Collection[str] = LEADING_ROLES) -> RouteStructure:
    """Return the structure of ``prompts`` (of one route) as they were sent; lines of ``roles`` only."""
    lines = _Lines(roles)
    spaces = _Spaces()
    tools = _Tools()
    for prompt in prompts:
        parts = segments(prompt.api, prompt.sent_body)
        for part in parts:
            lines.add(part)
            spaces.add(part)
        tools.add(prompt.sent_body.get("tools"), parts)
    return RouteStructure(
        prompts=len(prompts),
        lines=lines.varying(),
        tool_order=tools.orders.variation(),
        tool_keys=tools.keys.variation(),
        whitespace=spaces.forms.variation(),
    )


class _Line:
    """What was seen of the lines under one key in one role."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], int] = {}
        self.places: list[tuple[int, int, str]] = []  # message index, start of the first line, the line

    @property
    def repeated(self) -> bool:
        return any(len(set(value)) > 1 for value in self.values)


class _Lines:
    """Collects lines by role and key."""

    def __init__(self, roles: Collection[str]) -> None:
        self._roles = roles
        self._known: dict[str, tuple[str, str]] = {}  # a line -> its key and its text, spaces aside
        self._lines: dict[tuple[str, str], _Line] = {}

    def add(self, part: Segment) -> None:
        if part.role not in self._roles:
            return
        found: dict[str, list[tuple[int, str, str]]] = {}
        start = 0
        for line in part.text.split("\n"):
            key, value = self._look_up(line)
            if value:
                found.setdefault(key, []).append((start, line, value))
            start += len(line) + 1
        for key, lines in found.items():
            entry = self._lines.setdefault((part.role, key), _Line())
            values = tuple(value for _, _, value in lines)
            entry.values[values] = entry.values.get(values, 0) + 1
            entry.places.append((part.message_index or 0, *lines[0][:2]))

    def varying(self) -> tuple[VaryingLine, ...]:
        found = [
            _varying_line(role, key, line)
            for (role, key), line in self._lines.items()
            if len(line.values) > 1
        ]
        return tuple(sorted(found, key=lambda line: _order(line.place)))

    def _look_up(self, line: str) -> tuple[str, str]:
        known = self._known.get(line)
        if known is None:
            # a line that differs in its spaces alone is not another value: that is another fault
            known = self._known[line] = (line_key_hash(line), " ".join(line.split()))
        return known


def _varying_line(role: str, key: str, line: _Line) -> VaryingLine:
    """Describe ``line`` by the request in which it stands at the median place."""
    total = len(line.places)
    index, start, text = sorted(line.places, key=lambda place: place[:2])[(total - 1) // 2]
    samples = list(dict.fromkeys(text for _, _, text in line.places))[:_SAMPLES]
    kind = Counter(_value_span(sample, samples)[0] for sample in samples).most_common(1)[0][0]
    _, value_start, value_end = _value_span(text, [text, *samples])
    return VaryingLine(
        key_hash=key,
        place=Place(
            role=role,
            message_index=index,
            char_start=start + value_start,
            char_end=start + value_end,
            value_kind=kind,
        ),
        occurrences=total,
        distinct=len(line.values),
        entropy_bits=_entropy_bits(line.values.values()),
        characters=sum(len(text) for _, _, text in line.places) / total,
        repeated=line.repeated,
    )


def _entropy_bits(counts: Iterable[int]) -> float:
    """Return Shannon's entropy, in bits, of a distribution given by its counts."""
    counts = list(counts)
    total = sum(counts)
    return -sum(count / total * math.log2(count / total) for count in counts)


def _value_span(text: str, others: Sequence[str]) -> tuple[str, int, int]:
    """Return kind, start and end of what differs first between ``text`` and ``others``."""
    others = [other for other in others if other != text]
    start = min((_shared(text, other) for other in others), default=0)
    span = kind_at(text, start)
    if span is not None:
        return span.kind, span.start, span.end
    while start > 0 and text[start - 1].isalnum():
        start -= 1
    tail = min((_shared(text[:start:-1], other[:start:-1]) for other in others), default=0)
    end = max(start, len(text) - tail)
    while end < len(text) and text[end].isalnum():
        end += 1
    return (NAME_LIKE if _is_name_like(text[start:end]) else ValueKind.TEXT), start, end


def _shared(first: str, second: str) -> int:
    """Return how many characters both texts share from their start on, by halving what is left."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_name_like(value: str) -> bool:
    """Whether ``value`` reads like a name: few words, each with a capital or in a script without them."""
    if len(value) > _NAME_CHARACTERS:
        return False
    words = value.split()
    return 0 < len(words) <= _NAME_WORDS and all(
        not word[0].islower() and word.strip(".,'-").replace("'", "").replace("-", "").isalpha()
        for word in words
    )


class _Forms:
    """Counts the forms of texts that are one once made canonical, and notes where two forms first part."""

    def __init__(self, value_kind: str) -> None:
        self._value_kind = value_kind
        self._forms: dict[tuple[str, str], set[int]] = {}
        self._first: dict[tuple[str, str], str] = {}
        self._place: Place | None = None

    def add(
        self, part: Segment, text: str, *, canonical: str, form: str | None = None, offset: int = 0
    ) -> None:
        """Note ``text``, a piece of ``part`` from ``offset`` on; ``form`` is what may vary, or the text."""
        key = (part.role, canonical)
        forms = self._forms.setdefault(key, set())
        form_hash = hash(text if form is None else form)
        if form_hash in forms:
            return
        forms.add(form_hash)
        first = self._first.setdefault(key, text)
        if len(forms) > 1:
            place = self._difference(part, text, first, offset)
            self._place = min(self._place or place, place, key=_order)

    def variation(self) -> Variation | None:
        if self._place is None:
            return None
        varied = [forms for forms in self._forms.values() if len(forms) > 1]
        return Variation(place=self._place, distinct=sum(map(len, varied)), canonical=len(varied))

    def _difference(self, part: Segment, text: str, first: str, offset: int) -> Place:
        start = _shared(text, first)
        tail = _shared(text[start:][::-1], first[start:][::-1])
        return Place(
            role=part.role,
            message_index=part.message_index,
            char_start=offset + start,
            char_end=offset + max(start, len(text) - tail),
            value_kind=self._value_kind,
        )


def _order(place: Place) -> tuple[int, int]:
    return -1 if place.message_index is None else place.message_index, place.char_start


class _Spaces:
    """Finds lines that are the same but for spaces at their end or blank lines behind them.

    These are what ``normalize_whitespace`` makes equal; it leaves an assistant's text and last lines alone.
    A line is known by itself and the one before it: other lines of the text may vary as they like.
    """

    def __init__(self) -> None:
        self.forms = _Forms(ValueKind.WHITESPACE)
        self._seen: set[int] = set()

    def add(self, part: Segment) -> None:
        text_hash = hash(part.text)
        if part.role in _ROLES_OF_OTHERS or text_hash in self._seen:
            return
        self._seen.add(text_hash)
        before = pending = ""
        start = offset = 0
        for line in part.text.split("\n"):
            if not line or line.isspace():
                pending += "\n" + line
            else:
                before = self._note(part, before, pending, start)
                pending, start = line, offset
            offset += len(line) + 1

    def _note(self, part: Segment, before: str, chunk: str, start: int) -> str:
        """Note ``chunk``, a line with the blank lines behind it; return the line without its spaces."""
        bare = chunk.rstrip(" \t\r\n")
        if bare:
            self.forms.add(part, chunk, canonical=f"{before}\n{bare}", offset=start)
        return bare


class _Tools:
    """Tells a changing order of tools from a changing order of keys within them."""

    def __init__(self) -> None:
        self.orders = _Forms(ValueKind.TOOL_ORDER)
        self.keys = _Forms(ValueKind.JSON_KEY_ORDER)

    def add(self, tools: Any, parts: Sequence[Segment]) -> None:
        part = next((part for part in parts if part.role == "tools"), None)
        if part is None or not isinstance(tools, list):
            return
        canonical = [json.dumps(tool, sort_keys=True, ensure_ascii=False) for tool in tools]
        self.orders.add(part, part.text, canonical="\n".join(sorted(canonical)), form="\n".join(canonical))
        offset = 0
        for tool, text in zip(canonical, part.text.split("\n"), strict=True):
            self.keys.add(part, text, canonical=tool, offset=offset)
            offset += len(text) + 1
