"""``kvscope grid``: what many caches would have hit on the same files, on one machine or a Ray cluster."""

from pathlib import Path

import click

from kvscope.analysis.scale_out.engines import ENGINES, engine_of
from kvscope.analysis.scale_out.grid import GridOptions, GridReport, parse_layout, run_grid
from kvscope.analysis.scale_out.hashing import HashOptions
from kvscope.cache.policies import POLICIES
from kvscope.cache.routing import ROUTINGS
from kvscope.cli.common import BLOCK_SIZE, BLOCKS_MOST, emit_json, emit_table, json_option, percent
from kvscope.cli.logs import show_skipped, skipped_json
from kvscope.cli.progress import steps
from kvscope.cli.tokenizers import tokenizer_option

_MOST_REPLICAS = 10_000


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--replicas", type=click.IntRange(1, _MOST_REPLICAS), multiple=True, default=(1,))
@click.option(
    "--blocks",
    type=click.IntRange(0, BLOCKS_MOST),
    multiple=True,
    help="Blocks of one replica's cache, as of `kvscope replay`; 0 and by default: no limit.",
)
@click.option("--policy", "policies", type=click.Choice(list(POLICIES)), multiple=True, default=("lru",))
@click.option(
    "--layout",
    "layouts",
    metavar="KINDS",
    multiple=True,
    default=("as_sent",),
    help="as_sent, kinds of transforms joined by +, such as sort_tools+canonical_json, or a JSON list of "
    "them with parameters. Only text has other layouts than the one that was sent.",
)
@click.option(
    "--routing",
    type=click.Choice(list(ROUTINGS)),
    default="round_robin",
    show_default=True,
    help="How requests come to one of several replicas.",
)
@click.option(
    "--block-size",
    type=BLOCK_SIZE,
    help="Tokens a block. Default: a trace's own, 16 for text and tokens.",
)
@tokenizer_option("Text without one is estimated.")
@click.option("--engine", type=click.Choice(ENGINES), default="local", show_default=True)
@click.option(
    "--address",
    metavar="URL",
    help="Of a Ray cluster, such as ray://host:10001, whose machines have kvscope and see FILES; default: "
    "one is started on this machine.",
)
@json_option
def grid(
    files: tuple[Path, ...],
    replicas: tuple[int, ...],
    blocks: tuple[int, ...],
    policies: tuple[str, ...],
    layouts: tuple[str, ...],
    routing: str,
    block_size: int | None,
    tokenizer: str | None,
    engine: str,
    address: str | None,
    as_json: bool,
) -> None:
    """Replay FILES through every combination of replicas, blocks, policies and prompt layouts.

    Options may be given more than once. Requests come one after the other in the order of their times.
    FILES are those of `kvscope replay`; each is hashed once a layout, and with --engine ray many at a time.
    """
    options = GridOptions(
        replicas=replicas,
        blocks=tuple(each or None for each in blocks) or (None,),
        policies=policies,
        layouts=tuple(map(parse_layout, layouts)),
        routing=routing,
        hashing=HashOptions(block_size=block_size, tokenizer=tokenizer),
    )
    with engine_of(engine, address) as where, steps("replaying") as done:
        report = run_grid([path.absolute() for path in files], options, where, done)
    if as_json:
        emit_json(
            {
                "rows": report.rows,
                "block_size": report.block_size,
                "exactness": report.exactness,
                "notes": report.notes,
                "skipped": skipped_json(report.skipped),
            }
        )
        return
    _show(report)


def _show(report: GridReport) -> None:
    emit_table(
        f"Blocks of {report.block_size} tokens; figures are {report.exactness}",
        ("layout", "replicas", "routing", "blocks each", "policy", "hit rate", "by blocks"),
        [
            (
                row.layout, row.replicas, row.routing, "no limit" if row.blocks is None else row.blocks,
                row.policy, percent(row.hit_rate), percent(row.block_hit_rate),
            )
            for row in report.rows
        ],
        empty="no combination",
    )  # fmt: skip
    for note in report.notes:
        click.echo(f"note: {note}")
    show_skipped(report.skipped)
