"""Asks a server recorded prompts as they are and changed, and counts what became of the answers.

Each prompt is asked as it is, as it is once more, and changed. A server's answers at temperature 0 need not
repeat (batches and cached blocks change how sums are rounded), so the second answer tells how much differs
without any change: only what goes beyond that is the change's.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from scipy.stats import binomtest

from kvscope.errors import UsageError
from kvscope.model.prompt import Prompt, TransformSpec
from kvscope.prompts.transforms import apply_transforms
from kvscope.tuning.quality.checks import Check
from kvscope.tuning.quality.endpoint import Endpoint
from kvscope.tuning.quality.judging import Judgement, judge

_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many of how many, with the Wilson interval (95 %) of the share; None of nothing."""

    count: int
    of: int
    share: float | None
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """How many answers hold against one check, as prompts are and changed; ``lost`` held before only."""

    name: str
    before: int
    after: int
    lost: int
    gained: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The answers to one prompt: texts, kept in memory; shown only where a person asks."""

    request_id: str
    before: str
    again: str
    after: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What became of the answers.

    ``same``: answers that the change left as they were; ``noise``: those that were the same when nothing was
    changed. ``common_start`` is the mean share of an answer's characters before the first difference.
    ``untouched``: prompts that the change leaves as they are, not asked. ``refused``: (request id, reason).
    """

    prompts: int
    untouched: int
    same: Share
    noise: Share
    common_start: float | None
    checks: tuple[CheckRow, ...]
    judgements: dict[str, int] | None
    refused: tuple[tuple[str, str], ...]
    pairs: tuple[Pair, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who is asked, how much, and by what answers are measured. ``watch`` hears of prompts done, of all."""

    server: Endpoint
    last: int
    max_tokens: int
    checks: Sequence[Check]
    judge: Endpoint | None
    watch: Callable[[int, int], None]


def compare(prompts: Sequence[Prompt], specs: Sequence[TransformSpec], asked: Asked) -> Comparison:
    """Ask the newest ``asked.last`` of ``prompts`` that ``specs`` change.

    Raises ``UsageError`` where the change leaves all prompts as they are, and where the server refuses all;
    ``UnreachableError`` where a server does not answer.
    """
    changed = [
        (prompt, body)
        for prompt in prompts
        if (body := apply_transforms(specs, prompt.api, dict(prompt.body))) != prompt.body
    ]
    if not changed:
        raise UsageError("the change leaves every prompt of the route as it is: nothing to compare")
    chosen = changed[-asked.last :]
    pairs: list[Pair] = []
    refused: list[tuple[str, str]] = []
    judgements: Counter[Judgement] = Counter()
    for number, (prompt, body) in enumerate(chosen):
        asked.watch(number, len(chosen))
        try:
            before, again = (
                asked.server.answer(prompt.api, prompt.body, max_tokens=asked.max_tokens) for _ in range(2)
            )
            after = asked.server.answer(prompt.api, body, max_tokens=asked.max_tokens)
        except UsageError as error:
            refused.append((prompt.request_id, str(error)))
            continue
        pairs.append(Pair(request_id=prompt.request_id, before=before, again=again, after=after))
        if asked.judge is not None:
            found = Judgement.SAME
            if before != after:
                found = judge(asked.judge, prompt.api, prompt.body, before=before, after=after)
            judgements[found] += 1
    if not pairs:
        raise UsageError(f"the server refused every prompt; the first: {refused[0][1]}")
    return Comparison(
        prompts=len(pairs),
        untouched=len(prompts) - len(changed),
        same=_share(sum(pair.before == pair.after for pair in pairs), len(pairs)),
        noise=_share(sum(pair.before == pair.again for pair in pairs), len(pairs)),
        common_start=sum(_common(pair.before, pair.after) for pair in pairs) / len(pairs),
        checks=tuple(_row(check, pairs) for check in asked.checks),
        judgements=None if asked.judge is None else {each.value: judgements[each] for each in Judgement},
        refused=tuple(refused),
        pairs=tuple(pairs),
    )


def _share(count: int, of: int) -> Share:
    interval = binomtest(count, of).proportion_ci(_CONFIDENCE, method="wilson")
    return Share(count=count, of=of, share=count / of, low=float(interval.low), high=float(interval.high))


def _common(before: str, after: str) -> float:
    equal = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    )
    longest = max(len(before), len(after))
    return equal / longest if longest else 1.0


def _row(check: Check, pairs: Sequence[Pair]) -> CheckRow:
    held = [(check.holds(pair.before), check.holds(pair.after)) for pair in pairs]
    return CheckRow(
        name=check.name,
        before=sum(before for before, _ in held),
        after=sum(after for _, after in held),
        lost=sum(before and not after for before, after in held),
        gained=sum(after and not before for before, after in held),
    )
