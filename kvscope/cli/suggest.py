"""``kvscope suggest``: ranked suggestions, from the store or from log files alone."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvscope.agent.asking import DEFAULT_AGENT
from kvscope.cli.common import db_option, emit_json, emit_table, json_option, opened, percent
from kvscope.cli.logs import show_skipped, skipped_json
from kvscope.cli.prefill import prefill_of, prefill_option
from kvscope.cli.progress import reading
from kvscope.cli.suggested import detail_lines, known_look, reasons_of
from kvscope.cli.tokenizers import tokenizer_option
from kvscope.clock import system_clock
from kvscope.errors import UsageError
from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Risk
from kvscope.reports import evidence, kinds, words
from kvscope.reports.changes import harms_of, steps_of
from kvscope.tuning.effects import cost_saved_per_day

if TYPE_CHECKING:
    from kvscope.tuning.log_advice import LogAdvice, LogOptions


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Price:
    """What a GPU-hour costs, None where nobody said, and how many GPUs work on one prompt."""

    gpu_hour: float | None
    gpus: int

    def saved(self, item: Suggestion) -> float | None:
        if self.gpu_hour is None:
            return None
        return cost_saved_per_day(item, price_per_gpu_hour=self.gpu_hour, gpus=self.gpus)

    def told(self, item: Suggestion) -> str:
        """Return the cost saved as people write money; a dash where nothing tells it."""
        saved = self.saved(item)
        return words.UNKNOWN if saved is None else f"{saved:,.2f}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    """Which suggestions to show; None is no matter."""

    route: str | None
    id: str | None

    def of(self, found: Iterable[Suggestion]) -> list[Suggestion]:
        """Return those that are wanted; raises ``UsageError`` where none has the id."""
        chosen = [item for item in found if self.route in (None, item.route) and self.id in (None, item.id)]
        if self.id is not None and not chosen:
            raise UsageError(f"there is no suggestion {self.id!r}; `kvscope suggest` lists them")
        return chosen


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, allow_dash=True))
@db_option
@json_option
@tokenizer_option("For FILES; text without one is estimated.")
@click.option(
    "--block-size", type=click.IntRange(min=1), help="Tokens a block (for FILES). Default: a trace's own, 16."
)
@click.option("--blocks", type=click.IntRange(min=2), help="Blocks of the cache (for FILES); none: no limit.")
@prefill_option
@click.option(
    "--gpu-hour",
    type=click.FloatRange(min=0),
    metavar="PRICE",
    help="Price of a GPU-hour: shows what is saved.",
)
@click.option(
    "--gpus",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="GPUs that share a prompt's work.",
)
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 1),
    metavar="RATE",
    help="Exit code 1 if FILES' hit rate is less.",
)
@click.option("--route", help="Only this route.")
@click.option("--structure", is_flag=True, help="Show what FILES' prompts consist of, and what varies.")
@click.option(
    "--id", "chosen", metavar="ID", help="Show this suggestion alone, with all that is known of it."
)
@click.option("--dismiss", metavar="ID", help="Dismiss a suggestion of the store instead of listing.")
@click.option(
    "--agent",
    metavar="URL",
    default=DEFAULT_AGENT,
    show_default=True,
    help="The agent's admin port: it knows why a route gets no suggestion.",
)
def suggest(
    files: tuple[Path, ...],
    db: str | None,
    as_json: bool,
    tokenizer: str | None,
    block_size: int | None,
    blocks: int | None,
    prefill_rate: float | None,
    gpu_hour: float | None,
    gpus: int,
    fail_under: float | None,
    route: str | None,
    structure: bool,
    chosen: str | None,
    dismiss: str | None,
    agent: str,
) -> int:
    """Show ranked suggestions: of the running agent (no FILES), or of request logs (FILES).

    FILES are logs and traces as of kvscope replay; - is standard input. From hashes without text it tells
    what more memory and another routing would bring.
    """
    price = _Price(gpu_hour=gpu_hour, gpus=gpus)
    if structure:
        _show_structure(files, route, as_json=as_json)
        return 0
    if not files:
        if fail_under is not None:
            raise UsageError("--fail-under is about FILES: name the logs")
        if dismiss is not None:
            _dismiss(db, dismiss)
        else:
            _of_store(db, agent, _Wanted(route, chosen), price, as_json=as_json)
        return 0
    if dismiss is not None:
        raise UsageError("--dismiss is of the store's suggestions: leave out FILES")
    from kvscope.prompts.named import named_tokenizer
    from kvscope.tuning.log_advice import LogOptions

    options = LogOptions(
        tokenizer=None if tokenizer is None else named_tokenizer(tokenizer),
        block_size=block_size,
        num_blocks=blocks,
        ttft=prefill_of(prefill_rate, db),
    )
    return _of_files(files, options, _Wanted(route, chosen), fail_under, price, as_json=as_json)


def _dismiss(db: str | None, suggestion_id: str) -> None:
    with opened(db) as store:
        store.advice.dismiss(suggestion_id)
    click.echo(f"dismissed {suggestion_id}")


def _of_store(db: str | None, agent: str, wanted: _Wanted, price: _Price, *, as_json: bool) -> None:
    with opened(db) as store:
        found = wanted.of(store.advice.suggestions())
    look = known_look(agent)
    none_because = None if found else look.none_because or "none for that route"
    reasons = reasons_of(look, found, wanted.route)
    if as_json:
        emit_json(
            {
                "suggestions": _json(found, price),
                "none_because": none_because,
                "unchanged": reasons,
                "looked_at": look.looked_at,
                "skipped": [],
            }
        )
        return
    _show(found, none_because, price, detail=wanted.id is not None)
    if wanted.id is None:
        for name, reason in reasons.items():
            click.echo(f"{name}: {reason}")


def _of_files(
    files: tuple[Path, ...],
    options: "LogOptions",
    wanted: _Wanted,
    fail_under: float | None,
    price: _Price,
    *,
    as_json: bool,
) -> int:
    from kvscope.tuning.log_advice import advise_log, estimated

    with reading(files, "replaying") as watch:
        found = advise_log(files, dataclasses.replace(options, watch=watch), now=system_clock())
    if fail_under is not None and estimated(found.replay, options):
        raise UsageError("--fail-under compares exact figures: name the model's tokenizer with --tokenizer")
    holds = None if fail_under is None else found.check(fail_under)
    suggestions = wanted.of(found.advice.suggestions)
    if as_json:
        emit_json(_document(found, suggestions, price) | {"fail_under": fail_under, "holds": holds})
    else:
        _show(
            suggestions,
            found.advice.none_because or "none for that route",
            price,
            detail=wanted.id is not None,
        )
        if any(item.transforms and item.risk is not Risk.SAFE for item in suggestions):
            click.echo("what they do to answers: `kvscope answers FILES --server URL --from THIS.json`")
        _show_log(found)
    if holds is False:
        click.echo(f"the hit rate {percent(found.replay.hit_rate)} is under {percent(fail_under)}", err=True)
    return 1 if holds is False else 0


def _document(found: "LogAdvice", suggestions: list[Suggestion], price: _Price) -> dict[str, Any]:
    replay = found.replay
    return {
        "suggestions": _json(suggestions, price),
        "none_because": found.advice.none_because,
        "unchanged": found.advice.unchanged,
        "hit_rate": replay.hit_rate,
        "requests": replay.requests,
        "exactness": replay.exactness,
        "notes": replay.notes,
        "without_text": found.without_text,
        "skipped": skipped_json(replay.skipped),
    }


def _json(suggestions: list[Suggestion], price: _Price) -> list[dict[str, Any]]:
    return [
        {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
        | {
            "title": kinds.title(item.kind),
            "steps": steps_of(item),
            "could_go_wrong": harms_of(item),
            "cost_saved_per_day": price.saved(item),
        }
        for item in suggestions
    ]


_COLUMNS = (
    "id",
    "route",
    "kind",
    "risk",
    "hit rate now",
    "predicted",
    "TTFT change",
    "tokens saved a day",
    "GPU time saved a day",
)


def _show(
    suggestions: list[Suggestion], none_because: str | None, price: _Price, *, detail: bool = False
) -> None:
    if detail:
        for item in suggestions:
            cost = price.told(item) if price.gpu_hour is not None else None
            click.echo("\n".join(detail_lines(item, cost)))
        return
    columns: tuple[str, ...] = _COLUMNS
    rows: list[tuple[Any, ...]] = [_row(item) for item in suggestions]
    if price.gpu_hour is not None:
        columns = (*columns, "cost saved a day")
        rows = [(*row, price.told(item)) for row, item in zip(rows, suggestions, strict=True)]
    emit_table("Suggestions", columns, rows, empty=f"no suggestion: {none_because}")
    for item in suggestions:
        click.echo(f"{item.id}: {' '.join(steps_of(item))}")
    if suggestions:
        click.echo("--id ID shows what one of them rests on and what could go wrong")


def _row(item: Suggestion) -> tuple[Any, ...]:
    return (
        item.id,
        item.route,
        item.kind,
        item.risk.value,
        percent(item.hit_rate_before),
        percent(item.hit_rate_after),
        evidence.ttft_change(item.ttft_change_seconds, item.evidence),
        words.rough(item.tokens_saved_per_day),
        words.gpu_seconds(evidence.gpu_seconds(item.evidence)),
    )


def _show_log(found: "LogAdvice") -> None:
    replay = found.replay
    click.echo(f"hit rate of {replay.requests:,} requests: {percent(replay.hit_rate)} ({replay.exactness})")
    for note in replay.notes:
        click.echo(f"note: {note}")
    for route, reason in found.advice.unchanged.items():
        click.echo(f"{route}: {reason}")
    if found.without_text is not None:
        emit_table(
            "Memory",
            ("blocks", "hit rate"),
            [(point.blocks, percent(point.hit_rate)) for point in found.without_text.capacity],
            empty="no capacity can be told",
        )
        emit_table(
            "Routing",
            ("routing", "replicas", "hit rate", "busiest over mean"),
            [
                (row.routing, row.replicas, percent(row.hit_rate), row.imbalance)
                for row in found.without_text.routing
            ],
            empty="no routing can be told",
        )
    show_skipped(replay.skipped)


_PARTS = ("route", "role", "message", "kind", "one value a", "seen", "distinct", "characters", "place")


def _show_structure(files: tuple[Path, ...], route: str | None, *, as_json: bool) -> None:
    from kvscope.tuning.described import described
    from kvscope.tuning.logs import read_prompts

    if not files:
        raise UsageError("--structure needs FILES, request logs with the prompts")
    read = read_prompts(files)
    parts = [part for part in described(read.prompts) if route in (None, part.route)]
    if as_json:
        emit_json({"structure": parts, "skipped": skipped_json(read.skipped)})
        return
    rows = [
        (
            part.route,
            part.role,
            part.message_index,
            words.text(part.kind),
            part.scope,
            part.occurrences,
            part.distinct,
            None if part.characters is None else round(part.characters),
            None if part.char_start is None else f"{part.char_start} to {part.char_end}",
        )
        for part in parts
    ]
    emit_table("Structure", _PARTS, rows, empty="no prompt of that route")
    show_skipped(read.skipped)
