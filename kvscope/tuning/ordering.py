"""The order of a declared layout's segments that shares most, by search with replay as the judge.

The start is the exchange rule: were segments independent, descending L p / (1 - p) would be best, where L is
a segment's length and p the share of requests in which it was seen before. Real segments depend on each
other, so this only starts a local search, in which one segment at a time is put elsewhere; from the order in
force, too. Only orders that the layout allows are looked at: roles, ``after``, ``pinned``, and no segment
crosses the place of the conversation. The search goes by stand-in tokens; real ones decide between its best
and the order in force.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.errors import UsageError
from kvscope.model.prompt import Prompt
from kvscope.prompts.layouts.order import arranged, named
from kvscope.prompts.layouts.plan import REQUEST_KEY, Plan, compile_layout
from kvscope.prompts.layouts.schema import (
    CONVERSATION,
    LayoutForm,
    SegmentForm,
    VariantForm,
)
from kvscope.prompts.layouts.template import compile_text
from kvscope.prompts.layouts.variables import compile_variables
from kvscope.prompts.segments import CHAT
from kvscope.tuning.judge import Encode, stand_ins

Order = tuple[str, ...]
Score = Callable[[Order], float]
"""From an order to what it is worth, more being better."""

VARIANT = "reordered"
_STAND_IN_CHARACTERS = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reordering:
    """The best order found. Hit rates are hit ÷ prompt tokens, from an empty cache, of ``requests``."""

    order: Order
    before: Order
    hit_rate_before: float
    hit_rate_after: float
    requests: int
    judged: int  # orders that were replayed


def best_order(
    form: LayoutForm,
    prompts: Sequence[Prompt],
    *,
    encode: Encode,
    block_size: int,
    num_blocks: int | None,
) -> Reordering:
    """Return the best order found for ``form`` and the requests of ``prompts`` that name it.

    Raises ``UsageError`` where no request names the layout, or one cannot be rendered.
    """
    sent = [each for each in prompts if each.api == CHAT and _variables(each, form.layout) is not None]
    if not sent:
        raise UsageError(
            f"no request names layout {form.layout}: bodies need kvscope.layout and kvscope.variables"
        )
    segments = named(form)
    quick = _Judge(form, sent, stand_ins(_STAND_IN_CHARACTERS), block_size, num_blocks)
    before = tuple(segment.name for segment in segments)
    lengths, repeats = _lengths_and_repeats(form, segments, sent)

    def allowed(order: Order) -> bool:
        return is_allowed(segments, order)

    start = by_exchange(before, lengths, repeats, allowed)
    found, judged = climbed((before, start), allowed, quick.hit_rate)
    exact = _Judge(form, sent, encode, block_size, num_blocks)
    rates = {order: exact.hit_rate(order) for order in (before, found)}
    best = max(rates, key=lambda order: (rates[order], order == before))
    return Reordering(
        order=best,
        before=before,
        hit_rate_before=rates[before],
        hit_rate_after=rates[best],
        requests=len(sent),
        judged=judged,
    )


def is_allowed(segments: Sequence[SegmentForm], order: Order) -> bool:
    """Whether the layout allows ``order``, and each segment stays on its side of the conversation."""
    before = [segment.name for segment in segments]
    place = next(at for at, segment in enumerate(segments) if segment.role == CONVERSATION)
    wall = order.index(before[place])
    if set(order[:wall]) != set(before[:place]):
        return False
    try:
        arranged(segments, VariantForm(order=list(order)), VARIANT)
    except UsageError:
        return False
    return True


def by_exchange(
    names: Order,
    lengths: Mapping[str, float],
    repeats: Mapping[str, float],
    allowed: Callable[[Order], bool],
) -> Order:
    """Return an allowed order near descending L p / (1 - p): neighbours change places where they may."""

    def worth(name: str) -> float:
        share = repeats[name]
        return math.inf if share >= 1 else lengths[name] * share / (1 - share)

    order = list(names)
    for _ in names:
        moved = False
        for at in range(len(order) - 1):
            if worth(order[at + 1]) > worth(order[at]):
                swapped = [*order[:at], order[at + 1], order[at], *order[at + 2 :]]
                if allowed(tuple(swapped)):
                    order, moved = swapped, True
        if not moved:
            break
    return tuple(order)


def climbed(starts: Sequence[Order], allowed: Callable[[Order], bool], score: Score) -> tuple[Order, int]:
    """Return the best order that local search finds from ``starts``, and how many orders it scored.

    A step puts one segment elsewhere or swaps two; the best step is taken, as long as one gains.
    """
    known: dict[Order, float] = {}

    def scored(order: Order) -> float:
        if order not in known:
            known[order] = score(order)
        return known[order]

    best = starts[0]
    for start in dict.fromkeys(starts):
        here = start
        while True:
            step = max(filter(allowed, _steps(here)), key=scored, default=here)
            if scored(step) <= scored(here):
                break
            here = step
        if scored(here) > scored(best):
            best = here
    return best, len(known)


def best_of_all(names: Order, allowed: Callable[[Order], bool], score: Score) -> Order:
    """Return the best order of all; for a few segments only."""
    return max(filter(allowed, itertools.permutations(names)), key=score)


def _steps(order: Order) -> Iterator[Order]:
    for at, name in enumerate(order):
        rest = (*order[:at], *order[at + 1 :])
        for to in range(len(order)):
            if to not in (at, at - 1):
                yield (*rest[:to], name, *rest[to:])
    for first, second in itertools.combinations(range(len(order)), 2):
        if second - first > 1:
            swapped = list(order)
            swapped[first], swapped[second] = order[second], order[first]
            yield tuple(swapped)


def _lengths_and_repeats(
    form: LayoutForm, segments: Sequence[SegmentForm], prompts: Sequence[Prompt]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return each segment's mean characters, and the share of requests in which it was seen before."""
    variables = compile_variables(form.variables)
    given = [variables.checked(_variables(prompt, form.layout) or {}) for prompt in prompts]
    lengths: dict[str, float] = {}
    repeats: dict[str, float] = {}
    for segment in segments:
        text, _ = compile_text(segment.name, segment.text or "", form.variables)
        said = [text if isinstance(text, str) else text.render(values) for values in given]
        lengths[segment.name] = sum(map(len, said)) / len(said)
        # the first sight of a constant text is no sign that it varies
        fresh = len(set(said)) - 1
        repeats[segment.name] = 1 - fresh / max(1, len(said) - 1)
    return lengths, repeats


class _Judge:
    """Replays the requests of a layout under any order."""

    def __init__(
        self,
        form: LayoutForm,
        prompts: Sequence[Prompt],
        encode: Encode,
        block_size: int,
        num_blocks: int | None,
    ) -> None:
        self._form = form
        self._prompts = prompts
        self._encode = encode
        self._block_size = block_size
        self._num_blocks = num_blocks

    def hit_rate(self, order: Order) -> float:
        """Return hit ÷ prompt tokens of all requests; each engine has a cache of its own."""
        plan = _plan(self._form, order)
        by_engine: dict[str, list[ReplayRequest]] = {}
        for prompt in self._prompts:
            values = _variables(prompt, self._form.layout) or {}
            body = plan.render(dict(prompt.body), values, VARIANT)
            by_engine.setdefault(prompt.engine, []).append(
                ReplayRequest(
                    request_id=prompt.request_id,
                    tokens=list(self._encode(CHAT, body)),
                    salt=prompt.salt,
                )
            )
        hits = total = 0
        for sent in by_engine.values():
            done = replay(iter(sent), block_size=self._block_size, num_blocks=self._num_blocks)
            hits += sum(each.hit_tokens for each in done.per_request)
            total += sum(len(each.tokens) for each in sent)
        return hits / total if total else 0.0


def _plan(form: LayoutForm, order: Order) -> Plan:
    return compile_layout(msgspec.structs.replace(form, variants={VARIANT: VariantForm(order=list(order))}))


def _variables(prompt: Prompt, layout: str) -> Mapping[str, Any] | None:
    """Return the variables that a request gives to ``layout``, None where it names another or none."""
    asked = prompt.body.get(REQUEST_KEY)
    if not isinstance(asked, dict) or asked.get("layout") != layout:
        return None
    given = asked.get("variables", {})
    return given if isinstance(given, dict) else None
