"""What a route's prompts have in common and where they vary, learned from the traffic alone.

Variation over requests finds a volatile value; patterns only give it a name. Whether moving it gains anything
is not decided here: the advisor's replay is the judge. Work is linear in the characters of the prompts.
"""

import dataclasses
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from kvscope.model.prompt import Prompt
from kvscope.prompts.segments import CHAT, Segment, segments
from kvscope.prompts.shared_prefix import shared_chars
from kvscope.prompts.values import ValueKind, kind_at, line_key_hash
from kvscope.tuning.forms import ListOrders, Place, Spaces, TextKeys, Tools, Variation, standing

LEADING_ROLES = ("system", "developer")
NAME_LIKE = "name_like"
_SAMPLES = 16  # distinct lines that name a value's kind by vote
_NAME_WORDS = 4
_FEWEST_TENANTS = 2
_COMES_BACK = 2  # messages a tenant (or a value) at least: once is no sign of anything
_COUNTING = 0.9
_EACH = 0.9  # of the requests with a value of their own
_LABEL = re.compile(r"[:=\uff1a]")
_TENANT_WORD = re.compile(
    r"(?i)\b(tenant|client|company|organi[sz]ation|workspace|merchant|brand)\b|租户|客户|公司|企业|组织|商家|品牌"
)
_NAME_CHARACTERS = 48


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
    counting: bool  # the value is a number that goes up from prompt to prompt
    of_tenant: bool  # a tenant's prompts have one value of it, and tenants differ
    scope: (
        str  # what has one value of it: a `tenant`, a `session`, a `request`; else `some` requests share it
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteStructure:
    """How the prompts of one route vary; None where a thing does not vary."""

    prompts: int
    lines: tuple[VaryingLine, ...]  # in the order in which they stand
    tool_order: Variation | None
    tool_keys: Variation | None
    whitespace: Variation | None
    example_order: Variation | None
    document_order: Variation | None
    text_keys: Variation | None
    schema_lists: Variation | None


def learn(prompts: Sequence[Prompt], *, roles: Collection[str] = LEADING_ROLES) -> RouteStructure:
    """Return the structure of ``prompts`` (of one route) as they were sent; lines of ``roles`` only."""
    lines = _Lines(roles)
    spaces = Spaces()
    tools = Tools()
    orders = ListOrders()
    keys = TextKeys()
    for prompt in prompts:
        parts = segments(prompt.api, prompt.sent_body)
        for part in parts:
            lines.add(part, prompt)
            spaces.add(part)
            if prompt.api == CHAT:  # nothing sorts what stands in a completion's text
                orders.add(part)
                keys.add(part)
        tools.add(prompt.sent_body.get("tools"), parts)
    return RouteStructure(
        prompts=len(prompts),
        lines=lines.varying(),
        tool_order=tools.orders.variation(),
        tool_keys=tools.keys.variation(),
        whitespace=spaces.forms.variation(),
        example_order=orders.variation("example"),
        document_order=orders.variation("document"),
        text_keys=keys.forms.variation(),
        schema_lists=tools.lists.variation(),
    )


class _Line:
    """What was seen of the lines under one key in one role."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], int] = {}
        self.places: list[tuple[int, int, str]] = []  # message index, start of the first line, the line
        self.by_tenant: dict[str | None, set[tuple[str, ...]]] = {}
        self.by_session: dict[str | None, set[tuple[str, ...]]] = {}

    @property
    def repeated(self) -> bool:
        return any(len(set(value)) > 1 for value in self.values)

    def of_tenant(self, tenants: Counter[str | None]) -> bool:
        """Whether each tenant has one value, or the line is in all prompts of some tenants and in no others'.

        Where no tenant is known, the line's label must name one, and its values must come back.
        """
        own = self.by_tenant
        total = len(self.places)
        if len(tenants) == 1 and None in tenants:
            label = _LABEL.split(self.places[0][2], maxsplit=1)[0]
            comes_back = total >= _COMES_BACK * len(self.values) > _COMES_BACK
            return comes_back and _TENANT_WORD.search(label) is not None
        if None in own or len(tenants) < _FEWEST_TENANTS or total < _COMES_BACK * len(own):
            return False
        if len(self.values) == 1:  # such as a tenant's own rules
            return len(own) < len(tenants) and total == sum(tenants[tenant] for tenant in own)
        return all(len(values) == 1 for values in own.values())


class _Lines:
    """Collects lines by role and key."""

    def __init__(self, roles: Collection[str]) -> None:
        self._roles = roles
        self._known: dict[str, tuple[str, str]] = {}  # a line -> its key and its text, spaces aside
        self._lines: dict[tuple[str, str], _Line] = {}
        self._tenants: dict[str, Counter[str | None]] = {}  # by role: messages of each tenant

    def add(self, part: Segment, prompt: Prompt) -> None:
        if part.role not in self._roles:
            return
        self._tenants.setdefault(part.role, Counter())[prompt.tenant] += 1
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
            entry.by_tenant.setdefault(prompt.tenant, set()).add(values)
            entry.by_session.setdefault(prompt.session, set()).add(values)

    def varying(self) -> tuple[VaryingLine, ...]:
        """Return the lines whose value varies, and those that only some tenants' prompts have."""
        found = [
            _varying_line(role, key, line, of_tenant=of_tenant)
            for (role, key), line in self._lines.items()
            if (of_tenant := line.of_tenant(self._tenants[role])) or len(line.values) > 1
        ]
        return tuple(sorted(found, key=lambda line: standing(line.place)))

    def _look_up(self, line: str) -> tuple[str, str]:
        known = self._known.get(line)
        if known is None:
            known = self._known[line] = (line_key_hash(line), _value_of(line))
        return known


def _value_of(line: str) -> str:
    """Return what makes a line another one: not its spaces alone, nor the order of keys in JSON.

    These are other faults. In JSON over several lines the last key of an object has no comma.
    """
    bare = " ".join(line.split())
    if bare.startswith("{"):
        try:
            return json.dumps(json.loads(bare), sort_keys=True, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return bare[:-1] if bare.startswith('"') and bare.endswith(",") else bare


def _varying_line(role: str, key: str, line: _Line, *, of_tenant: bool) -> VaryingLine:
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
        counting=kind == ValueKind.NUMBER and _counts_up([text for _, _, text in line.places]),
        of_tenant=of_tenant,
        scope="tenant" if of_tenant else scope_of(line.by_session, total, len(line.values)),
    )


def scope_of(by_session: Mapping[str | None, Collection[object]], total: int, distinct: int) -> str:
    """Return what has one of ``distinct`` values seen ``total`` times, given the values of each session."""
    if distinct == 1:
        return "route"
    several = None not in by_session and total >= _COMES_BACK * len(by_session)
    if several and all(len(values) == 1 for values in by_session.values()):
        return "session"
    return "request" if distinct >= _EACH * total else "some"


def _counts_up(lines: Sequence[str]) -> bool:
    """Whether the first number that differs goes up from line to line, in nine steps of ten."""
    samples = list(dict.fromkeys(lines))[:_SAMPLES]
    numbers = []
    for line in lines:
        _, start, end = _value_span(line, samples)
        if not line[start:end].isdecimal():
            return False
        numbers.append(int(line[start:end]))
    steps = [second - first for first, second in itertools.pairwise(numbers)]
    return len(steps) > 1 and sum(step > 0 for step in steps) >= _COUNTING * len(steps)


def _entropy_bits(counts: Iterable[int]) -> float:
    """Return Shannon's entropy, in bits, of a distribution given by its counts."""
    counts = list(counts)
    total = sum(counts)
    return -sum(count / total * math.log2(count / total) for count in counts)


def _value_span(text: str, others: Sequence[str]) -> tuple[str, int, int]:
    """Return kind, start and end of what differs first between ``text`` and ``others``."""
    others = [other for other in others if other != text]
    start = min((shared_chars(text, other) for other in others), default=0)
    span = kind_at(text, start)
    if span is not None:
        return span.kind, span.start, span.end
    while start > 0 and text[start - 1].isalnum():
        start -= 1
    tail = min((shared_chars(text[:start:-1], other[:start:-1]) for other in others), default=0)
    end = max(start, len(text) - tail)
    while end < len(text) and text[end].isalnum():
        end += 1
    return (NAME_LIKE if _is_name_like(text[start:end]) else ValueKind.TEXT), start, end


def _is_name_like(value: str) -> bool:
    """Whether ``value`` reads like a name: few words, each with a capital or in a script without them."""
    if len(value) > _NAME_CHARACTERS:
        return False
    words = value.split()
    return 0 < len(words) <= _NAME_WORDS and all(
        not word[0].islower() and word.strip(".,'-").replace("'", "").replace("-", "").isalpha()
        for word in words
    )
