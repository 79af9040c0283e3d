"""Configs of many families are read as their models are built; what is wrong names its key."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cache.families import FAMILIES
from kvscope.cache.model_config import read_shape
from kvscope.cache.model_files import load_config
from kvscope.cache.shapes import Attention, Latent, ModelShape, State, kv_dtype
from kvscope.errors import UsageError

BASE = {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 8, "torch_dtype": "bfloat16"}
MAMBA2 = {
    "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4,
    "mamba_expand": 2,
}  # fmt: skip


def read(model_type: str, read_as: str | None = None, **keys: Any) -> ModelShape:
    config = {**BASE, "model_type": model_type, **keys}
    return read_shape({k: v for k, v in config.items() if v != "absent"}, name="config.json", read_as=read_as)


def windows(shape: ModelShape) -> list[int | None]:
    return [layer.reach for layer in shape.layers if not isinstance(layer, State)]


def attention(shape: ModelShape) -> Attention:
    return next(layer for layer in shape.layers if isinstance(layer, Attention))


@pytest.mark.parametrize(
    ("model_type", "keys", "expected"),
    [
        ("mistral", {"sliding_window": 512}, [512] * 6),
        ("mistral", {"sliding_window": None}, [None] * 6),
        ("qwen2", {"sliding_window": 512, "use_sliding_window": False, "max_window_layers": 2}, [None] * 6),
        ("qwen2", {"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 4},
         [None] * 4 + [512] * 2),
        ("gemma2", {"sliding_window": 512}, [512, None] * 3),
        ("gemma3_text", {"sliding_window": 512}, [512] * 5 + [None]),
        ("gemma3_text", {"sliding_window": 512, "sliding_window_pattern": 3}, [512, 512, None] * 2),
        ("gpt_oss", {"sliding_window": 128}, [128, None] * 3),
        ("cohere2", {"sliding_window": 512}, [512, 512, 512, None, 512, 512]),
        ("exaone4", {"sliding_window": 512, "sliding_window_pattern": "LLG"}, [512, 512, None] * 2),
        ("llama4_text", {"attention_chunk_size": 512}, [512, 512, 512, None, 512, 512]),
        ("llama", {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"] * 3},
         [None, 64] * 3),
        ("gemma3n_text", {"sliding_window": 512, "num_kv_shared_layers": 3}, [512] * 3),
    ],
)  # fmt: skip
def test_patterns_of_windows(model_type: str, keys: Any, expected: Any) -> None:
    assert windows(read(model_type, **keys)) == expected


@pytest.mark.parametrize(
    ("model_type", "keys", "expected"),
    [
        ("jamba", {"attn_layer_period": 3, "attn_layer_offset": 1, "mamba_expand": 2, "mamba_d_state": 16,
                   "mamba_d_conv": 4}, "MAMMAM"),
        ("bamba", {"attn_layer_indices": [2, 5], **MAMBA2}, "MMAMMA"),
        ("granitemoehybrid", {"layer_types": ["mamba"] * 5 + ["attention"], **MAMBA2}, "MMMMMA"),
        ("falcon_h1", {"mamba_d_ssm": 1024, **MAMBA2}, "MA" * 6),
        ("nemotron_h", {"hybrid_override_pattern": "M-M*ME", "mamba_num_heads": 16, "mamba_head_dim": 64,
                        "n_groups": 2, "ssm_state_size": 128, "conv_kernel": 4}, "MMAM"),
        ("qwen3_next", {"full_attention_interval": 3, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
                        "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4},
         "MMAMMA"),
        ("lfm2", {"layer_types": ["conv"] * 4 + ["full_attention", "conv"], "conv_L_cache": 3}, "MMMMAM"),
        ("minimax", {"attn_type_list": [0, 0, 1, 0, 0, 1], "head_dim": 128}, "MMAMMA"),
        ("mamba", {"state_size": 16, "conv_kernel": 4, "intermediate_size": 2048}, "MMMMMM"),
        ("mamba2", {"state_size": 64, "conv_kernel": 4, "num_heads": 16, "head_dim": 64, "n_groups": 1},
         "MMMMMM"),
    ],
)  # fmt: skip
def test_hybrids(model_type: str, keys: Any, expected: str) -> None:
    shape = read(model_type, **keys)
    assert "".join("M" if isinstance(layer, State) else "A" for layer in shape.layers) == expected
    assert (shape.num_heads is None) == ("A" not in expected)


def test_heads_of_older_families() -> None:
    assert attention(read("falcon", multi_query=True)).kv_heads == 1
    new = read("falcon", multi_query=True, new_decoder_architecture=True, num_kv_heads=4)
    assert attention(new).kv_heads == 4
    assert attention(read("gpt_bigcode", multi_query=True)).kv_heads == 1
    assert attention(read("chatglm", multi_query_group_num=2, kv_channels=128)).head_dim == 128
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
    shape = read_shape(gpt2, name="config.json")
    assert (attention(shape).kv_heads, attention(shape).head_dim, len(shape.layers)) == (12, 64, 12)
    assert shape.context_tokens == 1024
    dbrx = {
        "model_type": "dbrx",
        "n_layers": 40,
        "n_heads": 48,
        "d_model": 6144,
        "attn_config": {"kv_n_heads": 8},
    }
    assert attention(read_shape(dbrx, name="config.json")).kv_heads == 8


def test_multimodal_models_are_read_by_their_text_config() -> None:
    # google/gemma-3-4b-it leaves out what equals the configuration class
    config = {
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024,
        },
        "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152, "num_attention_heads": 16},
    }  # fmt: skip
    shape = read_shape(config, name="config.json")
    assert (attention(shape).kv_heads, attention(shape).head_dim) == (4, 256)
    assert windows(shape).count(None) == 5
    assert any("num_key_value_heads is not in config.json: 4" in note for note in shape.notes)
    nested = {
        "thinker_config": {"text_config": {**BASE, "model_type": "qwen3_moe", "num_key_value_heads": 2}}
    }
    assert attention(read_shape(nested, name="config.json")).kv_heads == 2


def test_dtypes() -> None:
    assert read("llama", torch_dtype="float16").dtype.name == "float16"
    assert read("llama", torch_dtype="absent", dtype="float16").dtype.name == "float16"
    nothing = read("llama", torch_dtype="absent")
    assert nothing.dtype.name == "bfloat16"
    assert "no dtype" in nothing.notes[0]
    assert "16 bits" in read("llama", torch_dtype="float32").notes[0]
    assert kv_dtype("torch.bfloat16").name == kv_dtype("BF16").name == "bfloat16"
    with pytest.raises(UsageError, match=r"data type 'fp7' is not known; allowed: float32, "):
        kv_dtype("fp7")


def test_latent_attention() -> None:
    shape = read("deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64)
    assert shape.layers == (Latent(rank=512, rope_dim=64),) * 6


def test_without_a_model_type() -> None:
    plain = read("absent", num_key_value_heads=2)
    assert attention(plain).kv_heads == 2
    assert "no model_type: read as plain attention" in plain.notes[0]
    assert isinstance(read("absent", kv_lora_rank=512, qk_rope_head_dim=64).layers[0], Latent)


def test_read_as_another_type() -> None:
    shape = read("brand_new", read_as="llama")
    assert len(shape.layers) == 6
    assert "read as llama, not as 'brand_new'" in shape.notes[0]
    with pytest.raises(UsageError, match=r"--as 'x' is not a known model_type; known: "):
        read("llama", read_as="x")


@pytest.mark.parametrize(
    ("model_type", "keys", "message"),
    [
        ("brand_new", {}, "config.json: model_type 'brand_new' is not known"),
        ("llama", {"num_hidden_layers": "absent"}, "config.json has no key 'num_hidden_layers'"),
        ("llama", {"hidden_size": "absent"}, "config.json has no key 'hidden_size'"),
        ("llama", {"num_attention_heads": None}, "config.json has no key 'num_attention_heads'"),
        ("llama", {"num_hidden_layers": 0}, "'num_hidden_layers' must be a whole number of 1 or more, not 0"),
        ("llama", {"num_hidden_layers": "32"}, "key 'num_hidden_layers' must be a whole number"),
        ("llama", {"num_hidden_layers": True}, "key 'num_hidden_layers' must be a whole number"),
        ("llama", {"num_key_value_heads": 3}, "8 attention heads do not share 3 KV heads evenly"),
        ("llama", {"hidden_size": 1001}, "has no key 'head_dim', and 1001 of hidden_size do not divide"),
        ("llama", {"layer_types": ["full_attention"]}, "'layer_types' names 1 layers, but the model has 6"),
        ("llama", {"layer_types": ["odd_attention"] * 6}, "not 'odd_attention'"),
        ("llama", {"layer_types": 7}, "key 'layer_types' must be a list of words, not 7"),
        ("llama", {"layer_types": ["mamba"] * 6}, "a llama model has no layers that keep a state"),
        ("gemma2", {}, "config.json has no key 'sliding_window'"),
        ("llama4_text", {}, "config.json has no key 'attention_chunk_size'"),
        ("deepseek_v3", {"qk_rope_head_dim": 64}, "config.json has no key 'kv_lora_rank'"),
        ("deepseek_v3", {"kv_lora_rank": 512}, "config.json has no key 'qk_rope_head_dim'"),
        ("jamba", {"attn_layer_offset": 4}, "config.json has no key 'attn_layer_period'"),
        ("jamba", {"attn_layer_period": 8}, "key 'attn_layer_offset' is None; allowed: a layer number"),
        ("bamba", {"attn_layer_indices": [1]}, "config.json has no key 'mamba_n_heads'"),
        ("nemotron_h", {}, "config.json has no key 'hybrid_override_pattern'"),
        ("nemotron_h", {"hybrid_override_pattern": "M-X*M-"}, "is 'M-X*M-'; allowed: 6 letters of M * - E"),
        ("minimax", {}, "key 'attn_type_list' is None"),
        ("llama", {"torch_dtype": "fp7"}, "config.json: dtype 'fp7' is not known"),
        ("llama", {"num_hidden_layers": 10**9}, "1,000,000,000 layers are more than any model has"),
        ("gemma3n_text", {"sliding_window": 8, "num_kv_shared_layers": 7}, "key 'num_kv_shared_layers' is 7"),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": "x"},
         "key 'max_window_layers' is 'x'"),
        ("bamba", {**MAMBA2, "mamba_ssm_dtype": "fp7"}, "config.json: mamba_ssm_dtype 'fp7' is not known"),
        ("gemma2", {"sliding_window": 512, "sliding_window_pattern": 0}, "'sliding_window_pattern' must be"),
    ],
)  # fmt: skip
def test_what_is_wrong_names_its_key(model_type: str, keys: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(model_type, **keys)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_folders_and_presets(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE | {"model_type": "llama"}))
    assert load_config(str(tmp_path))[1] == load_config(str(tmp_path / "config.json"))[1]
    assert load_config("LLAMA-3-70B")[0] == load_config("meta-llama/Meta-Llama-3-70B")[0] == "llama-3-70b"
    with pytest.raises(UsageError, match=r"llama-9 is neither .* nor a preset: bamba-9b, "):
        load_config("llama-9")
    with pytest.raises(UsageError, match="is not JSON"):
        load_config(str(_written(tmp_path / "broken.json", "{")))
    with pytest.raises(UsageError, match="must hold a JSON object, not a list"):
        load_config(str(_written(tmp_path / "list.json", "[]")))
    with pytest.raises(UsageError, match="cannot be read as text"):
        load_config(str(_written(tmp_path / "bytes.json", b"\xff\xfe\x00")))


def _written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_the_documented_types_are_the_known_ones() -> None:
    text = (Path(__file__).parents[3] / "docs" / "sizing.md").read_text(encoding="utf-8")
    missing = [model_type for model_type in FAMILIES if f"`{model_type}`" not in text]
    assert not missing
