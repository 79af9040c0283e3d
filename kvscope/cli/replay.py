"""``kvscope replay``: what the requests of log files and traces would have hit."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import click

from kvscope.analysis.event_log import read_event_log
from kvscope.analysis.offline.load import Encoder
from kvscope.analysis.offline.replay_files import replay_files, replay_stored
from kvscope.analysis.offline.report import ReplayOptions, ReplayReport
from kvscope.analysis.offline.what_ifs import WhatIfs
from kvscope.cache.groups import Group
from kvscope.cache.model_config import read_shape
from kvscope.cache.model_files import load_config
from kvscope.cache.policies import POLICIES
from kvscope.cache.shapes import ModelShape
from kvscope.cli.common import (
    BLOCK_SIZE,
    BLOCKS_MOST,
    db_option,
    emit_json,
    emit_table,
    json_option,
    opened,
    percent,
    show,
    since_at,
    since_option,
)
from kvscope.cli.logs import show_skipped, skipped_json
from kvscope.cli.progress import reading
from kvscope.cli.tokenizers import tokenizer_option
from kvscope.cli.what_if import show_what_ifs, what_if_json, what_if_options
from kvscope.errors import UsageError

_SHOWN_DIFFERENCES = 5


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--blocks",
    type=click.IntRange(1, BLOCKS_MOST),
    help="Blocks of the cache: the engine's num_gpu_blocks for text and tokens (one of them is its null "
    "block), usable blocks for traces of block ids. None: no limit.",
)
@click.option(
    "--block-size",
    type=BLOCK_SIZE,
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
@tokenizer_option("Text without one is estimated.")
@click.option("--per-request", is_flag=True, help="Also each request, beside what the engine recorded.")
@click.option(
    "--kv-events",
    type=click.Path(path_type=Path),
    help="The engine's KV-cache events as JSON lines, for the order in which it let the requests in.",
)
@click.option(
    "--layers",
    metavar="CONFIG",
    help="The model, where layers attend to a sliding window: a preset or a config.json, as of kvscope size. "
    "Its groups of layers then share the pool. Default: full attention.",
)
@click.option(
    "--batched-tokens",
    type=click.IntRange(1, 1_000_000_000),
    help="With --layers, vLLM's --max-num-batched-tokens: longer prompts are computed in parts. Default: no "
    "prompt is longer.",
)
@what_if_options
@db_option
@since_option
@json_option
def replay(
    files: tuple[Path, ...],
    blocks: int | None,
    block_size: int | None,
    policy: str,
    curve: bool,
    tokenizer: str | None,
    per_request: bool,
    kv_events: Path | None,
    layers: str | None,
    batched_tokens: int | None,
    what_ifs: WhatIfs,
    db: str | None,
    since: str | None,
    as_json: bool,
) -> None:
    """Replay FILES through a model of vLLM's prefix cache, in the order of their times.

    FILES are request logs (OpenAI or Anthropic bodies, plain or wrapped), recordings with token ids, Mooncake
    and Bailian traces, kv-cache-tester and Claude Code sessions, ShareGPT conversations or lines of text,
    told by content, packed with gzip or zstd or not; - is standard input. Without FILES the store is
    replayed, as far as `kvscope import --blocks` kept hashes there.
    """
    options = ReplayOptions(
        num_blocks=blocks,
        block_size=block_size,
        policy=policy,
        curve=curve,
        per_request=per_request,
        kv_events=() if kv_events is None else tuple(read_event_log(kv_events)),
        what_ifs=what_ifs,
        layers=None if layers is None else _shape(layers),
        batched_tokens=batched_tokens,
        tokenizer=None if tokenizer is None else _tokenizer(tokenizer),
    )
    if files and (db is not None or since is not None):
        raise UsageError("--db and --since are of the store: name FILES or them")
    if files:
        with reading(files, "replaying") as watch:
            report = replay_files(files, dataclasses.replace(options, watch=watch))
    else:
        with opened(db) as store:
            stored = store.prompt_blocks.read(since_at=since_at(since))
            report = replay_stored(stored, options)
    if as_json:
        emit_json(_document(report))
    else:
        _show(report)


def _tokenizer(name: str) -> Encoder:
    from kvscope.prompts.named import named_tokenizer  # block ids need none: they should not wait for it

    return named_tokenizer(name)


def _shape(name: str) -> ModelShape:
    found, config = load_config(name)
    return read_shape(config, name=found)


def _document(report: ReplayReport) -> dict[str, Any]:
    document = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    for optional in ("per_request", "points", "points_exactness", "agreement", "groups"):
        if document[optional] is None:
            del document[optional]
    document |= what_if_json(document.pop("what_ifs"))
    document["skipped"] = skipped_json(report.skipped)
    return document


def _group(group: Group) -> str:
    layers = "full attention" if group.window is None else f"window of {group.window:,} tokens"
    return f"{layers} in blocks of {group.block_size}"


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
    if report.groups is not None:
        counts = Counter(report.groups)
        told = ", ".join(f"{count} × {_group(group)}" for group, count in counts.items())
        click.echo(f"groups of layers: {told}")
    if report.agreement is not None:
        click.echo(
            f"{report.agreement.equal:,} of {report.agreement.compared:,} requests as the engine recorded"
        )
        for difference in report.agreement.differences[:_SHOWN_DIFFERENCES]:
            click.echo(
                f"  {difference.request_id}: {difference.hit_tokens:,} instead of "
                f"{difference.recorded_cached_tokens:,}: {difference.reason}"
            )
        more = len(report.agreement.differences) - _SHOWN_DIFFERENCES
        if more > 0:
            click.echo(f"  and {more:,} more (--json names all)")
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
    show_what_ifs(report.what_ifs)
    for note in report.notes:
        click.echo(f"note: {note}")
    show_skipped(report.skipped)
