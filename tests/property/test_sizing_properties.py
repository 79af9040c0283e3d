"""Laws of cache sizes: more tokens never cost less, heads that divide are shared exactly."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvscope.cache.model_config import read_shape
from kvscope.cache.model_files import presets
from kvscope.cache.shapes import KvDtype, ModelShape, kv_dtype
from kvscope.cache.sizing import SizeOptions, Sizing, size
from kvscope.errors import UsageError

SHAPES = {name: read_shape(entry["config"], name=name) for name, entry in presets().items()}
shapes = st.sampled_from(sorted(SHAPES)).map(SHAPES.__getitem__)
counts = st.integers(1, 300_000)
dtypes = st.sampled_from(["bfloat16", "fp8", "int8_per_token_head", "int4", "nvfp4"]).map(kv_dtype)


@given(shapes, counts, counts, dtypes)
def test_bytes_and_blocks_grow_with_tokens(
    shape: ModelShape, first: int, second: int, dtype: KvDtype
) -> None:
    short, long = (
        size(shape, SizeOptions(tokens=tokens, dtype=dtype, gpu_memory_bytes=2**36))
        for tokens in sorted((first, second))
    )
    assert short.bytes <= long.bytes
    assert short.blocks_per_request <= long.blocks_per_request
    assert (short.concurrent_requests or 0) >= (long.concurrent_requests or 0)
    most = long.tokens - short.tokens
    assert long.bytes - short.bytes <= most * long.bytes_per_token
    assert long.bytes - short.bytes >= most * long.bytes_per_token_beyond_windows


@given(shapes, counts, dtypes)
def test_the_layers_add_up(shape: ModelShape, tokens: int, dtype: KvDtype) -> None:
    sizing = size(shape, SizeOptions(tokens=tokens, dtype=dtype))
    assert sum(layer.bytes for layer in sizing.layers) == sizing.bytes
    assert sum(layer.bytes_per_token for layer in sizing.layers) == sizing.bytes_per_token
    assert sum(layer.layers for layer in sizing.layers) == len(shape.layers)


@given(st.integers(0, 4), st.integers(0, 4), counts, st.integers(1, 40))
def test_heads_that_divide_are_shared_exactly(
    kv_power: int, rank_power: int, tokens: int, layers: int
) -> None:
    kv_heads, ranks = 2**kv_power, 2**rank_power
    config = {
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": layers, "num_attention_heads": 16,
        "num_key_value_heads": kv_heads,
    }  # fmt: skip
    shape = read_shape(config, name="config.json")
    whole = size(shape, SizeOptions(tokens=tokens))
    share = size(shape, SizeOptions(tokens=tokens, tensor_parallel=ranks))
    assert share.bytes * min(ranks, kv_heads) == whole.bytes
    assert share.bytes_all_gpus == whole.bytes * max(ranks // kv_heads, 1)


@given(shapes, counts, st.integers(1, 512), st.integers(2**20, 2**40))
def test_what_fits_fits(shape: ModelShape, tokens: int, block_size: int, memory: int) -> None:
    sizing = size(shape, SizeOptions(tokens=tokens, block_size=block_size, gpu_memory_bytes=memory))
    assert sizing.num_blocks is not None
    assert sizing.concurrent_requests is not None
    taken = sizing.concurrent_requests * sizing.blocks_per_request
    assert taken <= sizing.num_blocks < taken + sizing.blocks_per_request
    assert sizing.num_blocks * sizing.block_bytes <= memory
    assert sizing.blocks_per_request * sizing.block_bytes >= sizing.bytes


KEYS = sorted(
    {key for entry in presets().values() for key in entry["config"]} | {"text_config", "layer_types"}
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(SHAPES)), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_any_config_has_a_size_or_one_line_of_why_not(name: str, changes: dict[str, Any]) -> None:
    found: Sizing | str
    try:
        found = size(read_shape(presets()[name]["config"] | changes, name=name), SizeOptions(tokens=100))
    except UsageError as error:
        found = str(error)
    assert found.bytes >= 0 if isinstance(found, Sizing) else found.count("\n") == 0
