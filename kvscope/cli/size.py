"""``kvscope size``: what a model's KV cache takes, and how many requests fit."""

import re
from typing import Any

import click

from kvscope.cache.model_config import read_shape
from kvscope.cache.model_files import load_config, presets
from kvscope.cache.shapes import ModelShape, kv_dtype
from kvscope.cache.sizing import SizeOptions, Sizing, size
from kvscope.cli.common import emit_json, emit_table, json_option
from kvscope.errors import UsageError

_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_TOKENS_WITHOUT_CONTEXT = 4096
_MOST_TOKENS = 10**9
_MOST_MEMORY = 2**60


def parse_bytes(text: str) -> int:
    """Return a human size in bytes (80GiB, 24GB, 1.5 TiB, 1073741824); raises ``UsageError`` on others."""
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([a-zA-Z]{0,3})\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise UsageError(
            f"{text!r} is not a size: write a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB"
        )
    value = round(float(match[1]) * _UNITS[match[2].lower()]) if "." in match[1] else (
        int(match[1]) * _UNITS[match[2].lower()]
    )  # fmt: skip
    if not 0 < value <= _MOST_MEMORY:
        raise UsageError(f"{text!r} is not a size of memory: between 1 B and 1024 PiB is")
    return value


@click.command()
@click.argument("config")
@click.option("--tokens", type=click.IntRange(1, _MOST_TOKENS), help="Of one request; default: its context.")
@click.option(
    "--dtype", metavar="D", help="Of the cache: bfloat16, fp8, int8, ...; default: as the file says."
)
@click.option("--gpu-memory", metavar="B", help="Free for the cache on each GPU: 80GiB, 24GB.")
@click.option("--tensor-parallel", type=click.IntRange(1, 1024), default=1, help="GPUs that share the heads.")
@click.option("--block-size", type=click.IntRange(1, 65_536), default=16, show_default=True, help="Tokens.")
@click.option("--state-dtype", metavar="D", help="Of Mamba and other states; default: as the file says.")
@click.option(
    "--batched-tokens", type=click.IntRange(1, _MOST_TOKENS),
    help="vLLM's --max-num-batched-tokens, for windows as vLLM reserves them; default: while decoding.",
)  # fmt: skip
@click.option("--prefix-caching/--no-prefix-caching", default=True, help="With it, states are kept twice.")
@click.option("--as", "read_as", metavar="TYPE", help="Read the file as this model_type.")
@json_option
def size_command(
    config: str,
    tokens: int | None,
    dtype: str | None,
    gpu_memory: str | None,
    tensor_parallel: int,
    block_size: int,
    state_dtype: str | None,
    batched_tokens: int | None,
    prefix_caching: bool,
    read_as: str | None,
    as_json: bool,
) -> None:
    """Say what the KV cache of a model takes.

    CONFIG is a Hugging Face config.json, a folder with one, or a preset such as llama-3-70b. Bytes are those
    of one GPU.
    """
    name, keys = load_config(config)
    shape = read_shape(keys, name=name, read_as=read_as)
    options = SizeOptions(
        tokens=tokens or shape.context_tokens or _TOKENS_WITHOUT_CONTEXT,
        dtype=None if dtype in {None, "auto"} else kv_dtype(str(dtype)),
        state_dtype=None if state_dtype in {None, "auto"} else kv_dtype(str(state_dtype)),
        gpu_memory_bytes=None if gpu_memory is None else parse_bytes(gpu_memory),
        tensor_parallel=tensor_parallel,
        block_size=block_size,
        batched_tokens=batched_tokens,
        prefix_caching=prefix_caching,
    )
    sizing = size(shape, options)
    if as_json:
        emit_json(_document(name, sizing, options))
    else:
        _show(name, shape, sizing, options)


def _document(name: str, sizing: Sizing, options: SizeOptions) -> dict[str, Any]:
    fields = {key: getattr(sizing, key) for key in Sizing.__dataclass_fields__}
    return {"model": name, **fields, "gpu_memory_bytes": options.gpu_memory_bytes}


def _show(name: str, shape: ModelShape, sizing: Sizing, options: SizeOptions) -> None:
    each = " on each GPU" if options.tensor_parallel > 1 else ""
    emit_table(
        f"{name}: {shape.num_layers} layers, {sizing.dtype} cache, {sizing.tokens:,} tokens{each}",
        ("layers", "kind", "KV heads", "head size", "window", "bytes a token", "state", "bytes"),
        [
            (
                layer.layers, layer.kind, layer.kv_heads, layer.head_dim, layer.window_tokens,
                layer.bytes_per_token or None, layer.state_bytes or None, human(layer.bytes),
            )
            for layer in sizing.layers
        ],
        empty="no layer keeps anything",
    )  # fmt: skip
    for line in _lines(sizing, options):
        click.echo(line)


def _lines(sizing: Sizing, options: SizeOptions) -> list[str]:
    beyond = sizing.bytes_per_token_beyond_windows
    after = "" if beyond == sizing.bytes_per_token else f" ({beyond:,} once the windows are full)"
    blocks = f"{sizing.blocks_per_request:,} blocks of {human(sizing.block_bytes)}"
    lines = [
        f"a token     {sizing.bytes_per_token:,} bytes{after}",
        f"a request   {human(sizing.bytes)} in {blocks}",
    ]
    if options.tensor_parallel > 1:
        lines.append(f"all GPUs    {human(sizing.bytes_all_gpus)}")
    if sizing.naive_ratio is not None:
        lines.append(
            f"naive       {human(sizing.naive_bytes)}, {sizing.naive_ratio:.3g} times what the model needs: "
            "layers × hidden × 2 × tokens × bytes leaves out grouped heads, windows and states"
        )
    if sizing.concurrent_requests is not None and options.gpu_memory_bytes is not None:
        lines.append(
            f"concurrent  {sizing.concurrent_requests:,} such requests in {human(options.gpu_memory_bytes)}"
            f" ({sizing.num_blocks:,} blocks)"
        )
    return [*lines, *(f"note        {note}" for note in sizing.notes)]


def human(count: int) -> str:
    """Return bytes for people, in powers of 1,000 with those of 1,024 beside them from a megabyte on."""
    for unit, binary, power in (("TB", "TiB", 4), ("GB", "GiB", 3), ("MB", "MiB", 2)):
        if count >= 1000**power:
            return f"{count / 1000**power:.2f} {unit} ({count / 1024**power:.2f} {binary})"
    return f"{count:,} B"


size_command.epilog = f"Presets: {', '.join(sorted(presets()))}."
