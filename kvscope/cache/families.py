"""The model families whose caches are known: how layers alternate, what a layer keeps."""

import dataclasses
from collections.abc import Mapping

from kvscope.cache import layer_patterns as rule
from kvscope.cache import state_shapes as state
from kvscope.cache.layer_patterns import Pattern
from kvscope.cache.state_shapes import StateOf


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one ``model_type`` is read; ``defaults`` are values that its published files leave out."""

    pattern: Pattern = rule.full
    latent: bool = False
    state: StateOf | None = None
    defaults: Mapping[str, int] = dataclasses.field(default_factory=dict)


_PLAIN = (
    "apertus", "arcee", "baichuan", "bailing_moe", "bloom", "chatglm", "cohere", "dbrx", "deepseek",
    "ernie4_5", "ernie4_5_moe", "exaone", "falcon", "gemma", "glm", "glm4", "glm4_moe", "glm4v_moe_text",
    "glm4v_text", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "granite", "granitemoe", "granitemoeshared",
    "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm2", "internlm3", "llama", "minimax_m2", "mpt",
    "nemotron", "olmo", "olmo2", "olmoe", "opt", "orion", "persimmon", "phi", "seed_oss", "smollm3",
    "solar", "stablelm", "xverse",
)  # fmt: skip
_WINDOWED = ("ministral", "ministral3", "mistral", "mixtral", "phi3", "phimoe", "starcoder2")
_UPPER_WINDOWED = (
    "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3",
    "qwen3_moe", "qwen3_omni_moe_text", "qwen3_vl_text", "qwen3_vl_moe_text",
)  # fmt: skip
_LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_k2", "pangu_ultra_moe")

_MAMBA2 = state.mamba2(
    heads="mamba_n_heads", head_dim="mamba_d_head", groups="mamba_n_groups", state="mamba_d_state",
    conv="mamba_d_conv",
)  # fmt: skip
_MAMBA1_ALONE = Family(
    pattern=rule.states,
    state=state.mamba1(inner=("intermediate_size",), state="state_size", conv="conv_kernel", expand="expand"),
)
_QWEN_HYBRID = Family(
    pattern=rule.every(4, "full_attention_interval", rule.STATE), state=state.gated_delta_net
)
_LFM2 = Family(pattern=rule.attention_at("full_attn_idxs"), state=state.short_convolution)

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(_PLAIN, Family()),
    **dict.fromkeys(_WINDOWED, Family(pattern=rule.windowed)),
    **dict.fromkeys(_UPPER_WINDOWED, Family(pattern=rule.upper_windowed)),
    **dict.fromkeys(_LATENT, Family(latent=True)),
    "gemma2": Family(
        pattern=rule.every(2, "sliding_window_pattern", rule.SLIDING), defaults={"head_dim": 256}
    ),
    # published files of Gemma 3 leave out what equals the configuration class (transformers 5.19, executed)
    "gemma3_text": Family(
        pattern=rule.every(6, "sliding_window_pattern", rule.SLIDING),
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "max_position_embeddings": 131_072,
        },
    ),
    "gemma3n_text": Family(pattern=rule.every(5, "sliding_window_pattern", rule.SLIDING)),
    "gpt_oss": Family(pattern=rule.every(2, "sliding_window_pattern", rule.SLIDING)),
    "cohere2": Family(pattern=rule.every(4, "sliding_window_pattern", rule.SLIDING)),
    "exaone4": Family(pattern=rule.every(4, "sliding_window_pattern", rule.SLIDING)),
    "olmo3": Family(pattern=rule.every(4, "sliding_window_pattern", rule.SLIDING)),
    "llama4_text": Family(pattern=rule.every(4, "no_rope_layer_interval", rule.CHUNKED)),
    "jamba": Family(
        pattern=rule.period_and_offset,
        state=state.mamba1(inner=(), state="mamba_d_state", conv="mamba_d_conv", expand="mamba_expand"),
    ),
    "bamba": Family(pattern=rule.attention_at("attn_layer_indices"), state=_MAMBA2),
    "granitemoehybrid": Family(pattern=rule.only_listed("layer_types"), state=_MAMBA2),
    "falcon_h1": Family(pattern=rule.both, state=_MAMBA2),
    "nemotron_h": Family(
        pattern=rule.only_listed("hybrid_override_pattern"),
        state=state.mamba2(
            heads="mamba_num_heads", head_dim="mamba_head_dim", groups="n_groups", state="ssm_state_size",
            conv="conv_kernel",
        ),
    ),
    "mamba": _MAMBA1_ALONE,
    "falcon_mamba": _MAMBA1_ALONE,
    "mamba2": Family(
        pattern=rule.states,
        state=state.mamba2(
            heads="num_heads", head_dim="head_dim", groups="n_groups", state="state_size", conv="conv_kernel"
        ),
    ),
    "qwen3_next": _QWEN_HYBRID,
    "qwen3_5_text": _QWEN_HYBRID,
    "qwen3_5_moe_text": _QWEN_HYBRID,
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2,
    "minimax": Family(pattern=rule.attention_flags, state=state.linear_attention),
    "minimax_text_01": Family(pattern=rule.attention_flags, state=state.linear_attention),
}  # fmt: skip
