"""Which layer of a model keeps what: one word a layer, from the keys that its family uses for that."""

from collections.abc import Callable

from kvscope.cache.config_keys import Keys
from kvscope.errors import UsageError

FULL, SLIDING, CHUNKED, STATE, BOTH, NONE = "full", "sliding", "chunked", "state", "both", "none"

Pattern = Callable[[Keys, int], list[str]]

_WORDS = {
    "full_attention": FULL, "attention": FULL, "sliding_attention": SLIDING, "chunked_attention": CHUNKED,
    "linear_attention": STATE, "mamba": STATE, "mamba2": STATE, "conv": STATE, "hybrid": BOTH,
    "mlp": NONE, "moe": NONE,
}  # fmt: skip
# Nemotron-H: Mamba 2, attention, dense and expert layers, one letter each
_LETTERS = {"M": STATE, "*": FULL, "-": NONE, "E": NONE}
# EXAONE 4: local and global layers
_LOCAL_GLOBAL = {"L": SLIDING, "G": FULL}


def layer_kinds(keys: Keys, count: int, family: Pattern) -> list[str]:
    """Return one word for each of ``count`` layers: from the file's own list, else by the family's rule.

    Layers at the end that share the cache of others (Gemma 3n) have none. Raises ``UsageError``.
    """
    kinds = _listed(keys, count) or family(keys, count)
    shared = keys.whole_or_none("num_kv_shared_layers") if keys.get("num_kv_shared_layers") else None
    if shared is None:
        return kinds
    if shared > count:
        raise keys.bad("num_kv_shared_layers", f"up to {count}")
    return kinds[: count - shared] + [NONE] * shared


def _listed(keys: Keys, count: int) -> list[str] | None:
    letters = keys.get("hybrid_override_pattern")
    if isinstance(letters, str):
        if len(letters) != count or set(letters) - _LETTERS.keys():
            raise keys.bad("hybrid_override_pattern", f"{count} letters of {' '.join(_LETTERS)}")
        return [_LETTERS[letter] for letter in letters]
    for name in ("layer_types", "layers_block_type"):
        words = keys.words(name, count)
        if words is not None:
            if unknown := sorted(set(words) - _WORDS.keys()):
                raise keys.bad(name, f"{', '.join(_WORDS)} (not {unknown[0]!r})")
            return [_WORDS[word] for word in words]
    return None


def full(keys: Keys, count: int) -> list[str]:
    """Every layer keeps everything."""
    del keys
    return [FULL] * count


def windowed(keys: Keys, count: int) -> list[str]:
    """Every layer has the window, where there is one (Mistral, Phi 3)."""
    return [SLIDING if keys.get("sliding_window") else FULL] * count


def upper_windowed(keys: Keys, count: int) -> list[str]:
    """Layers from ``max_window_layers`` on have the window, where it is switched on (Qwen 2 and 3)."""
    if not (keys.get("use_sliding_window") and keys.get("sliding_window")):
        return [FULL] * count
    first = keys.get("max_window_layers") or 0
    if type(first) is not int:
        raise keys.bad("max_window_layers", "a number of layers")
    return [SLIDING if layer >= first else FULL for layer in range(count)]


def every(interval: int, key: str, other: str) -> Pattern:
    """Return the rule that every ``key``-th layer (or ``interval``-th) is full, the rest ``other``."""

    def pattern(keys: Keys, count: int) -> list[str]:
        given = keys.get(key)
        if isinstance(given, str) and given and not set(given) - _LOCAL_GLOBAL.keys():
            return [_LOCAL_GLOBAL[given[layer % len(given)]] for layer in range(count)]
        step = interval if given is None else keys.checked(key, given)
        return [FULL if (layer + 1) % step == 0 else other for layer in range(count)]

    return pattern


def period_and_offset(keys: Keys, count: int) -> list[str]:
    """Attention in each ``attn_layer_period``-th layer, from ``attn_layer_offset`` on (Jamba)."""
    period = keys.whole("attn_layer_period")
    offset = keys.get("attn_layer_offset")
    if type(offset) is not int:
        raise keys.bad("attn_layer_offset", "a layer number")
    return [FULL if layer % period == offset else STATE for layer in range(count)]


def attention_at(name: str) -> Pattern:
    """Return the rule that the layers listed under ``name`` have attention and the rest a state (Bamba)."""

    def pattern(keys: Keys, count: int) -> list[str]:
        layers = keys.indices(name)
        return [FULL if layer in layers else STATE for layer in range(count)]

    return pattern


def attention_flags(keys: Keys, count: int) -> list[str]:
    """``attn_type_list``: 1 is attention, 0 a linear layer (MiniMax Text 01)."""
    flags = keys.get("attn_type_list")
    if not isinstance(flags, list) or len(flags) != count:
        raise keys.bad("attn_type_list", f"a list of {count} zeros and ones")
    return [FULL if flag else STATE for flag in flags]


def only_listed(name: str) -> Pattern:
    """Return the rule that nothing is known without the file's own list ``name`` (Nemotron-H, Granite 4)."""

    def pattern(keys: Keys, count: int) -> list[str]:
        raise UsageError(
            f"{keys.name} has no key {name!r}: which of the {count} layers have attention cannot be told"
        )

    return pattern


def states(keys: Keys, count: int) -> list[str]:
    """Every layer keeps a state and no tokens (Mamba)."""
    del keys
    return [STATE] * count


def both(keys: Keys, count: int) -> list[str]:
    """Every layer has attention and a state side by side (Falcon H1)."""
    del keys
    return [BOTH] * count
