"""The groups of layers that a replay of some model needs, from the model's ``config.json``."""

from kvscope.cache.groups import Group
from kvscope.cache.shapes import ModelShape
from kvscope.cache.sizing import SizeOptions, layer_groups
from kvscope.errors import UsageError

_KINDS = {"full_attention", "latent_attention", "sparse_index", "sliding_window"}


def model_groups(shape: ModelShape, block_size: int) -> tuple[Group, ...]:
    """Return the groups of a model whose engine has blocks of ``block_size`` tokens, in the engine's order.

    Layers with smaller heads than others may come in larger blocks, as vLLM makes all blocks equal in bytes.
    Raises ``UsageError`` for layers that keep a state or a chunk, whose reuse is not modelled.
    """
    groups = layer_groups(shape, SizeOptions(tokens=block_size, block_size=block_size))
    other = sorted({group.kind for group in groups} - _KINDS)
    if other or not groups:
        raise UsageError(
            f"a {shape.model_type} model has {', '.join(other) or 'no'} layers, and a replay models only "
            "those of full attention and sliding windows: without --layers full attention is taken"
        )
    return tuple(Group(block_size=group.block_size, window=group.reach) for group in groups)
