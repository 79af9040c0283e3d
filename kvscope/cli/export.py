"""``kvscope export``: logs and traces as hashes for other tools, without text."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from kvscope.analysis.formats.detect import read
from kvscope.analysis.offline.exporting import EXPORT_FORMATS, MOONCAKE, Exported, Exporter
from kvscope.analysis.offline.hashing import Hasher, Salter
from kvscope.analysis.offline.importing import logged
from kvscope.analysis.offline.load import DEFAULT_BLOCK_SIZE
from kvscope.cli.common import (
    BLOCK_SIZE,
    db_option,
    emit_json,
    json_option,
    not_an_input,
    opened,
    since_at,
    since_option,
)
from kvscope.cli.logs import show_skipped, skipped_json
from kvscope.cli.progress import reading
from kvscope.cli.tokenizers import tokenizer_option
from kvscope.errors import UsageError
from kvscope.prompts.named import named_tokenizer

_STDOUT = "-"


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, allow_dash=True))
@click.option("-o", "--output", required=True, metavar="FILE", help="File to write; - is standard output.")
@click.option(
    "--format",
    "form",
    type=click.Choice(EXPORT_FORMATS),
    default=MOONCAKE,
    show_default=True,
    help="mooncake: block ids alone, for other tools. hashed: for kvscope, which replays it as the source.",
)
@click.option(
    "--block-size",
    type=BLOCK_SIZE,
    help="Tokens a block. Default: a trace's own, 16 for text and tokens.",
)
@tokenizer_option("Text needs one.")
@db_option
@since_option
@json_option
def export(
    files: tuple[Path, ...],
    output: str,
    form: str,
    block_size: int | None,
    tokenizer: str | None,
    db: str | None,
    since: str | None,
    as_json: bool,
) -> None:
    """Write the requests of FILES as JSON lines with salted hashes of their blocks in place of text.

    Without FILES those of the store, as far as `kvscope import --blocks` kept hashes there. The salt is that
    of this machine, or the environment's KVSCOPE_HASH_SALT: under one salt equal prefixes have equal hashes.
    """
    from kvscope.config.salt import hash_salt

    if output == _STDOUT and as_json:
        raise UsageError("lines and JSON document cannot both go to standard output: name a file with -o")
    if files and (db is not None or since is not None):
        raise UsageError("--db and --since are of the store: name FILES or them")
    if output != _STDOUT:
        not_an_input(Path(output), files)
    salter = Salter(hash_salt())
    hasher = Hasher(
        salter,
        block_size=block_size or DEFAULT_BLOCK_SIZE,
        tokenizer=None if tokenizer is None else named_tokenizer(tokenizer),
    )
    with _lines(output) as write, reading(files, "writing") as watch:
        exporter = Exporter(hasher, salter, form, write)
        if files:
            done = exporter.export(read(files, block_size=block_size, watch=watch))
        else:
            with opened(db) as store:
                done = exporter.export(logged(store.prompt_blocks.read(since_at=since_at(since))))
    _tell(done, output, as_json=as_json)


@contextmanager
def _lines(output: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Give what writes a line; a file is there whole or, after an error, not at all."""
    if output == _STDOUT:
        yield partial(_put, sys.stdout.buffer)
        return
    file = Path(output)
    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("wb") as out:
            yield partial(_put, out)
        part.replace(file)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _put(out: IO[bytes], line: dict[str, Any]) -> None:
    out.write(msgspec.json.encode(line))
    out.write(b"\n")


def _tell(done: Exported, output: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(
            {
                "requests": done.requests,
                "block_sizes": sorted(done.block_sizes),
                "skipped": skipped_json(done.skipped),
            }
        )
        return
    click.echo(f"wrote {done.requests:,} requests to {output}", err=output == _STDOUT)
    for note in done.notes:
        click.echo(f"note: {note}", err=output == _STDOUT)
    show_skipped(done.skipped)
