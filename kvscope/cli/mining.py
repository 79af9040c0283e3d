"""``kvscope layout mine`` and ``order``: what traffic, logged or live, tells of layouts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kvscope.agent.asking import ask, stranger
from kvscope.cli.common import emit_json, emit_table, json_option
from kvscope.errors import UsageError
from kvscope.prompts.layouts.draft import FEWEST_PROMPTS, MinedLayout, drafted, mined_layouts
from kvscope.prompts.layouts.plan import compile_layout
from kvscope.prompts.layouts.schema import read_layout
from kvscope.prompts.mining.live import FEWEST_SAMPLES
from kvscope.prompts.segments import CHAT
from kvscope.prompts.tokenizing import load_tokenizer

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_TIMEOUT_SECONDS = 60.0  # the agent's helper process may be busy with advice


@click.command()
@click.argument("files", nargs=-1, type=_FILE)
@click.option("--agent", metavar="URL", help="Ask a running agent's admin port, in place of FILES.")
@click.option(
    "--output", "-o", type=click.Path(file_okay=False, path_type=Path), help="Folder for a draft of each."
)
@json_option
def mine(files: tuple[Path, ...], agent: str | None, output: Path | None, as_json: bool) -> None:
    """Find in logs of requests (FILES) what the prompts of each route share, and draft layouts of it.

    A draft is in the order in which the prompts are sent today; nothing that is there is overwritten.
    With --agent the routes are those of live traffic; an agent keeps no text, so there are no drafts, but
    the change that would move what varies behind what stays.
    """
    if (agent is None) == (not files):
        raise UsageError("name either FILES or --agent URL")
    if agent is None:
        _mine_files(files, output, as_json=as_json)
    elif output is not None:
        raise UsageError("--output needs FILES: an agent keeps no text to draft from")
    else:
        _mine_live(agent, as_json=as_json)


def _mine_live(agent: str, *, as_json: bool) -> None:
    routes = _live_routes(agent)
    if as_json:
        emit_json({"routes": routes})
        return
    emit_table(
        "Mined routes",
        (
            "route",
            "requests",
            "role",
            "shared chars",
            "before the first difference",
            "places that vary",
            "kinds",
        ),
        (
            (
                route["route"],
                route["requests"],
                text["role"],
                text["static_chars"],
                text["static_prefix_chars"],
                sum(not piece["static"] for piece in text["pieces"]),
                ", ".join(sorted({piece["value_kind"] for piece in text["pieces"] if piece["value_kind"]})),
            )
            for route in routes
            for text in route["texts"]
        ),
        empty=f"no route has {FEWEST_SAMPLES} requests yet",
    )
    for route in routes:
        for text in route["texts"]:
            if text["change"] is not None:
                click.echo(f"{route['route']}: --change '{json.dumps(text['change'])}'")


def _mine_files(files: Sequence[Path], output: Path | None, *, as_json: bool) -> None:
    from kvscope.tuning.logs import read_prompts

    read = read_prompts(files)
    chats = [prompt for prompt in read.prompts if prompt.api == CHAT]
    if not chats:
        raise UsageError(f"no chat request in {', '.join(map(str, files))}: layouts are of chats")
    found = mined_layouts((prompt.route, prompt.body) for prompt in chats)
    drafts = {} if output is None else {each.route: _write_draft(output, each) for each in found}
    rows = [
        {
            "route": each.route,
            "role": each.role,
            "prompts": each.prompts,
            "static_chars": each.static_chars,
            "static_prefix_chars": each.prefix_chars,
            "pieces": [
                {"static": piece.static, "words": len(piece.tokens) or None, "distinct": piece.distinct}
                for piece in each.pieces
            ],
            "draft": drafts.get(each.route),
        }
        for each in found
    ]
    if as_json:
        emit_json({"layouts": rows, "prompts": len(read.prompts), "skipped": len(read.skipped)})
        return
    emit_table(
        "Mined layouts",
        (
            "route",
            "role",
            "prompts",
            "shared chars",
            "before the first difference",
            "places that vary",
            "draft",
        ),
        (
            (
                row["route"],
                row["role"],
                row["prompts"],
                row["static_chars"],
                row["static_prefix_chars"],
                sum(not piece.static for piece in each.pieces),
                row["draft"],
            )
            for row, each in zip(rows, found, strict=True)
        ),
        empty=f"no route has {FEWEST_PROMPTS} different prompts with a part that they share",
    )


@click.command()
@click.argument("file", type=_FILE)
@click.argument("logs", nargs=-1, required=True, type=_FILE)
@click.option("--tokenizer", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--block-size", type=click.IntRange(1, 4096), default=16, show_default=True)
@click.option("--blocks", type=click.IntRange(min=2), help="Blocks of the cache; none: no limit.")
@json_option
def order(
    file: Path,
    logs: tuple[Path, ...],
    tokenizer: Path,
    block_size: int,
    blocks: int | None,
    as_json: bool,
) -> None:
    """Find the order of FILE's segments that shares most over the requests in LOGS that name it.

    The newest 400 requests are rendered in each order that is tried, and replayed. What the layout forbids
    (roles, `after`, `pinned`) stays forbidden, and no segment crosses the conversation.
    """
    from kvscope.tuning.logs import read_prompts
    from kvscope.tuning.ordering import VARIANT, best_order
    from kvscope.tuning.window import Limits

    form = read_layout(file)
    compile_layout(form)
    found = best_order(
        form,
        read_prompts(logs).prompts[-Limits().prompts_per_route :],
        encode=load_tokenizer(tokenizer).encode,
        block_size=block_size,
        num_blocks=blocks,
    )
    if as_json:
        emit_json({"layout": form.layout, "ordering": found, "same": found.order == found.before})
        return
    click.echo(
        f"{found.requests} requests, {found.judged} orders tried:"
        f" hit rate {found.hit_rate_before:.1%} now, {found.hit_rate_after:.1%} in the best order"
    )
    if found.order == found.before:
        click.echo("the order in force is the best that was found")
    else:
        click.echo(f"variants:\n  {VARIANT}:\n    order: [{', '.join(found.order)}]")


def _write_draft(folder: Path, mined: MinedLayout) -> str:
    name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in mined.route)
    path = folder / f"{name}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(drafted(mined))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error}") from error
    return str(path)


def _live_routes(agent: str) -> list[dict[str, Any]]:
    """Return the mined routes of the agent with this admin URL; raises ``UnreachableError``."""
    try:
        routes: list[dict[str, Any]] = ask(agent, "routes", timeout_seconds=_TIMEOUT_SECONDS)["routes"]
    except KeyError as error:
        raise stranger(agent) from error
    return routes
