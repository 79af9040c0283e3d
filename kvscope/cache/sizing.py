"""What a request of some length costs in cache memory, exactly, and how many fit into a GPU's."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from kvscope.cache.block_sizing import BlockPlan, Demand, LayerBlocks, LayerGroup, plan_blocks
from kvscope.cache.shapes import Attention, KvDtype, Layer, ModelShape, State
from kvscope.errors import UsageError

_ALLOWED_SHOWN = 12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """What is asked: a request's length and how the server is set up. None: as the model's file says."""

    tokens: int
    block_size: int = 16  # vLLM's default on GPUs
    tensor_parallel: int = 1
    dtype: KvDtype | None = None  # of the cache
    state_dtype: KvDtype | None = None  # of recurrent states
    gpu_memory_bytes: int | None = None  # on each GPU, for the cache alone
    batched_tokens: int | None = None  # of one engine step; None: requests that decode
    prefix_caching: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """Layers that keep the same; bytes of all of them together, on one GPU."""

    kind: str
    layers: int
    kv_heads: int | None
    head_dim: int | None
    window_tokens: int | None
    bytes_per_token: int
    state_bytes: int
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The answer. Bytes are those of one GPU unless the name says otherwise."""

    model_type: str
    tokens: int
    dtype: str
    tensor_parallel: int
    bytes_per_token: int  # while no window is full
    bytes_per_token_beyond_windows: int
    state_bytes: int
    bytes: int
    bytes_all_gpus: int
    naive_bytes: int  # of the whole model
    naive_ratio: float | None  # to what the whole model needs on one GPU
    block_size: int
    block_bytes: int
    blocks_per_request: int
    num_blocks: int | None
    concurrent_requests: int | None
    kv_cache_size_tokens: int | None
    layers: tuple[LayerSize, ...]
    notes: tuple[str, ...]


def size(shape: ModelShape, options: SizeOptions) -> Sizing:
    """Return what one request of ``options.tokens`` keeps, and how many such fit.

    ``concurrent_requests`` and ``kv_cache_size_tokens`` are what vLLM reports for that memory (0.32,
    executed); both are None where no memory is given. Raises ``UsageError`` when heads cannot be shared out
    over that many GPUs.
    """
    _check_parallel(shape, options.tensor_parallel)
    dtype = options.dtype or shape.cache_dtype
    layers = _layer_sizes(shape, options, dtype)
    held = sum(layer.bytes for layer in layers)
    whole = held if options.tensor_parallel == 1 else _whole_model_bytes(shape, options)
    naive = dtype.plain_bytes(shape.num_layers * shape.hidden_size * 2 * options.tokens)
    plan = _plan(layers, options)
    memory = options.gpu_memory_bytes
    num_blocks = memory // plan.block_bytes if memory is not None and plan.block_bytes else None
    fits = None if num_blocks is None else num_blocks // plan.blocks_per_request
    return Sizing(
        model_type=shape.model_type,
        tokens=options.tokens,
        dtype=dtype.name,
        tensor_parallel=options.tensor_parallel,
        bytes_per_token=sum(layer.bytes_per_token for layer in layers),
        bytes_per_token_beyond_windows=sum(
            layer.bytes_per_token for layer in layers if layer.window_tokens is None
        ),
        state_bytes=sum(layer.state_bytes for layer in layers),
        bytes=held,
        bytes_all_gpus=held * options.tensor_parallel,
        naive_bytes=naive,
        naive_ratio=naive / whole if whole else None,
        block_size=plan.block_size,
        block_bytes=plan.block_bytes,
        blocks_per_request=plan.blocks_per_request,
        num_blocks=num_blocks,
        concurrent_requests=fits,
        kv_cache_size_tokens=(
            None if num_blocks is None else num_blocks * options.tokens // plan.blocks_per_request
        ),
        layers=layers,
        notes=shape.notes + _notes(options, plan.block_size, num_blocks, plan.blocks_per_request),
    )


def layer_groups(shape: ModelShape, options: SizeOptions) -> tuple[LayerGroup, ...]:
    """Return the groups in which the model's layers take their blocks, in the engine's order."""
    return _plan(_layer_sizes(shape, options, options.dtype or shape.cache_dtype), options).groups


def _plan(layers: Sequence[LayerSize], options: SizeOptions) -> BlockPlan:
    demand = Demand(
        tokens=options.tokens,
        block_size=options.block_size,
        batched_tokens=options.batched_tokens,
        prefix_caching=options.prefix_caching,
    )
    return plan_blocks(_blocks(layers), demand)


def _layer_sizes(shape: ModelShape, options: SizeOptions, dtype: KvDtype) -> tuple[LayerSize, ...]:
    counts = Counter(shape.layers)  # keeps the order in which they first occur
    return tuple(_layer_size(shape, layer, count, options, dtype) for layer, count in counts.items())


def _layer_size(
    shape: ModelShape, layer: Layer, count: int, options: SizeOptions, dtype: KvDtype
) -> LayerSize:
    if isinstance(layer, State):
        asked = dataclasses.replace(layer, recurrent_dtype=options.state_dtype.name) if (
            options.state_dtype
        ) else layer  # fmt: skip
        state = count * asked.state_bytes(shape.dtype, options.tensor_parallel)
        return LayerSize(
            kind=layer.kind, layers=count, kv_heads=None, head_dim=None, window_tokens=None,
            bytes_per_token=0, state_bytes=state, bytes=state,
        )  # fmt: skip
    per_token = count * layer.token_bytes(dtype, options.tensor_parallel)
    kept = options.tokens if layer.reach is None else min(options.tokens, layer.reach)
    heads = layer if isinstance(layer, Attention) else None
    return LayerSize(
        kind=layer.kind,
        layers=count,
        kv_heads=heads.kv_heads if heads else None,
        head_dim=heads.head_dim if heads else None,
        window_tokens=layer.reach,
        bytes_per_token=per_token,
        state_bytes=0,
        bytes=per_token * kept,
    )


def _blocks(layers: Sequence[LayerSize]) -> list[LayerBlocks]:
    return [
        LayerBlocks(
            kind=layer.kind,
            layers=layer.layers,
            token_bytes=layer.bytes_per_token // layer.layers,
            state_bytes=layer.state_bytes // layer.layers,
            reach=layer.window_tokens,
        )
        for layer in layers
    ]


def _whole_model_bytes(shape: ModelShape, options: SizeOptions) -> int:
    alone = dataclasses.replace(options, tensor_parallel=1)
    return sum(layer.bytes for layer in _layer_sizes(shape, alone, options.dtype or shape.cache_dtype))


def _check_parallel(shape: ModelShape, ranks: int) -> None:
    if ranks == 1 or _divides(shape, ranks):
        return
    most = max([shape.num_heads or 1, *(layer.heads for layer in shape.layers if isinstance(layer, State))])
    allowed = [str(count) for count in range(1, most + 1) if _divides(shape, count)][:_ALLOWED_SHOWN]
    raise UsageError(
        f"--tensor-parallel {ranks} does not share out the heads of this model evenly; allowed: "
        f"{', '.join(allowed)}"
    )


def _divides(shape: ModelShape, ranks: int) -> bool:
    """Return whether every GPU gets as many heads, or one of few KV heads as often, as vLLM demands."""
    if shape.num_heads is not None and shape.num_heads % ranks:
        return False
    for layer in shape.layers:
        if isinstance(layer, State) and layer.heads % ranks:
            return False
        if isinstance(layer, Attention) and layer.kv_heads % ranks and ranks % layer.kv_heads:
            return False
    return True


def _notes(
    options: SizeOptions, block_size: int, num_blocks: int | None, blocks_per_request: int
) -> tuple[str, ...]:
    notes = []
    if block_size != options.block_size:
        notes.append(
            f"blocks of {block_size} tokens instead of {options.block_size}, so that one holds a state"
        )
    if num_blocks and num_blocks % blocks_per_request == 0:
        notes.append(
            "vLLM sets one block aside: the last of these requests waits for a block until another ends"
        )
    if num_blocks is not None and num_blocks < blocks_per_request:
        notes.append(f"a request takes {blocks_per_request} blocks and the memory holds {num_blocks}")
    return tuple(notes)
