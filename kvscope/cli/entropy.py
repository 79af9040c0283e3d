"""``kvscope entropy``: what the texts of prompts hold, and where a route turns from stable to varying."""

from pathlib import Path

import click

from kvscope.cli.common import emit_json, emit_table, json_option
from kvscope.cli.logs import show_skipped, skipped_json
from kvscope.cli.progress import reading
from kvscope.cli.tokenizers import tokenizer_option

_POSITIONS_SHOWN = 12


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@tokenizer_option("Without one four bytes stand for a token: estimated.")
@click.option("--route", help="Only this route.")
@json_option
def entropy(files: tuple[Path, ...], tokenizer: str | None, route: str | None, as_json: bool) -> None:
    """Show the entropies of the prompts in FILES and, route by route, of their positions.

    An entropy of text says how varied its letters or tokens are. The positional entropy says how uncertain
    the next token is when all before it are known: where it is 0, every request of the route can share.
    """
    from kvscope.analysis.entropies import entropies
    from kvscope.analysis.offline.load import ByteTokenizer
    from kvscope.prompts.named import named_tokenizer
    from kvscope.tuning.logs import read_prompts

    with reading(files, "measuring") as watch:
        read = read_prompts(files, watch=watch)
    prompts = [prompt for prompt in read.prompts if route in (None, prompt.route)]
    found = entropies(prompts, ByteTokenizer() if tokenizer is None else named_tokenizer(tokenizer))
    left_out = [{"request_id": name, "reason": reason} for name, reason in found.left_out]
    exactness = "estimated" if tokenizer is None else "exact"
    if as_json:
        emit_json(
            {
                "prompts": found.prompts,
                "positions": found.positions,
                "exactness": exactness,
                "skipped": skipped_json(read.skipped) + left_out,
            }
        )
        return
    emit_table(
        "Texts, means over prompts",
        ("route", "prompts", "characters", "tokens", "bits a character", "in windows", "deflated", "a token"),
        [
            (
                each.route, each.prompts, round(each.characters), round(each.tokens), each.character_entropy,
                each.window_entropy, each.compressed_bits, each.token_entropy,
            )
            for each in found.prompts
        ],
        empty="no prompts",
    )  # fmt: skip
    for each in found.positions:
        mean, median = each.shared_tokens_mean, each.shared_tokens_median
        shared = "–" if mean is None else f"{mean:,.0f} tokens on average, {median:,} in the median"
        click.echo(
            f"\n{each.route}: {each.entropy_bits:.2f} bits over all positions; two prompts share {shared}"
        )
        emit_table(
            "Segments",
            ("segment", "message", "prompts", "variants", "bits given those before", "bits by itself"),
            [
                (part.role, part.message_index, part.prompts, part.variants, part.entropy_bits,
                 part.own_entropy_bits)
                for part in each.segments
            ],
            empty="no segments",
        )  # fmt: skip
        widest = sorted(each.positions, key=lambda position: -position.entropy_bits)[:_POSITIONS_SHOWN]
        emit_table(
            "Positions with the most entropy",
            ("token", "bits", "prompts", "ways on"),
            [
                (position.position, position.entropy_bits, position.prompts, position.branches)
                for position in sorted(widest, key=lambda position: position.position)
            ],
            empty="every prompt is the same",
        )
    if tokenizer is None:
        click.echo("\nestimated: four bytes stand for a token; name the model's with --tokenizer DIR")
    show_skipped(read.skipped)
    for name, reason in found.left_out:
        click.echo(f"skipped {name}: {reason}", err=True)
