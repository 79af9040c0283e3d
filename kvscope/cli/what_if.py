"""The what-ifs of ``kvscope replay``: its options, and their answers as text and JSON."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import click

from kvscope.analysis.offline.what_ifs import WhatIfRows, WhatIfs
from kvscope.cache.model_config import read_shape
from kvscope.cache.model_files import load_config
from kvscope.cache.routing import ROUTINGS
from kvscope.cache.sizing import SizeOptions, size
from kvscope.cache.tiers import RULES
from kvscope.cli.common import BLOCKS_MOST, PositiveNumber, emit_table, percent
from kvscope.errors import UsageError

Command = Callable[..., Any]
_MOST_BLOCK = 65_536
_TOKENS_WITHOUT_CONTEXT = 4096


def what_if_options(command: Command) -> Command:
    """Add the options; the command gets them together as ``what_ifs``."""

    @functools.wraps(command)
    def with_what_ifs(
        *,
        lower_blocks: int | None,
        tier_rule: tuple[str, ...],
        replicas: int | None,
        routing: tuple[str, ...],
        compare_block_sizes: str | None,
        model: str | None,
        bytes_per_token: float | None,
        prefill_rate: float | None,
        **others: Any,
    ) -> Any:
        if (tier_rule and lower_blocks is None) or (routing and replicas is None):
            raise UsageError("--tier-rule belongs to --lower-blocks, --routing to --replicas")
        if model is not None and bytes_per_token is not None:
            raise UsageError("--model says the bytes a token: leave --bytes-per-token out, or it")
        taken = bytes_per_token if model is None else _bytes_per_token(model)
        if prefill_rate is not None and taken is None:
            raise UsageError("--prefill-rate needs the size of the cache too: --model or --bytes-per-token")
        return command(
            what_ifs=WhatIfs(
                lower_blocks=lower_blocks,
                tier_rules=tier_rule or RULES,
                replicas=replicas,
                routings=routing or tuple(ROUTINGS),
                block_sizes=_block_sizes(compare_block_sizes),
                bytes_per_token=taken,
                prefill_tokens_per_second=prefill_rate,
            ),
            **others,
        )

    for option in reversed(_OPTIONS):
        option(with_what_ifs)
    return with_what_ifs


_OPTIONS = (
    click.option(
        "--lower-blocks",
        type=click.IntRange(0, BLOCKS_MOST),
        help="What if: blocks of a second tier below, as in host memory.",
    ),
    click.option(
        "--tier-rule",
        multiple=True,
        type=click.Choice(RULES),
        help="inclusive: the lower tier is written too, as vLLM's offloading does; exclusive: it takes what "
        "the upper one gives up. Default: both.",
    ),
    click.option(
        "--replicas", type=click.IntRange(1, 10_000), help="What if: so many engines with such a cache each."
    ),
    click.option(
        "--routing",
        multiple=True,
        type=click.Choice(list(ROUTINGS)),
        help="How requests come to replicas: in turn, by conversation, to where most of the prompt is. "
        "Default: all.",
    ),
    click.option(
        "--compare-block-sizes",
        metavar="16,32,64",
        help="What if: the same memory in blocks of other sizes (text and tokens only).",
    ),
    click.option(
        "--model",
        metavar="CONFIG",
        help="Also what each capacity is worth, in memory of this model: a preset or a config.json, as of "
        "kvscope size.",
    ),
    click.option(
        "--bytes-per-token",
        type=PositiveNumber(),
        help="The same for a model of so many bytes of KV cache a token.",
    ),
    click.option(
        "--prefill-rate",
        type=PositiveNumber(),
        help="Tokens a second that the engine computes in prefill, for what is saved in seconds.",
    ),
)


def what_if_json(rows: WhatIfRows) -> dict[str, Any]:
    """Return the answers that were asked for, by name."""
    found = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
    return {name: value for name, value in found.items() if value is not None}


def show_what_ifs(rows: WhatIfRows) -> None:
    """Print the answers that were asked for as tables."""
    if rows.tiers is not None:
        emit_table(
            "Two tiers",
            ("rule", "blocks", "below", "hit rate", "tokens above", "tokens below", "loaded", "stored"),
            (
                (
                    each.rule, each.upper_blocks, each.lower_blocks, percent(each.hit_rate),
                    each.upper_hit_tokens, each.lower_hit_tokens, each.loaded_blocks, each.stored_blocks,
                )
                for each in rows.tiers
            ),
            empty="no tier",
        )  # fmt: skip
    if rows.routing is not None:
        emit_table(
            f"{rows.routing[0].replicas:,} replicas",
            ("routing", "hit rate", "found", "busiest ÷ mean"),
            (
                (each.routing, percent(each.hit_rate), each.hit_tokens, f"{each.imbalance:.2f}")
                for each in rows.routing
            ),
            empty="no routing",
        )
    if rows.block_sizes is not None:
        emit_table(
            "Block sizes",
            ("tokens a block", "blocks", "hit rate", "found"),
            (
                (each.block_size, each.blocks or "no limit", percent(each.hit_rate), each.hit_tokens)
                for each in rows.block_sizes
            ),
            empty="no size",
        )
    if rows.worth is not None:
        _show_worth(rows)


def _show_worth(rows: WhatIfRows) -> None:
    emit_table(
        "What the memory is worth",
        ("blocks", "GiB", "hit rate", "hit tokens/s", "per GiB", "last GiB adds", "prefill s/h saved"),
        (
            (
                each.blocks, f"{each.gib:.3g}", percent(each.hit_rate), _short(each.hit_tokens_per_second),
                _short(each.hit_tokens_per_second_per_gib), _short(each.added_hit_tokens_per_second_per_gib),
                _short(each.prefill_seconds_saved_per_hour),
            )
            for each in rows.worth or ()
        ),
        empty="no capacity",
    )  # fmt: skip


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3g}"


def _block_sizes(given: str | None) -> tuple[int, ...]:
    if given is None:
        return ()
    if not re.fullmatch(r"\d{1,5}(,\d{1,5})*", given):
        raise UsageError(f"{given!r} is no list of block sizes: write tokens a block as 16,32,64")
    sizes = tuple(map(int, given.split(",")))
    if not all(1 <= each <= _MOST_BLOCK for each in sizes):
        raise UsageError(f"a block holds 1 to {_MOST_BLOCK:,} tokens: {given}")
    return sizes


def _bytes_per_token(model: str) -> float:
    name, keys = load_config(model)
    shape = read_shape(keys, name=name)
    return size(shape, SizeOptions(tokens=shape.context_tokens or _TOKENS_WITHOUT_CONTEXT)).bytes_per_token
