"""``kvscope replay``: what the requests of log files and traces would have hit."""

import dataclasses
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from kvscope.analysis.offline.load import Encoder
from kvscope.analysis.offline.replay_files import replay_files
from kvscope.analysis.offline.report import ReplayOptions, ReplayReport
from kvscope.cache.policies import POLICIES
from kvscope.cli.common import emit_json, emit_table, json_option, percent, show
from kvscope.prompts.shared_prefix import SharedPrefixTokenizer
from kvscope.prompts.tokenizing import ServerTokenizer, load_tokenizer

_SHOWN_SKIPPED = 5


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--blocks",
    type=click.IntRange(min=1),
    help="Blocks of the cache: the engine's num_gpu_blocks for text and tokens (one of them is its null "
    "block), usable blocks for traces of block ids. None: no limit.",
)
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    help="Tokens a block. Default: a trace's own, 16 for text and tokens.",
)
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    default="lru",
    show_default=True,
    help="; ".join(f"{name}: {policy.help}" for name, policy in POLICIES.items()) + ".",
)
@click.option("--curve", is_flag=True, help="Also the hit rate of every capacity (LRU).")
@click.option(
    "--tokenizer",
    metavar="DIR|URL",
    help="Folder of the model's tokenizer, or a running server's URL (its /tokenize). Text without one is "
    "estimated.",
)
@click.option("--per-request", is_flag=True, help="Also each request, beside what the engine recorded.")
@json_option
def replay(
    files: tuple[Path, ...],
    blocks: int | None,
    block_size: int | None,
    policy: str,
    curve: bool,
    tokenizer: str | None,
    per_request: bool,
    as_json: bool,
) -> None:
    """Replay FILES through a model of vLLM's prefix cache, in the order of their times.

    FILES are request logs (OpenAI or Anthropic bodies, plain or wrapped), recordings with token ids, Mooncake
    and Bailian traces, kv-cache-tester sessions, ShareGPT conversations or lines of text, told by content,
    gzipped or not; - is standard input.
    """
    options = ReplayOptions(
        num_blocks=blocks,
        block_size=block_size,
        policy=policy,
        curve=curve,
        per_request=per_request,
        tokenizer=None if tokenizer is None else _tokenizer(tokenizer),
    )
    with _at_work():
        report = replay_files(files, options)
    if as_json:
        emit_json(_document(report))
    else:
        _show(report)


def _at_work() -> AbstractContextManager[Any]:
    """Show on a terminal that work goes on."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("reading and replaying ...")


def _tokenizer(named: str) -> Encoder:
    if named.startswith(("http://", "https://")):
        return ServerTokenizer(named)
    return SharedPrefixTokenizer(load_tokenizer(Path(named)))


def _document(report: ReplayReport) -> dict[str, Any]:
    document = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    for optional in ("per_request", "points", "points_exactness", "agreement"):
        if document[optional] is None:
            del document[optional]
    document["skipped"] = [
        {"file": each.file, "line": each.line, "reason": each.reason} for each in report.skipped
    ]
    return document


def _show(report: ReplayReport) -> None:
    limit = "no limit" if report.blocks is None else f"{report.blocks:,} blocks"
    emit_table(
        f"Replay of {report.requests:,} requests: {limit} of {report.block_size} tokens, {report.policy}",
        ("tokens looked up", "found", "hit rate", "by blocks", "figures are"),
        [
            (
                report.queried_tokens,
                report.hit_tokens,
                percent(report.hit_rate),
                percent(report.block_hit_rate),
                report.exactness,
            )
        ],
        empty="nothing",
    )
    if report.agreement is not None:
        click.echo(
            f"{report.agreement.equal:,} of {report.agreement.compared:,} requests as the engine recorded"
        )
    if report.points is not None:
        emit_table(
            f"Capacity curve (LRU, {report.points_exactness})",
            ("blocks", "hit rate", "by blocks"),
            ((each.blocks, percent(each.hit_rate), percent(each.block_hit_rate)) for each in report.points),
            empty="no capacity",
        )
    if report.per_request is not None:
        emit_table(
            "Requests",
            ("request", "prompt tokens", "found", "recorded"),
            (
                (each.request_id, each.prompt_tokens, each.hit_tokens, show(each.recorded_cached_tokens))
                for each in report.per_request
            ),
            empty="no request",
        )
    for note in report.notes:
        click.echo(f"note: {note}")
    for each in report.skipped[:_SHOWN_SKIPPED]:
        click.echo(f"skipped {each.origin}: {each.reason}", err=True)
    if len(report.skipped) > _SHOWN_SKIPPED:
        click.echo(f"skipped {len(report.skipped) - _SHOWN_SKIPPED:,} more lines", err=True)
