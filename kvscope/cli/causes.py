"""``kvscope causes``: why the prompt tokens of log files missed."""

import dataclasses
from pathlib import Path
from typing import Any

import click

from kvscope.analysis.event_log import read_event_log
from kvscope.analysis.offline.causes import CauseOptions, CauseReport, CauseRow, causes_of
from kvscope.cli.common import (
    BLOCK_SIZE,
    BLOCKS_MOST,
    db_option,
    emit_json,
    emit_table,
    json_option,
    milliseconds,
)
from kvscope.cli.logs import show_skipped, skipped_json
from kvscope.cli.prefill import prefill_of, prefill_option
from kvscope.cli.progress import reading
from kvscope.cli.tokenizers import tokenizer_option
from kvscope.prompts.named import named_tokenizer


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--blocks", type=click.IntRange(2, BLOCKS_MOST), help="The engine's num_gpu_blocks. Default: no limit."
)
@click.option("--block-size", type=BLOCK_SIZE, help="Tokens a block. Default: 16.")
@tokenizer_option("Text without one is estimated.")
@click.option(
    "--kv-events",
    type=click.Path(path_type=Path),
    help="The engine's KV-cache events as JSON lines: what it evicted, in which order it let requests in.",
)
@prefill_option
@db_option
@json_option
def causes(
    files: tuple[Path, ...],
    blocks: int | None,
    block_size: int | None,
    tokenizer: str | None,
    kv_events: Path | None,
    prefill_rate: float | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Say why the prompt tokens of FILES missed the prefix cache: a line a route and cause.

    FILES are request logs with text or token ids, as of kvscope replay. The cached tokens that a log tells
    are taken as they are; else the replay's are. docs/miss-causes.md explains each cause.
    """
    options = CauseOptions(
        num_blocks=blocks,
        block_size=block_size,
        tokenizer=None if tokenizer is None else named_tokenizer(tokenizer),
        kv_events=() if kv_events is None else tuple(read_event_log(kv_events)),
        prefill=prefill_of(prefill_rate, db),
    )
    with reading(files, "comparing") as watch:
        report = causes_of(files, dataclasses.replace(options, watch=watch))
    if as_json:
        emit_json(_document(report))
    else:
        _show(report)


def _document(report: CauseReport) -> dict[str, Any]:
    document = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    document["skipped"] = skipped_json(report.skipped)
    return document


def _show(report: CauseReport) -> None:
    emit_table(
        f"Why {report.prompt_tokens - report.cached_tokens:,} of {report.prompt_tokens:,} prompt tokens of "
        f"{report.requests:,} requests missed ({report.exactness})",
        ("route", "cause", "tokens", "prefill", "requests", "for example", "where", "kind of value"),
        (
            (
                row.route, row.cause, row.tokens, milliseconds(row.prefill_seconds), row.requests,
                row.example.request_id, _place(row), row.example.value_kind,
            )
            for row in report.rows
        ),
        empty="nothing missed",
    )  # fmt: skip
    for note in report.notes:
        click.echo(f"note: {note}")
    show_skipped(report.skipped)


def _place(row: CauseRow) -> str:
    miss = row.example
    if miss.role is None:
        return "–"
    where = miss.role if miss.message_index is None else f"message {miss.message_index} ({miss.role})"
    return f"{where}, characters {miss.char_start} to {miss.char_end}"
