"""``kvscope import``: logs and traces into the store."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvscope.analysis.formats.detect import FORMATS, read
from kvscope.analysis.formats.records import BadLine
from kvscope.analysis.offline.hashing import Hasher, Salter
from kvscope.analysis.offline.importing import Imported, imported
from kvscope.analysis.offline.load import DEFAULT_BLOCK_SIZE
from kvscope.cli.common import BLOCK_SIZE, db_option, emit_json, json_option
from kvscope.cli.logs import show_skipped, skipped_json
from kvscope.cli.progress import reading
from kvscope.cli.tokenizers import tokenizer_option
from kvscope.errors import UsageError
from kvscope.pipeline.contracts import Batch
from kvscope.prompts.named import named_tokenizer

if TYPE_CHECKING:
    from kvscope.store.database import Store

_BATCH = 500


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--format", "form", type=click.Choice(FORMATS), help="Of all lines; default: told by content.")
@click.option(
    "--blocks",
    is_flag=True,
    help="Also keep salted hashes of the prompts' blocks, so that the store can be replayed; never text.",
)
@click.option(
    "--block-size",
    type=BLOCK_SIZE,
    help="Tokens a block. Default: a trace's own, 16 for text and tokens.",
)
@tokenizer_option("For --blocks of text.")
@click.option(
    "--begins",
    metavar="TIME",
    help="When a trace that counts time from its own beginning began (ISO 8601, UTC where no zone is told).",
)
@db_option
@json_option
def import_command(
    files: tuple[Path, ...],
    form: str | None,
    blocks: bool,
    block_size: int | None,
    tokenizer: str | None,
    begins: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Write the requests of FILES into the store as request records.

    FILES are what `kvscope replay` reads; - is standard input. What a log does not tell stays unknown, and a
    second import of the same changes nothing.
    """
    begins_at = None if begins is None else _time(begins)
    hasher = None
    if blocks:
        from kvscope.config.salt import hash_salt

        hasher = Hasher(
            Salter(hash_salt()),
            block_size=block_size or DEFAULT_BLOCK_SIZE,
            tokenizer=None if tokenizer is None else named_tokenizer(tokenizer),
        )
    elif tokenizer is not None:
        raise UsageError("--tokenizer is for the hashes of --blocks: give both or none")
    skipped: list[BadLine] = []
    requests = hashed = 0
    with _opened(db) as store, reading(files, "writing") as watch:
        waiting: list[Imported] = []
        found = read(files, block_size=block_size, named=form, watch=watch)
        for each in imported(found, hasher=hasher, begins_at=begins_at):
            if isinstance(each, BadLine):
                skipped.append(each)
                continue
            requests += 1
            hashed += each.blocks is not None
            waiting.append(each)
            if len(waiting) >= _BATCH:
                _write(store, waiting)
                waiting.clear()
        _write(store, waiting)
    if not requests:
        first = f": {skipped[0].origin}: {skipped[0].reason}" if skipped else ""
        raise UsageError(f"no request in {', '.join(map(str, files))} could be imported{first}")
    if as_json:
        document: dict[str, Any] = {"requests": requests, "skipped": skipped_json(skipped)}
        emit_json(document | ({"hashed": hashed} if blocks else {}))
        return
    hashes = f", the block hashes of {hashed:,}" if blocks else ""
    click.echo(f"imported {requests:,} requests{hashes}")
    show_skipped(skipped)


@contextmanager
def _opened(db: str | None) -> "Iterator[Store]":
    """Open the store for writing; the default one is made where there is none."""
    from kvscope.config.load import default_db, make_data_directory
    from kvscope.store.database import open_store

    url = db or default_db()
    make_data_directory(url)
    store = open_store(url, upgrade=True)
    try:
        yield store
    finally:
        store.close()


def _write(store: "Store", requests: Sequence[Imported]) -> None:
    if requests:
        store.batches.write([Batch(parts=[each.part for each in requests])])
        store.prompt_blocks.write([each.blocks for each in requests if each.blocks is not None])


def _time(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--begins {text!r}: write a time such as 2026-11-29T12:00:00Z") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
