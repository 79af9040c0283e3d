"""Labelled logs: one or several faults planted in a clean log, and clean logs with what looks like one."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from _faults_draft import FAMILIES, Draft, drafts
from _faults_kinds import FAULTS, Fault
from _faults_texts import Texts

from kvscope.model.prompt import Prompt

CLEAN = "clean"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A planted fault. ``chars`` is where its line stands in the system message, over all requests."""

    fault: Fault
    chars: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Requests in order of arrival with what was planted in them; ``later`` are those that came next."""

    name: str
    prompts: tuple[Prompt, ...]
    later: tuple[Prompt, ...]
    labels: tuple[Label, ...]
    blocks: int | None = None


def single(fault: Fault, family: str, *, seed: str, texts: Texts, count: int) -> Log:
    """Return a log with one fault."""
    return _log((fault,), family, seed=seed, texts=texts, count=count)


def single_logs(*, seeds: Sequence[str], texts: Texts, count: int) -> Iterator[Log]:
    """Yield for each fault and seed one log, the families in turn."""
    for fault in FAULTS:
        for at, seed in enumerate(seeds):
            family = fault.families[at % len(fault.families)]
            yield single(fault, family, seed=seed, texts=texts, count=count)


def mixed_logs(*, seeds: Sequence[str], texts: Texts, count: int) -> Iterator[Log]:
    """Yield logs with two and three faults that can stand together."""
    for at, seed in enumerate(seeds):
        family = FAMILIES[at % len(FAMILIES)]
        rng = random.Random(f"mix {seed}")
        free = [fault for fault in FAULTS if family in fault.families and not fault.alone]
        rng.shuffle(free)
        chosen: list[Fault] = []
        for fault in free:
            if len(chosen) < 2 + at // len(FAMILIES) % 2 and all(_apart(fault, each) for each in chosen):
                chosen.append(fault)
        yield _log(tuple(chosen), family, seed=seed, texts=texts, count=count)


def _apart(first: Fault, second: Fault) -> bool:
    """Whether neither hides what the other is: schemas shuffled as a whole, whitespace within examples."""
    if {first.name, second.name} == {"tool_keys", "schema_lists"}:
        return False
    return {first.name, second.name} != {"tenant_first", "fine_salts"}  # each brings tenants of its own


def _log(faults: tuple[Fault, ...], family: str, *, seed: str, texts: Texts, count: int) -> Log:
    rng = random.Random(f"{seed} {family} {[fault.name for fault in faults]}")
    made = drafts(family, rng, texts, count=2 * count)
    labels = []
    for fault in faults:
        before = [len(draft.head) for draft in made]
        fault.plant(made, rng, texts)
        grown = made[0].head and len(made[0].head) > before[0]
        labels.append(Label(fault=fault, chars=_span(made, before) if grown else None))
    blocks = next((fault.blocks for fault in faults if fault.blocks), None)
    name = f"{family}/{'+'.join(fault.name for fault in faults)}/{seed}"
    return _made(name, made, labels, blocks)


def _span(made: Sequence[Draft], places: Sequence[int]) -> tuple[int, int]:
    """Return where the head's line at a place begins first and ends last."""
    starts = [sum(len(line) + 1 for line in one.head[:at]) for one, at in zip(made, places, strict=True)]
    ends = [start + len(one.head[at]) for one, at, start in zip(made, places, starts, strict=True)]
    return min(starts), max(ends)


def _made(name: str, made: Sequence[Draft], labels: Sequence[Label], blocks: int | None) -> Log:
    prompts = [draft.prompt() for draft in made]
    half = len(prompts) // 2
    return Log(
        name=name,
        prompts=tuple(prompts[:half]),
        later=tuple(prompts[half:]),
        labels=tuple(labels),
        blocks=blocks,
    )


def clean_logs(*, seeds: Sequence[str], texts: Texts, count: int) -> Iterator[Log]:
    """Yield logs without a fault: the families as they are, and each decoy."""
    for (at, seed), (name, decoy) in itertools.product(enumerate(seeds), _DECOYS.items()):
        family = FAMILIES[(at + len(name)) % len(FAMILIES)]
        rng = random.Random(f"clean {seed} {name}")
        made = drafts(family, rng, texts, count=2 * count)
        decoy(made, rng, texts)
        yield _made(f"{CLEAN}/{name}/{family}/{seed}", made, (), None)


def _as_they_are(_made: list[Draft], _rng: random.Random, _texts: Texts) -> None:
    pass


def _fixed_date(made: list[Draft], _rng: random.Random, _texts: Texts) -> None:
    for draft in made:
        draft.head.append("Knowledge until: 2026-03-01")


def _clock_in_question(made: list[Draft], _rng: random.Random, _texts: Texts) -> None:
    for draft in made:
        draft.question += f"\nCurrent time: {draft.at:.0f}"


def _clock_last(made: list[Draft], rng: random.Random, texts: Texts) -> None:
    more = rng.sample(texts.sentences, 40)  # so long that the last block is less than a gain worth telling
    for draft in made:
        draft.rules = [*draft.rules, *more, f"Current time: {draft.at:.0f}"]
        draft.documents, draft.history = [], []  # nothing behind it comes back


def _own_documents(made: list[Draft], rng: random.Random, texts: Texts) -> None:
    for draft in made:
        draft.documents = [f"{rng.randrange(10**9)} {text}" for text in rng.sample(texts.documents, 3)]
        draft.history = []  # without its documents it would be one that is written anew


def _tenants_alike(made: list[Draft], rng: random.Random, _texts: Texts) -> None:
    for draft in made:
        draft.tenant = draft.salt = f"t{rng.randrange(3)}"


def _two_wordings(made: list[Draft], rng: random.Random, texts: Texts) -> None:
    other = rng.choice(texts.sentences)
    for draft in made:
        if int(draft.session[1:]) % 2:  # a conversation keeps to its wording, or its history would be lost
            draft.rules = [*draft.rules[:-1], other]


def _nothing_comes_back(made: list[Draft], rng: random.Random, texts: Texts) -> None:
    for draft in made:
        draft.rules = rng.sample(texts.sentences, min(len(texts.sentences), 20))
        draft.tools, draft.documents, draft.history = [], [], []


_DECOYS: dict[str, Callable[[list[Draft], random.Random, Texts], None]] = {
    "as_they_are": _as_they_are,
    "fixed_date": _fixed_date,
    "clock_in_question": _clock_in_question,
    "clock_last": _clock_last,
    "own_documents": _own_documents,
    "tenants_alike": _tenants_alike,
    "two_wordings": _two_wordings,
    "nothing_comes_back": _nothing_comes_back,
}
