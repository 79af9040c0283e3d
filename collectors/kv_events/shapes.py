"""How events look on the wire, and what becomes of one.

vLLM to 0.23 sends events as arrays, from 0.24 on as maps (both executed). SGLang sent arrays and now sends
maps, of the same names, with signed hashes and the salt in a field of its own. The order of the fields here
is that of the arrays; later versions only add at the end.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from kvscope.model.telemetry import AllBlocksCleared, BlockStored, CacheEvent

_Hash = int | bytes
_Token = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Size = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]


class Stored(msgspec.Struct, gc=False):
    """``BlockStored`` of vLLM 0.11 to 0.33, and SGLang's."""

    block_hashes: tuple[_Hash, ...]
    parent_block_hash: _Hash | None
    token_ids: tuple[_Token, ...]
    block_size: _Size
    lora_id: int | None = None
    medium: str | None = None  # 0.11
    lora_name: str | None = None  # 0.14
    extra_keys: list[Any] | None = None  # 0.17
    group_idx: int | None = None  # 0.20
    kv_cache_spec_kind: str | None = None  # 0.22
    kv_cache_spec_sliding_window: int | None = None  # 0.22
    locality: str | None = None  # 0.26
    ownership: str | None = None  # 0.29
    session_id: str | None = None  # 0.30
    lookahead_token_ids: tuple[_Token, ...] | None = None  # 0.33
    cache_salt: str | None = None  # SGLang

    def event(self) -> CacheEvent:
        """Return the event in kvscope's own terms."""
        keys = tuple(map(_frozen, self.extra_keys)) if self.extra_keys is not None else None
        return BlockStored(
            block_hashes=self.block_hashes,
            parent_block_hash=self.parent_block_hash,
            token_ids=self.token_ids,
            block_size=self.block_size,
            lora_id=self.lora_id,
            medium=self.medium,
            lora_name=self.lora_name,
            extra_keys=keys or _salted(self.cache_salt, len(self.block_hashes)),
            group_idx=self.group_idx,
            kv_cache_spec_kind=self.kv_cache_spec_kind,
            kv_cache_spec_sliding_window=self.kv_cache_spec_sliding_window,
            locality=self.locality,
            ownership=self.ownership,
            session_id=self.session_id,
            lookahead_token_ids=self.lookahead_token_ids,
        )


class Removed(msgspec.Struct, gc=False):
    """``BlockRemoved`` of the same versions; vLLM sends one for each block."""

    block_hashes: tuple[_Hash, ...]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class Cleared(msgspec.Struct, gc=False):
    """``AllBlocksCleared``, which has no fields."""

    def event(self) -> CacheEvent:
        """Return the event in kvscope's own terms."""
        return AllBlocksCleared()


Shape = Stored | Removed | Cleared
SHAPES: Mapping[str, type[Shape]] = {
    "BlockStored": Stored,
    "BlockRemoved": Removed,
    "AllBlocksCleared": Cleared,
}


class _StoredMap(Stored, tag_field="type", tag="BlockStored", gc=False): ...


class _RemovedMap(Removed, tag_field="type", tag="BlockRemoved", gc=False): ...


class _ClearedMap(Cleared, tag_field="type", tag="AllBlocksCleared", gc=False): ...


class _StoredArray(Stored, array_like=True, tag="BlockStored", gc=False): ...


class _RemovedArray(Removed, array_like=True, tag="BlockRemoved", gc=False): ...


class _ClearedArray(Cleared, array_like=True, tag="AllBlocksCleared", gc=False): ...


class MapBatch(msgspec.Struct, array_like=True, gc=False):
    """A payload as vLLM sends it from 0.24 on; SGLang's rank is at the same place."""

    at: float
    events: list[_StoredMap | _RemovedMap | _ClearedMap]
    rank: int | None = None


class ArrayBatch(msgspec.Struct, array_like=True, gc=False):
    """A payload as vLLM sends it to 0.23."""

    at: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]
    rank: int | None = None


_NEEDED = frozenset({"block_hashes", "parent_block_hash", "token_ids", "block_size"})
_FIELDS = {name: msgspec.structs.fields(shape) for name, shape in SHAPES.items()}
_TYPES = {name: {field.name: field.type for field in fields} for name, fields in _FIELDS.items()}


def lenient(event: Any) -> tuple[str, Shape | None]:
    """Return an event's type, "" where it has none, and its shape, or None where it makes no sense.

    What is not understood of the fields that may be missing is taken as missing.
    """
    match event:
        case {"type": str() as kind}:
            fields = dict(event)
        case [str() as kind, *values]:
            fields = dict(zip(_TYPES.get(kind, ()), values, strict=False))
        case _:
            return "", None
    if kind not in SHAPES:
        return kind, None
    if kind == "BlockStored":
        fields.setdefault("parent_block_hash", None)
    usable = {
        name: value
        for name, value in fields.items()
        if name in _NEEDED or (name in _TYPES[kind] and _fits(value, _TYPES[kind][name]))
    }
    try:
        return kind, msgspec.convert(usable, SHAPES[kind])
    except msgspec.ValidationError:
        return kind, None


def _fits(value: Any, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True


def _salted(salt: str | None, blocks: int) -> tuple[Any, ...] | None:
    """Return SGLang's ``cache_salt`` as vLLM tells it: the first block's further key."""
    return ((salt,), *(None,) * (blocks - 1)) if salt and blocks else None


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return value if isinstance(value, str | bytes | int | float) or value is None else repr(value)
