"""The constant states of hybrid and attention-free models, from the keys that each family uses."""

from collections.abc import Callable

from kvscope.cache.config_keys import Keys
from kvscope.cache.shapes import State, kv_dtype

StateOf = Callable[[Keys], State]


def mamba1(*, inner: tuple[str, ...], state: str, conv: str, expand: str) -> StateOf:
    """Return the rule for Mamba 1: a convolution over the inner width and ``inner`` x ``state`` values."""

    def build(keys: Keys) -> State:
        width = keys.whole_or_none(*inner) if inner else None
        width = width or keys.whole(expand) * keys.whole("hidden_size")
        return State(
            kind="mamba", heads=width, channels=width, conv_steps=keys.whole(conv) - 1,
            recurrent=width * keys.whole(state),
        )  # fmt: skip

    return build


def mamba2(*, heads: str, head_dim: str, groups: str, state: str, conv: str) -> StateOf:
    """Return the rule for Mamba 2: the convolution also covers two inputs of each group."""

    def build(keys: Keys) -> State:
        count, width = keys.whole(heads), keys.whole(state)
        # Falcon H1 gives the inner width apart; elsewhere it is heads x head_dim, as Mamba 2 demands
        inner = keys.whole_or_none("mamba_d_ssm") or count * keys.whole(head_dim)
        return State(
            kind="mamba2", heads=count, channels=inner, groups=keys.whole(groups), group_channels=2 * width,
            conv_steps=keys.whole(conv) - 1, recurrent=count * keys.whole(head_dim) * width,
            recurrent_dtype=_state_dtype(keys),
        )  # fmt: skip

    return build


def gated_delta_net(keys: Keys) -> State:
    """Qwen3-Next and Qwen3.5: queries, keys and values under a convolution, one matrix a value head."""
    key_heads, value_heads = keys.whole("linear_num_key_heads"), keys.whole("linear_num_value_heads")
    key_dim, value_dim = keys.whole("linear_key_head_dim"), keys.whole("linear_value_head_dim")
    return State(
        kind="gated_delta_net",
        heads=value_heads,
        channels=2 * key_heads * key_dim + value_heads * value_dim,
        conv_steps=keys.whole("linear_conv_kernel_dim") - 1,
        recurrent=value_heads * value_dim * key_dim,
        recurrent_dtype=_state_dtype(keys),
    )


def short_convolution(keys: Keys) -> State:
    """LFM2: the last inputs of a short convolution, nothing else."""
    width = keys.whole("conv_dim", "hidden_size")
    return State(
        kind="short_convolution", heads=width, channels=width, conv_steps=keys.whole("conv_L_cache") - 1,
        recurrent=0,
    )  # fmt: skip


def linear_attention(keys: Keys) -> State:
    """MiniMax: one square matrix a head."""
    heads = keys.whole("num_attention_heads")
    width = keys.whole_or_none("head_dim") or keys.whole("hidden_size") // heads
    return State(
        kind="linear_attention", heads=heads, channels=0, conv_steps=0, recurrent=heads * width * width
    )


def _state_dtype(keys: Keys) -> str | None:
    """Return the data type that the file itself asks for, as vLLM 0.32 follows it; None: the model's."""
    for key in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
        named = keys.get(key)
        if isinstance(named, str) and named != "auto":
            return kv_dtype(named, where=f"{keys.name}: {key}").name
    return "float32" if keys.get("model_type") == "nemotron_h" else None
