"""Texts that differ in order or form alone: what would be one text, and where two forms of it part."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from kvscope.prompts.segments import Segment
from kvscope.prompts.shared_prefix import shared_chars
from kvscope.prompts.transforms.blocks import block_lists
from kvscope.prompts.transforms.json_text import json_in
from kvscope.prompts.transforms.tools import with_sorted_lists
from kvscope.prompts.values import ValueKind

_OTHERS = ("assistant", "tools")
_MOST_PAIRED = 24  # items of one list whose order is compared with that in other lists
_MOST_PAIRS = 100_000


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
class Variation:
    """Texts that differ only in order or form: ``distinct`` forms of what would be ``canonical`` texts."""

    place: Place
    distinct: int
    canonical: int


def standing(place: Place) -> tuple[int, int]:
    """Order places as they stand in the prompt: tools come first in chat templates."""
    return -1 if place.message_index is None else place.message_index, place.char_start


class Forms:
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
            self._place = min(self._place or place, place, key=standing)

    def variation(self) -> Variation | None:
        """Return how the texts vary, None where each has one form."""
        if self._place is None:
            return None
        varied = [forms for forms in self._forms.values() if len(forms) > 1]
        return Variation(place=self._place, distinct=sum(map(len, varied)), canonical=len(varied))

    def _difference(self, part: Segment, text: str, first: str, offset: int) -> Place:
        start = shared_chars(text, first)
        tail = shared_chars(text[start:][::-1], first[start:][::-1])
        return Place(
            role=part.role,
            message_index=part.message_index,
            char_start=offset + start,
            char_end=offset + max(start, len(text) - tail),
            value_kind=self._value_kind,
        )


class _Texts:
    """Knows which texts were looked at; an assistant's text and tools are not for those who ask."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def is_new(self, part: Segment) -> bool:
        """Return whether a text is to be looked at, which the next one like it is not."""
        text_hash = hash(part.text)
        if part.role in _OTHERS or text_hash in self._seen:
            return False
        self._seen.add(text_hash)
        return True


class Spaces:
    """Finds lines that are the same but for spaces at their end or blank lines behind them.

    These are what ``normalize_whitespace`` makes equal; it leaves an assistant's text and last lines alone.
    A line is known by itself and the one before it: other lines of the text may vary as they like.
    """

    def __init__(self) -> None:
        self.forms = Forms(ValueKind.WHITESPACE)
        self._texts = _Texts()

    def add(self, part: Segment) -> None:
        """Note the lines of one text."""
        if not self._texts.is_new(part):
            return
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


class ListOrders:
    """Finds lists of examples or documents whose items come now in one order, now in another.

    A list need not hold the same items each time: two of them in both orders are enough.
    """

    def __init__(self) -> None:
        self._orders: dict[str, set[int]] = {}
        self._sets: dict[str, set[int]] = {}
        self._pairs: dict[str, set[tuple[int, int]]] = {}
        self._first: dict[str, Place] = {}  # of the first list that stands in another order than one before
        self._texts = _Texts()

    def add(self, part: Segment) -> None:
        """Note the lists in one text."""
        if not self._texts.is_new(part):
            return
        for kind, start, end, items in block_lists(part.text):
            hashes = tuple(map(hash, items))
            self._orders.setdefault(kind, set()).add(hash(hashes))
            self._sets.setdefault(kind, set()).add(hash(tuple(sorted(hashes))))
            pairs = self._pairs.setdefault(kind, set())
            found = set(_pairs(hashes[:_MOST_PAIRED]))
            if any((second, first) in pairs for first, second in found):
                place = Place(
                    role=part.role,
                    message_index=part.message_index,
                    char_start=start,
                    char_end=end,
                    value_kind=f"{kind}_order",
                )
                self._first[kind] = min(self._first.get(kind, place), place, key=standing)
            if len(pairs) < _MOST_PAIRS:
                pairs |= found

    def variation(self, kind: str) -> Variation | None:
        """Return how lists of one kind vary, None where they do not."""
        place = self._first.get(kind)
        if place is None:
            return None
        return Variation(place=place, distinct=len(self._orders[kind]), canonical=len(self._sets[kind]))


def _pairs(hashes: Sequence[int]) -> Iterator[tuple[int, int]]:
    for at, first in enumerate(hashes):
        for second in hashes[at + 1 :]:
            if first != second:
                yield first, second


class TextKeys:
    """Finds JSON in texts whose keys come in changing order; its values may vary as they like."""

    def __init__(self) -> None:
        self.forms = Forms(ValueKind.JSON_KEY_ORDER)
        self._texts = _Texts()

    def add(self, part: Segment) -> None:
        """Note the JSON in one text."""
        if not self._texts.is_new(part):
            return
        for start, end in json_in(part.text):
            text = part.text[start:end]
            try:
                keys = _keys(json.loads(text))
            except (ValueError, RecursionError):
                continue
            self.forms.add(part, text, canonical=_written(keys), form=json.dumps(keys), offset=start)


def _keys(value: Any) -> Any:
    """Return the keys of an object, and of those in it, without values."""
    if isinstance(value, dict):
        return {key: _keys(item) for key, item in value.items()}
    return [_keys(item) for item in value if isinstance(item, dict)] if isinstance(value, list) else None


class Tools:
    """Tells a changing order of tools from a changing order of keys within them."""

    def __init__(self) -> None:
        self.orders = Forms(ValueKind.TOOL_ORDER)
        self.keys = Forms(ValueKind.JSON_KEY_ORDER)
        self.lists = Forms(ValueKind.LIST_ORDER)

    def add(self, tools: Any, parts: Sequence[Segment]) -> None:
        """Note the tools of one request; ``parts`` are its texts."""
        part = next((part for part in parts if part.role == "tools"), None)
        if part is None or not isinstance(tools, list):
            return
        canonical = [_written(with_sorted_lists(tool)) for tool in tools]
        self.orders.add(part, part.text, canonical="\n".join(sorted(canonical)), form="\n".join(canonical))
        offset = 0
        for tool, text in zip(canonical, part.text.split("\n"), strict=True):
            # a list in another order is a fault of its own, and no other order of keys
            keys = json.dumps(with_sorted_lists(json.loads(text)), ensure_ascii=False)
            self.keys.add(part, text, canonical=tool, form=keys, offset=offset)
            self.lists.add(part, text, canonical=tool, form=_written(json.loads(text)), offset=offset)
            offset += len(text) + 1


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
