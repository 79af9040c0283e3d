"""``kvscope suggest``: ranked suggestions, from the store or from log files alone."""

from pathlib import Path
from typing import Any

import click

from kvscope.cli.common import db_option, emit_json, emit_table, json_option, milliseconds, opened, percent
from kvscope.clock import system_clock
from kvscope.errors import UsageError
from kvscope.model.advice import Suggestion
from kvscope.reports import words
from kvscope.reports.changes import steps_of


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@db_option
@json_option
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), help="Folder of the model's tokenizer (for FILES)."
)
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Tokens a block (for FILES).",
)
@click.option("--blocks", type=click.IntRange(min=1), help="Blocks of the cache (for FILES); none: no limit.")
@click.option("--route", help="Only this route.")
@click.option("--structure", is_flag=True, help="Show what FILES' prompts consist of, and what varies.")
@click.option("--dismiss", metavar="ID", help="Dismiss a suggestion of the store instead of listing.")
def suggest(
    files: tuple[Path, ...],
    db: str | None,
    as_json: bool,
    tokenizer: Path | None,
    block_size: int,
    blocks: int | None,
    route: str | None,
    structure: bool,
    dismiss: str | None,
) -> None:
    """Show ranked suggestions: of the running agent (no FILES), or of request logs (FILES)."""
    if structure:
        _show_structure(files, route, as_json=as_json)
        return
    if files:
        suggestions, none_because, skipped = _from_files(files, tokenizer, block_size, blocks)
    else:
        with opened(db) as store:
            if dismiss is not None:
                store.advice.dismiss(dismiss)
                click.echo(f"dismissed {dismiss}")
                return
            suggestions = store.advice.suggestions(route=route)
        skipped = []
        none_because = (
            None if suggestions else "the agent has found none yet: it needs traffic through the gateway"
        )
    suggestions = [item for item in suggestions if route in (None, item.route)]
    if as_json:
        emit_json({"suggestions": suggestions, "none_because": none_because, "skipped": skipped})
        return
    emit_table("Suggestions", _COLUMNS, map(_row, suggestions), empty=f"no suggestion: {none_because}")
    for item in suggestions:
        click.echo(f"{item.id}: {' '.join(steps_of(item))}")
    for line in skipped:
        click.echo(f"skipped line {line['line']}: {line['reason']}", err=True)


_COLUMNS = ("id", "route", "kind", "risk", "hit rate now", "predicted", "TTFT change", "tokens saved a day")


def _row(item: Suggestion) -> tuple[Any, ...]:
    return (
        item.id,
        item.route,
        item.kind,
        item.risk.value,
        percent(item.hit_rate_before),
        percent(item.hit_rate_after),
        milliseconds(item.ttft_change_seconds),
        words.rough(item.tokens_saved_per_day),
    )


def _from_files(
    files: tuple[Path, ...], tokenizer: Path | None, block_size: int, blocks: int | None
) -> tuple[list[Suggestion], str | None, list[dict[str, Any]]]:
    from kvscope.prompts.tokenizing import load_tokenizer
    from kvscope.tuning.advisor import advise
    from kvscope.tuning.logs import read_prompts

    if tokenizer is None:
        raise UsageError("log files need --tokenizer DIR, the folder of the model's tokenizer.json")
    read = read_prompts(files)
    advice = advise(
        read.prompts,
        tokenizer=load_tokenizer(tokenizer),
        block_size=block_size,
        num_blocks=blocks,
        ttft=None,
        now=system_clock(),
    )
    skipped = [{"line": line, "reason": reason} for line, reason in read.skipped]
    return list(advice.suggestions), advice.none_because, skipped


_PARTS = ("route", "role", "message", "kind", "one value a", "seen", "distinct", "characters", "place")


def _show_structure(files: tuple[Path, ...], route: str | None, *, as_json: bool) -> None:
    from kvscope.tuning.described import described
    from kvscope.tuning.logs import read_prompts

    if not files:
        raise UsageError("--structure needs FILES, request logs with the prompts")
    parts = [part for part in described(read_prompts(files).prompts) if route in (None, part.route)]
    if as_json:
        emit_json({"structure": parts})
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
