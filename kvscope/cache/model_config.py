"""A Hugging Face ``config.json`` to the caches of its language model."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvscope.cache import layer_patterns as rule
from kvscope.cache.config_keys import Keys
from kvscope.cache.families import FAMILIES, Family
from kvscope.cache.layer_patterns import layer_kinds
from kvscope.cache.shapes import Attention, Indexer, KvDtype, Latent, Layer, ModelShape, State, kv_dtype
from kvscope.errors import UsageError

# where multimodal models keep their language model's keys
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_MOST_LAYERS = 10_000
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def read_shape(config: Mapping[str, Any], *, name: str, read_as: str | None = None) -> ModelShape:
    """Return what the model caches; ``read_as`` names the family where the file's own is not known.

    Raises ``UsageError`` with one line that names the key which is missing, wrong or not understood.
    """
    values = _language_model(config)
    model_type, notes = _model_type(values, config, name, read_as)
    family = FAMILIES[model_type]
    keys = Keys(values=values | {"model_type": model_type}, name=name, defaults=family.defaults)
    count = keys.whole(*_LAYERS)
    if count > _MOST_LAYERS:
        raise UsageError(
            f"{name}: {count:,} layers are more than any model has; up to {_MOST_LAYERS:,} are read"
        )
    kinds = layer_kinds(keys, count, family.pattern)
    dtype, cache_dtype, more = _dtypes(values, config, name)
    attends = any(kind not in {rule.STATE, rule.NONE} for kind in kinds)
    notes += more + tuple(
        f"{key} is not in {name}: {value}, as in the model's configuration class"
        for key, value in family.defaults.items()
        if values.get(key) is None and attends
    )
    return ModelShape(
        model_type=model_type,
        num_layers=count,
        hidden_size=keys.whole(*_HIDDEN),
        num_heads=keys.whole(*_HEADS) if attends else None,
        dtype=dtype,
        cache_dtype=cache_dtype,
        context_tokens=keys.whole_or_none(*_CONTEXT),
        layers=tuple(_layers(keys, kinds, family)),
        notes=notes,
    )


def _language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the language model, from the nested part where there is one."""
    for name in _NESTED:
        nested = config.get(name)
        if isinstance(nested, Mapping) and nested:
            return _language_model(nested)
    return dict(config)


def _model_type(
    values: Mapping[str, Any], config: Mapping[str, Any], name: str, read_as: str | None
) -> tuple[str, tuple[str, ...]]:
    """Return the family's name and what is to be said about it."""
    if read_as is not None:
        if read_as not in FAMILIES:
            raise UsageError(
                f"--as {read_as!r} is not a known model_type; known: {', '.join(sorted(FAMILIES))}"
            )
        return read_as, (f"read as {read_as}, not as {values.get('model_type')!r}",)
    found = values.get("model_type")
    if found is None and values is not config and isinstance(outer := config.get("model_type"), str):
        found = f"{outer}_text" if f"{outer}_text" in FAMILIES else outer
    if found is None:
        latent = values.get("kv_lora_rank") is not None
        kind = "latent" if latent else "plain"
        return "deepseek_v3" if latent else "llama", (f"{name} has no model_type: read as {kind} attention",)
    if not isinstance(found, str) or found not in FAMILIES:
        raise UsageError(
            f"{name}: model_type {found!r} is not known; `--as llama` reads it as plain attention, "
            "`--as TYPE` as any known type (docs/sizing.md lists them)"
        )
    return found, ()


def _layers(keys: Keys, kinds: list[str], family: Family) -> Iterator[Layer]:
    """Yield one entry a cache, in the order of the layers."""
    attention: dict[str, Layer] = {}
    state: State | None = None
    for kind in kinds:
        if kind in {rule.STATE, rule.BOTH}:
            state = state or _state(keys, family)
            yield state
        if kind in {rule.STATE, rule.NONE}:
            continue
        if kind not in attention:
            attention[kind] = _latent(keys) if family.latent else _attention(keys, kind)
        yield attention[kind]
        if family.latent and keys.get("index_head_dim"):
            yield Indexer(head_dim=keys.whole("index_head_dim"))


def _state(keys: Keys, family: Family) -> State:
    if family.state is None:
        raise UsageError(f"{keys.name}: a {keys.get('model_type')} model has no layers that keep a state")
    return family.state(keys)


def _latent(keys: Keys) -> Latent:
    return Latent(
        rank=keys.whole("kv_lora_rank"),
        rope_dim=keys.whole("qk_rope_head_dim"),
        sparse=keys.get("index_head_dim") is not None,
    )


def _attention(keys: Keys, kind: str) -> Attention:
    heads = keys.whole(*_HEADS)
    return Attention(
        kv_heads=_kv_heads(keys, heads),
        head_dim=_head_dim(keys, heads),
        window=keys.whole("sliding_window") if kind == rule.SLIDING else None,
        chunk=keys.whole("attention_chunk_size") if kind == rule.CHUNKED else None,
    )


def _kv_heads(keys: Keys, heads: int) -> int:
    """Return the number of KV heads; without a key for them each query head has its own."""
    if keys.get("multi_query") and not keys.get("new_decoder_architecture"):
        return 1  # Falcon 7B, GPT BigCode
    nested = keys.get("attn_config")  # DBRX, MPT
    if isinstance(nested, Mapping) and nested.get("kv_n_heads") is not None:
        return keys.checked("attn_config.kv_n_heads", nested["kv_n_heads"])
    found = keys.whole_or_none(*_KV_HEADS) or heads
    if heads % found:
        raise UsageError(f"{keys.name}: {heads} attention heads do not share {found} KV heads evenly")
    return found


def _head_dim(keys: Keys, heads: int) -> int:
    found = keys.whole_or_none(*_HEAD_DIM)
    if found is not None:
        return found
    hidden = keys.whole(*_HIDDEN)
    if hidden % heads:
        raise UsageError(
            f"{keys.name} has no key 'head_dim', and {hidden} of hidden_size do not divide by {heads} heads"
        )
    return hidden // heads


def _dtypes(
    values: Mapping[str, Any], config: Mapping[str, Any], name: str
) -> tuple[KvDtype, KvDtype, tuple[str, ...]]:
    """Return the model's data type, the cache's, and what is to be said about them."""
    names = [part.get(key) for part in (values, config) for key in ("dtype", "torch_dtype")]
    named = next((found for found in names if isinstance(found, str)), None)
    notes: tuple[str, ...] = ()
    if named is None:
        notes = ("the file names no dtype: bfloat16 is taken",)
    elif named == "float32":
        notes = ("the file says float32, as counted here; vLLM's `--dtype auto` would take 16 bits",)
    dtype = kv_dtype(named or "bfloat16", where=f"{name}: dtype")
    quantised = _quantised(values) or _quantised(config)
    if quantised is None:
        return dtype, dtype, notes
    return dtype, kv_dtype(quantised), (*notes, f"quantization_config asks for a cache of {quantised}")


def _quantised(config: Mapping[str, Any]) -> str | None:
    """Return the cache's data type where the weights come with one (ModelOpt, compressed-tensors)."""
    outer = config.get("quantization_config")
    if not isinstance(outer, Mapping):
        return None
    inner = outer.get("quantization")
    for part in (inner, outer):
        if not isinstance(part, Mapping):
            continue
        scheme = part.get("kv_cache_quant_algo") or part.get("kv_cache_scheme")
        if isinstance(scheme, Mapping):
            return "fp8" if scheme.get("num_bits") == 8 else "nvfp4"  # noqa: PLR2004 - bits of a byte
        if isinstance(scheme, str) and scheme.lower() in {"fp8", "nvfp4"}:
            return scheme.lower()
    return None
