"""One suggestion in full, and why a route has none: what ``kvscope suggest`` adds to its list."""

from collections.abc import Iterable, Iterator, Mapping

from kvscope.agent.asking import LastLook, last_look
from kvscope.errors import UnreachableError
from kvscope.model.advice import Suggestion
from kvscope.reports import evidence, kinds, words
from kvscope.reports.changes import harms_of, steps_of


def detail_lines(item: Suggestion, cost_saved_per_day: str | None) -> list[str]:
    """Return a heading and a line for each thing to know: the change, its gain, its evidence, its risk."""
    rows = list(_labelled(item, cost_saved_per_day))
    width = max(len(label) for label, _ in rows)
    return [f"{kinds.title(item.kind)}, route {item.route}"] + [
        f"  {label:{width}}  {text}" for label, text in rows
    ]


def _labelled(item: Suggestion, cost_saved_per_day: str | None) -> Iterator[tuple[str, str]]:
    yield "Suggestion", f"{item.id}, kind {item.kind}"
    for step in steps_of(item):
        yield "To do", step
    yield "By", _by(item)
    before, after = words.percent(item.hit_rate_before), words.percent(item.hit_rate_after)
    yield "Hit rate by replay", f"{before} to {after}"
    yield "TTFT change", evidence.ttft_change(item.ttft_change_seconds, item.evidence)
    yield "Tokens saved a day", words.rough(item.tokens_saved_per_day)
    yield "GPU time saved a day", words.gpu_seconds(evidence.gpu_seconds(item.evidence))
    if cost_saved_per_day is not None:
        yield "Cost saved a day", cost_saved_per_day
    yield from evidence.lines(item.evidence)
    yield "Risk", item.risk.value
    for line in harms_of(item):
        yield "What could go wrong", line
    yield "Found", words.moment(item.created_at)


def _by(item: Suggestion) -> str:
    if item.salts_first:
        return "a person first (salts); once that is sent, the gateway, by an experiment"
    return "the gateway, by an experiment" if item.transforms else "a person: no transform does this"


def known_look(agent: str) -> LastLook:
    """Return what the agent's advisor last said; where no agent answers, that is the reason."""
    try:
        return last_look(agent)
    except UnreachableError as error:
        because = f"the store holds none, and why only a running agent knows: {error}"
        return LastLook(looked_at=None, none_because=because, unchanged={})


def reasons_of(look: LastLook, found: Iterable[Suggestion], route: str | None) -> Mapping[str, str]:
    """Return by route why it has no suggestion, of ``route`` alone where it is given."""
    suggested = {item.route for item in found}
    return {
        name: reason
        for name, reason in look.unchanged.items()
        if name not in suggested and route in (None, name)
    }
