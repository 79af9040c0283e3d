"""``kvscope tokens``: one text under several tokenizers, side by side."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kvscope.cli.common import emit_json, emit_table, json_option, percent
from kvscope.errors import UsageError
from kvscope.prompts.counters import load_counter
from kvscope.prompts.counting import Subject, TokenRow, count, read_subject

_SEGMENTS_SHOWN = 10
_MOST_CONTEXT = 10**9


@click.command()
@click.argument("file")
@click.option(
    "--tokenizer", "tokenizers", metavar="T", multiple=True, required=True,
    help="A folder with tokenizer.json, that file, a .tiktoken file, a server's URL; NAME=T names it.",
)  # fmt: skip
@click.option("--context", type=click.IntRange(1, _MOST_CONTEXT), help="A context window, in tokens.")
@json_option
def tokens(file: str, tokenizers: tuple[str, ...], context: int | None, as_json: bool) -> None:
    """Count the tokens of FILE under each tokenizer.

    FILE is a text, a chat or completion body (its segments are counted, too), or lines of JSON, taken as
    examples for a prompt; - is standard input. Give --tokenizer as often as you like.
    """
    text = read_text(file)
    counters = [load_counter(given) for given in tokenizers]
    subject = read_subject(text)
    rows = count(subject, counters, context=context)
    if as_json:
        emit_json(_document(subject, rows))
        return
    _show(file, subject, rows)


def read_text(file: str) -> str:
    """Return the text of a file or of standard input; raises ``UsageError`` naming it."""
    name = "standard input" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise UsageError(f"{name} cannot be read as text: {reason}") from error


def _document(subject: Subject, rows: Sequence[TokenRow]) -> dict[str, Any]:
    return {"kind": subject.kind, "examples": len(subject.examples) or None, "rows": rows}


def _show(file: str, subject: Subject, rows: Sequence[TokenRow]) -> None:
    what = {"examples": f"{len(subject.examples)} examples", "body": f"a {subject.api} body"}
    chars = f"{len(subject.text):,} characters"
    columns = ["tokenizer", "tokens", "tokens a character", "tokens a byte"]
    if subject.kind == "body":
        columns.append("by the template")
    if any(row.context is not None for row in rows):
        columns += ["left of the context", "examples that fit" if subject.examples else "copies that fit"]
    emit_table(
        f"{'standard input' if file == '-' else file}: {what.get(subject.kind, 'text')}, {chars}",
        columns,
        [_cells(subject, row) for row in rows],
        empty="no tokenizer",
    )
    for row in rows:
        if row.segments:
            emit_table(
                f"{row.tokenizer}: what costs most",
                ("segment", "message", "characters", "tokens", "share"),
                [
                    (part.role, part.message_index, part.characters, part.tokens, percent(part.share_rate))
                    for part in row.segments[:_SEGMENTS_SHOWN]
                ],
                empty="",
            )


def _cells(subject: Subject, row: TokenRow) -> list[Any]:
    cells: list[Any] = [row.tokenizer, row.tokens, row.tokens_per_char, row.tokens_per_byte]
    if subject.kind == "body":
        cells.append(row.template_tokens)
    if row.context is not None:
        cells += [
            row.context.left_tokens,
            row.context.examples if subject.examples else row.context.copies,
        ]
    return cells
