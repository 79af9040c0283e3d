"""What one model keeps in its cache, layer by layer, before any length, data type or number of GPUs.

Sizes are in elements. The formulas are those of vLLM 0.32's KV-cache specs (executed on tiny models of each
kind, see ``tests/data/sizing``); ``docs/sizing.md`` has them with their sources.
"""

import dataclasses

from kvscope.errors import UsageError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KvDtype:
    """How a cached vector is stored: ``bits`` an element, and what its scales take beside them."""

    name: str
    bits: int
    scale_bytes: int = 0  # a head and side (K or V) of each token
    scale_group: int = 0  # elements that share one byte of scale; 0: none

    def vector_bytes(self, elements: int) -> int:
        """Return the bytes of one K or V vector of one head."""
        scales = self.scale_bytes + (elements // self.scale_group if self.scale_group else 0)
        return -(-elements * self.bits // 8) + scales

    def plain_bytes(self, elements: int) -> int:
        """Return the bytes of ``elements`` without scales, as the naive formula counts."""
        return -(-elements * self.bits // 8)


_DTYPES = {
    dtype.name: dtype
    for dtype in (
        KvDtype(name="float32", bits=32),
        KvDtype(name="bfloat16", bits=16),
        KvDtype(name="float16", bits=16),
        KvDtype(name="fp8", bits=8),
        KvDtype(name="int8", bits=8),
        KvDtype(name="int4", bits=4),
        # scales inline: one float32 a head and side (vLLM 0.32, Triton attention)
        KvDtype(name="fp8_per_token_head", bits=8, scale_bytes=4),
        KvDtype(name="int8_per_token_head", bits=8, scale_bytes=4),
        KvDtype(name="int4_per_token_head", bits=4, scale_bytes=4),
        # one fp8 scale for 16 elements (vLLM 0.32, FlashInfer)
        KvDtype(name="nvfp4", bits=4, scale_group=16),
    )
}
_ALIASES = {
    "bf16": "bfloat16", "half": "float16", "fp16": "float16", "float": "float32", "fp32": "float32",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip


def kv_dtype(name: str, *, where: str = "data type") -> KvDtype:
    """Return the data type of that name (``torch.`` before it is fine).

    Raises ``UsageError`` that begins with ``where`` and names all there are.
    """
    plain = name.lower().removeprefix("torch.")
    plain = _ALIASES.get(plain, plain)
    if plain not in _DTYPES:
        allowed = ", ".join([*_DTYPES, *sorted(_ALIASES)])
        raise UsageError(f"{where} {name!r} is not known; allowed: {allowed}")
    return _DTYPES[plain]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Keys and values of every token, of the last ``window`` tokens, or of the current ``chunk``."""

    kv_heads: int
    head_dim: int
    window: int | None = None  # tokens
    chunk: int | None = None  # tokens

    @property
    def kind(self) -> str:
        """Return the word for such layers."""
        if self.window is not None:
            return "sliding_window"
        return "full_attention" if self.chunk is None else "chunked_attention"

    @property
    def reach(self) -> int | None:
        """Return the tokens behind which the layer stops growing, None where it never does."""
        return self.window if self.window is not None else self.chunk

    def token_bytes(self, dtype: KvDtype, tensor_parallel: int) -> int:
        """Return the bytes a token on each GPU; heads are shared out, and repeated once they run out."""
        heads = max(self.kv_heads // tensor_parallel, 1)
        return heads * 2 * dtype.vector_bytes(self.head_dim)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention: one compressed vector a token and a rotary part, whole on every GPU."""

    rank: int  # kv_lora_rank
    rope_dim: int  # qk_rope_head_dim
    sparse: bool = False  # DeepSeek sparse attention has a layout of its own for fp8
    kind = "latent_attention"
    reach = None

    def token_bytes(self, dtype: KvDtype, tensor_parallel: int) -> int:
        """Return the bytes a token on each GPU, the same for any ``tensor_parallel``."""
        del tensor_parallel
        if self.sparse and dtype.name == "fp8":
            # fp8 latent, a float32 scale for 128 elements, 16-bit rotary part: 656 bytes in DeepSeek V3.2
            return self.rank + self.rank // 128 * 4 + self.rope_dim * 2
        return dtype.vector_bytes(self.rank + self.rope_dim)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Keys of the index of DeepSeek sparse attention: fp8 with a float32 scale for 128 elements."""

    head_dim: int
    kind = "sparse_index"
    reach = None

    def token_bytes(self, dtype: KvDtype, tensor_parallel: int) -> int:
        """Return the bytes a token on each GPU, whatever the data type of the cache."""
        del dtype, tensor_parallel
        return self.head_dim + self.head_dim // 128 * 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state of constant size: Mamba, gated delta net, linear attention, short convolution.

    The convolution keeps ``conv_steps`` values of ``channels`` and of ``groups`` x ``group_channels``
    channels; the recurrent state has ``recurrent`` elements. All are shared out over the GPUs.
    """

    kind: str
    heads: int  # what tensor parallelism divides
    channels: int
    conv_steps: int
    recurrent: int
    groups: int = 0
    group_channels: int = 0
    recurrent_dtype: str | None = None  # None: as the model's

    def state_bytes(self, dtype: KvDtype, tensor_parallel: int) -> int:
        """Return the bytes on each GPU; ``dtype`` is the model's, for states are not quantised.

        Groups that do not divide are repeated until they do (vLLM 0.32, Mamba 2).
        """
        spare = tensor_parallel - self.groups if self.groups % tensor_parallel else 0
        channels = self.channels + (self.groups + spare) * self.group_channels
        recurrent = kv_dtype(self.recurrent_dtype) if self.recurrent_dtype else dtype
        return dtype.plain_bytes(channels // tensor_parallel * self.conv_steps) + recurrent.plain_bytes(
            self.recurrent // tensor_parallel
        )


Growing = Attention | Latent | Indexer
Layer = Growing | State


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model's caches; ``layers`` has one entry a cache, so a layer may have none, one or two."""

    model_type: str
    num_layers: int
    hidden_size: int
    num_heads: int | None  # of the queries; None without attention
    dtype: KvDtype  # of the model
    cache_dtype: KvDtype  # of the cache, where nobody says otherwise
    context_tokens: int | None
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()
