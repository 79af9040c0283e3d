"""Cache sizes of published models, each with its arithmetic, and of what vLLM itself reported."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cache.model_config import read_shape
from kvscope.cache.model_files import load_config, presets
from kvscope.cache.shapes import kv_dtype
from kvscope.cache.sizing import SizeOptions, Sizing, size
from kvscope.errors import UsageError

DATA = Path(__file__).parents[2] / "data" / "sizing"
REPORTED = json.loads((DATA / "vllm-0.32.0.json").read_text())
GIB = 2**30


def of(name: str, tokens: int = 4096, **options: Any) -> Sizing:
    label, config = load_config(name)
    return size(read_shape(config, name=label), SizeOptions(tokens=tokens, **options))


def of_config(config: dict[str, Any], tokens: int = 4096, **options: Any) -> Sizing:
    return size(read_shape(config, name="config.json"), SizeOptions(tokens=tokens, **options))


def kinds(sizing: Sizing) -> dict[str, int]:
    return {layer.kind: layer.layers for layer in sizing.layers}


LLAMA = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip


def test_llama_3_70b() -> None:
    sizing = of("llama-3-70b")
    assert sizing.bytes_per_token == 80 * 8 * 128 * 2 * 2 == 327_680
    assert sizing.bytes == 327_680 * 4096
    assert round(sizing.bytes / 1e9, 2) == 1.34
    assert sizing.naive_bytes == 80 * 8192 * 2 * 4096 * 2
    assert round(sizing.naive_bytes / 1e9, 1) == 10.7
    assert sizing.naive_ratio == 8.0
    assert sizing.concurrent_requests is None


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-2-7b", 32 * 32 * 128 * 2 * 2),  # multi-head: 524,288
        ("llama-3-8b", 32 * 8 * 128 * 2 * 2),  # 131,072
        ("llama-3.1-405b", 126 * 8 * 128 * 2 * 2),
        ("qwen2.5-7b", 28 * 4 * 128 * 2 * 2),  # its window is switched off
        ("qwen3-8b", 36 * 8 * 128 * 2 * 2),
        ("qwen3-30b-a3b", 48 * 4 * 128 * 2 * 2),  # heads of 128, not 2048 / 32
        ("mixtral-8x7b", 32 * 8 * 128 * 2 * 2),
        ("deepseek-v2-lite", 27 * (512 + 64) * 2),
        ("deepseek-v3", 61 * (512 + 64) * 2),  # 70,272
        ("jamba-v0.1", 4 * 8 * 128 * 2 * 2),  # attention in 4 of 32 layers
        ("bamba-9b", 3 * 8 * 128 * 2 * 2),
        ("nemotron-h-8b", 4 * 8 * 128 * 2 * 2),
        ("qwen3-next-80b-a3b", 12 * 2 * 256 * 2 * 2),
    ],
)
def test_bytes_a_token_of_published_models(name: str, bytes_per_token: int) -> None:
    sizing = of(name)
    assert sizing.bytes_per_token == sizing.bytes_per_token_beyond_windows == bytes_per_token


@pytest.mark.parametrize(
    ("name", "layer_bytes", "full", "sliding", "window"),
    [
        ("gemma-2-9b", 8 * 256 * 2 * 2, 21, 21, 4096),
        ("gemma-3-27b", 16 * 128 * 2 * 2, 10, 52, 1024),
        ("gpt-oss-20b", 8 * 64 * 2 * 2, 12, 12, 128),
        ("gpt-oss-120b", 8 * 64 * 2 * 2, 18, 18, 128),
        ("mistral-7b-v0.1", 8 * 128 * 2 * 2, 0, 32, 4096),
    ],
)
def test_windows_stop_growing(name: str, layer_bytes: int, full: int, sliding: int, window: int) -> None:
    for tokens in (1, window - 1, window, window + 1, 8192, 100_000):
        sizing = of(name, tokens)
        assert sizing.bytes == layer_bytes * (full * tokens + sliding * min(tokens, window))
        assert sizing.bytes_per_token == layer_bytes * (full + sliding)
        assert sizing.bytes_per_token_beyond_windows == layer_bytes * full


@pytest.mark.parametrize(
    ("name", "kind", "layers", "one"),
    [
        # convolution: 3 steps of the inner 8192; state: 8192 x 16; bfloat16
        ("jamba-v0.1", "mamba", 28, (3 * 8192 + 8192 * 16) * 2),
        # 3 steps of 8192 + 2 groups' inputs of 128; 128 heads of 64 x 128; bfloat16
        ("bamba-9b", "mamba2", 29, (3 * (8192 + 2 * 128) + 128 * 64 * 128) * 2),
        # the same with 8 groups, and a float32 state as NVIDIA's models ask for
        ("nemotron-h-8b", "mamba2", 24, 3 * (8192 + 2 * 8 * 128) * 2 + 128 * 64 * 128 * 4),
        # 3 steps of 2 x 16 x 128 + 32 x 128 channels; 32 heads of 128 x 128
        ("qwen3-next-80b-a3b", "gated_delta_net", 36, (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128) * 2),
    ],
)
def test_states_are_constant(name: str, kind: str, layers: int, one: int) -> None:
    short, long = of(name, 1), of(name, 100_000)
    assert kinds(short)[kind] == layers
    assert short.state_bytes == long.state_bytes == layers * one
    assert long.bytes - short.bytes == 99_999 * short.bytes_per_token


def test_quantised_caches() -> None:
    plain = of("llama-3-8b").bytes_per_token
    assert of("llama-3-8b", dtype=kv_dtype("fp8")).bytes_per_token == plain // 2
    assert of("llama-3-8b", dtype=kv_dtype("int8")).bytes_per_token == plain // 2
    # one float32 scale a head, a layer, and side
    assert of("llama-3-8b", dtype=kv_dtype("int8_per_token_head")).bytes_per_token == 32 * 8 * 2 * (128 + 4)
    assert of("llama-3-8b", dtype=kv_dtype("nvfp4")).bytes_per_token == 32 * 8 * 2 * (64 + 8)
    # states are not quantised with the cache
    assert of("bamba-9b", dtype=kv_dtype("fp8")).state_bytes == of("bamba-9b").state_bytes
    assert of("deepseek-v3", dtype=kv_dtype("fp8")).bytes_per_token == 61 * 576


def test_a_quantised_checkpoint_says_so_itself() -> None:
    modelopt = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    compressed = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    for scheme in (modelopt, compressed):
        sizing = of_config(LLAMA | {"quantization_config": scheme})
        assert (sizing.dtype, sizing.bytes_per_token) == ("fp8", 65_536)
        assert any("quantization_config" in note for note in sizing.notes)
    assert of_config(LLAMA | {"quantization_config": {"quant_method": "gptq"}}).dtype == "bfloat16"


def test_sparse_attention_of_deepseek_v3_2() -> None:
    config = presets()["deepseek-v3"]["config"] | {"model_type": "deepseek_v32", "index_head_dim": 128}
    # the index: fp8 keys of 128 with one float32 scale
    assert of_config(config).bytes_per_token == 61 * (576 * 2 + 132)
    # 656 bytes: 512 fp8, 4 float32 scales, 64 of 16 bits
    assert of_config(config, dtype=kv_dtype("fp8")).bytes_per_token == 61 * (656 + 132)


def test_tensor_parallel() -> None:
    whole = of("llama-3-70b")
    for ranks in (2, 4, 8):
        share = of("llama-3-70b", tensor_parallel=ranks)
        assert share.bytes * ranks == whole.bytes == share.bytes_all_gpus
    # 8 KV heads on 16 GPUs: each head twice
    assert of("llama-3-70b", tensor_parallel=16).bytes == whole.bytes // 8
    assert of("llama-3-70b", tensor_parallel=16).bytes_all_gpus == 2 * whole.bytes
    assert of("deepseek-v3", tensor_parallel=8).bytes == of("deepseek-v3").bytes
    assert of("llama-3-70b", tensor_parallel=8).naive_ratio == 8.0
    assert of("nemotron-h-8b", tensor_parallel=8).state_bytes * 8 == of("nemotron-h-8b").state_bytes
    # bamba has one group: both inputs of it are on both GPUs
    assert of("bamba-9b", tensor_parallel=2).state_bytes > of("bamba-9b").state_bytes // 2


def test_tensor_parallel_that_does_not_divide() -> None:
    with pytest.raises(UsageError, match=r"--tensor-parallel 3 .* allowed: 1, 2, 4, 8, 16, 32, 64$"):
        of("llama-3-70b", tensor_parallel=3)
    with pytest.raises(UsageError, match=r"allowed: 1, 2, 4, 28$"):
        of("qwen2.5-7b", tensor_parallel=8)


def test_whole_blocks() -> None:
    # 4,097 tokens take 257 blocks of 16; a block is 16 x 327,680 bytes
    sizing = of("llama-3-70b", 4097, gpu_memory_bytes=80 * GIB)
    assert (sizing.block_bytes, sizing.blocks_per_request) == (16 * 327_680, 257)
    assert sizing.num_blocks == 80 * GIB // (16 * 327_680) == 16_384
    assert sizing.concurrent_requests == 16_384 // 257 == 63
    assert of("llama-3-70b", 4096, gpu_memory_bytes=80 * GIB).concurrent_requests == 64
    assert of("llama-3-70b", 4096, gpu_memory_bytes=GIB).concurrent_requests == 0


def test_the_recorded_servers() -> None:
    """As their metrics pages say: 300 and 700 blocks of 32 tokens, prompts of up to 8192."""
    config = json.loads((DATA.parent / "tokenizer" / "config.json").read_text())
    for blocks, tokens, concurrency in ((300, 9600, 1.171875), (700, 22_400, 2.734375)):
        memory = blocks * 32 * 2 * 2 * 32 * 2 * 4  # 2 layers, 2 heads of 32, keys and values, float32
        sizing = of_config(config, 8192, block_size=32, gpu_memory_bytes=memory)
        assert (sizing.num_blocks, sizing.kv_cache_size_tokens) == (blocks, tokens)
        assert blocks / sizing.blocks_per_request == concurrency


@pytest.mark.parametrize("case", REPORTED, ids=lambda case: case["name"])
def test_vllm_reports_the_same(case: Any) -> None:
    engine, reported = case["engine"], case["reported"]
    sizing = of_config(
        case["config"],
        engine["max_model_len"],
        block_size=engine["block_size"],
        gpu_memory_bytes=engine["kv_cache_memory_bytes"],
        batched_tokens=engine["max_num_batched_tokens"],
        prefix_caching=engine["enable_prefix_caching"],
        dtype=kv_dtype(engine.get("kv_cache_dtype", reported["dtype"])),
        state_dtype=kv_dtype("float32"),  # vLLM's CPU build resets the states to it
    )
    assert sizing.num_blocks == reported["num_gpu_blocks"]
    assert sizing.kv_cache_size_tokens == reported["kv_cache_size_tokens"]
    if sizing.bytes_per_token:  # without attention, vLLM counts a state as one block of any length
        assert sizing.block_size == reported["block_size"]


def test_every_preset_is_read() -> None:
    assert len(presets()) >= 12
    for name, entry in presets().items():
        sizing = of(name, gpu_memory_bytes=400 * GIB)
        assert (sizing.concurrent_requests or 0) > 1
        assert of(entry["source"]).bytes == sizing.bytes
        assert not read_shape(entry["config"], name=name).notes
