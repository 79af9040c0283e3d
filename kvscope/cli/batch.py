"""``kvscope batch plan``: an offline batch in an order that reuses the cache."""

import json
from pathlib import Path

import click

from kvscope.cli.common import (
    BLOCK_SIZE,
    BLOCKS_MOST,
    emit_json,
    emit_table,
    json_option,
    not_an_input,
    percent,
)
from kvscope.errors import UsageError


@click.group()
def batch() -> None:
    """Work on offline batches."""


@batch.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the reordered file goes.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Folder of the model's tokenizer.")
@click.option("--block-size", type=BLOCK_SIZE, default=16, show_default=True, help="In tokens.")
@click.option("--blocks", type=click.IntRange(2, BLOCKS_MOST), help="Blocks of the cache; none: no limit.")
@click.option("--fields", metavar="A,B", help="Of a table: only these may move, to the front of the row.")
@click.option("--template", default="{row}", show_default=True, help="Of a table: the prompt around a row.")
@json_option
def plan(
    file: Path,
    output: Path | None,
    tokenizer: Path | None,
    block_size: int,
    blocks: int | None,
    fields: str | None,
    template: str,
    as_json: bool,
) -> None:
    """Reorder the requests in FILE, or a table's rows and fields, for reuse of the cache.

    Without --tokenizer four bytes stand for a token, and figures are estimated.

    FILE is JSON lines of request bodies, JSON lines of flat objects, or CSV with a header. With -o the
    reordered file is written, and beside it OUTPUT.map.jsonl, which tells for each line where it stood.
    """
    from kvscope.analysis.offline.load import ByteTokenizer
    from kvscope.prompts.tokenizing import load_tokenizer
    from kvscope.tuning.batch.inputs import read_batch
    from kvscope.tuning.batch.plan import Cache, plan_requests, plan_rows

    not_an_input(output, (file,))
    read = read_batch(file)
    encoder = ByteTokenizer() if tokenizer is None else load_tokenizer(tokenizer)
    cache = Cache(block_size=block_size, num_blocks=blocks)
    if read.requests:
        if fields is not None:
            raise UsageError("--fields is for tables; of request bodies only the order changes")
        found = plan_requests(read, encoder, cache)
    else:
        movable = None if fields is None else [name.strip() for name in fields.split(",") if name.strip()]
        found = plan_rows(read, encoder, cache, movable=movable, template=template)
    mapped = None if output is None else _write(output, found.lines, found.origins)
    document = {
        "kind": "requests" if read.requests else "rows",
        "requests": len(found.lines),
        "prompt_tokens": found.prompt_tokens,
        "method": found.method,
        "hit_rate_before": found.hit_rate_before,
        "hit_rate_after": found.hit_rate_after,
        "hit_rates": found.hit_rates,
        "exactness": "estimated" if tokenizer is None else "exact",
        "output": None if output is None else str(output),
        "map": None if mapped is None else str(mapped),
        "skipped": [{"line": line, "reason": reason} for line, reason in read.skipped],
    }
    if as_json:
        emit_json(document)
        return
    emit_table(
        f"{file}: {len(found.lines):,} {document['kind']}, {found.prompt_tokens:,} prompt tokens",
        ("order", "hit rate", ""),
        [
            (method, percent(rate), "chosen" if method == found.method else "")
            for method, rate in found.hit_rates.items()
        ],
        empty="",
    )
    for line, reason in read.skipped:
        click.echo(f"skipped line {line}: {reason}", err=True)
    click.echo(
        "nothing was written: name a file with -o" if mapped is None else f"wrote {output} and {mapped}"
    )


def _write(output: Path, lines: tuple[bytes, ...], origins: tuple[int, ...]) -> Path:
    mapped = output.with_name(f"{output.name}.map.jsonl")
    try:
        output.write_bytes(b"".join(line + b"\n" for line in lines))
        mapped.write_text(
            "".join(
                json.dumps({"line": place, "original_line": origin}) + "\n"
                for place, origin in enumerate(origins, 1)
            )
        )
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error
    return mapped
