"""How vLLM cuts a model's caches into the blocks of one pool, and how many of them a request takes.

All groups of layers draw blocks of the same size from one pool (vLLM 0.32, executed on tiny models: the
recorded answers are in ``tests/data/sizing``).
"""

import dataclasses
from collections.abc import Sequence

# with prefix caching a state is kept at a block's end beside the running one ("align" mode), and Mamba 2
# exports one more from the middle of a prefill
_STATES_WITH_PREFIX_CACHING = 2
_STATES_OF_MAMBA2 = 3
_EVEN = 1.5  # below this ratio of their numbers, two types of layers form groups of the larger number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlocks:
    """``layers`` layers of one kind: bytes a token, or bytes of a state, on one GPU."""

    kind: str
    layers: int
    token_bytes: int = 0
    state_bytes: int = 0
    reach: int | None = None  # tokens: the window or chunk


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked of the pool. ``batched_tokens``: those of one engine step, None: it decodes."""

    tokens: int
    block_size: int
    batched_tokens: int | None = None
    prefix_caching: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that take their blocks together; ``reach`` is their window or chunk in tokens, None: all."""

    kind: str
    block_size: int  # tokens
    reach: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """One block of the pool, how many a request of the demanded length takes, and for which groups.

    ``groups`` stand in the engine's order: by the kinds' first layers.
    """

    block_size: int  # tokens in a block of full attention; may be more than asked, to hold a state
    block_bytes: int
    blocks_per_request: int
    groups: tuple[LayerGroup, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Pages:
    group: LayerGroup
    layers: int
    page_bytes: int
    blocks: int


def plan_blocks(layers: Sequence[LayerBlocks], demand: Demand) -> BlockPlan:
    """Return the pool's blocks for these layers; without any there is nothing to cut, and all is zero."""
    growing = [layer for layer in layers if layer.token_bytes]
    states = [layer for layer in layers if layer.state_bytes]
    block_size = _aligned(growing, states, demand.block_size)
    if len({(layer.kind in _TOKEN_KINDS, layer.reach, bool(layer.token_bytes)) for layer in layers}) <= 1:
        pages = [_pages(layer, block_size, None, demand, mixed=False) for layer in layers]
        return BlockPlan(
            block_size=block_size,
            block_bytes=sum(page.layers * page.page_bytes for page in pages),
            blocks_per_request=max((page.blocks for page in pages), default=0),
            groups=tuple(page.group for page in pages[:1]),
        )
    widest = max(layer.token_bytes * block_size or layer.state_bytes for layer in layers)
    pages = [_pages(layer, block_size, widest, demand, mixed=bool(growing)) for layer in layers]
    return _grouped(pages, block_size)


_TOKEN_KINDS = {"full_attention", "latent_attention", "sparse_index"}


def _aligned(growing: Sequence[LayerBlocks], states: Sequence[LayerBlocks], block_size: int) -> int:
    """Return the block size that lets a block of attention hold a whole state."""
    if not growing or not states:
        return block_size
    state = max(layer.state_bytes for layer in states)
    token = max(layer.token_bytes for layer in growing)
    return block_size * -(-state // (block_size * token))


def _pages(layer: LayerBlocks, block_size: int, widest: int | None, demand: Demand, *, mixed: bool) -> _Pages:
    """Return one layer's share of a block; ``widest`` is the page that all layers must come to."""
    if not layer.token_bytes:
        kept = _STATES_OF_MAMBA2 if layer.kind == "mamba2" else _STATES_WITH_PREFIX_CACHING
        blocks = kept if mixed and demand.prefix_caching else 1
        page = widest or layer.state_bytes
        group = LayerGroup(kind=layer.kind, block_size=block_size, reach=None)
        return _Pages(group=group, layers=layer.layers, page_bytes=page, blocks=blocks)
    page = layer.token_bytes * block_size
    if widest is not None and widest > page:
        if widest % page == 0:
            block_size *= widest // page  # a smaller page takes more tokens
        page = widest  # or is padded
    group = LayerGroup(kind=layer.kind, block_size=block_size, reach=layer.reach)
    held = _held(layer, block_size, demand)
    return _Pages(group=group, layers=layer.layers, page_bytes=page, blocks=held)


def _held(layer: LayerBlocks, block_size: int, demand: Demand) -> int:
    """Return the blocks of one request in one layer."""
    whole = -(-demand.tokens // block_size)
    if layer.reach is None:
        return whole
    if layer.kind == "chunked_attention":
        return -(-min(layer.reach + (demand.batched_tokens or 0), demand.tokens) // block_size)
    # a window may begin in the middle of a block, so it takes one more
    step = 1 if demand.batched_tokens is None else demand.batched_tokens
    held = -(-min(layer.reach - 1 + step, demand.tokens) // block_size) + 1
    return min(held, whole) if demand.batched_tokens is None else held


def _grouped(pages: Sequence[_Pages], block_size: int) -> BlockPlan:
    """Return the plan for layers of several types: groups of equally many layers share the pool."""
    fewest, most = min(page.layers for page in pages), max(page.layers for page in pages)
    size = most if most < fewest * _EVEN else fewest
    groups = [(-(-page.layers // size), page) for page in pages]
    return BlockPlan(
        block_size=block_size,
        block_bytes=max(-(-page.layers // count) * page.page_bytes for count, page in groups),
        blocks_per_request=sum(count * page.blocks for count, page in groups),
        groups=tuple(page.group for count, page in groups for _ in range(count)),
    )
