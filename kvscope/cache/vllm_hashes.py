"""vLLM's own block hashes (0.32, read and executed): what KV events name blocks by, and what routers look up.

A block's hash is that of (parent's hash, its tokens, its further keys); the first block's parent is the root,
the hash of a seed. ``kvscope`` compares prompts by its own chain (``cache.hashing``), which is faster; these
are for saying which of an engine's blocks a prompt is made of.
"""

import dataclasses
import hashlib
import pickle
from collections.abc import Callable, Sequence

from kvscope.errors import UsageError

DEFAULT_SEED = "vllm-none-hash"
"""The seed of vLLM from 0.29 on, unless ``PYTHONHASHSEED`` is set; older ones take a random root."""

Keys = tuple[tuple[str | int | bytes, ...], ...]
Hashed = tuple[bytes, tuple[int, ...], Keys | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """An adapter by name and path; both are hashed, only the name is in KV events."""

    name: str
    path: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """An image, sound or video: the identifier of its content and the tokens that stand for it."""

    identifier: str
    offset: int
    length: int


def sha256(value: Hashed | str) -> bytes:
    """Return ``--prefix-caching-hash-algo sha256``, vLLM's default: over Python's pickle."""
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


def sha256_cbor(value: Hashed | str) -> bytes:
    """Return ``--prefix-caching-hash-algo sha256_cbor``: over canonical CBOR (RFC 8949)."""
    return hashlib.sha256(_cbor(value)).digest()


ALGORITHMS: dict[str, Callable[[Hashed | str], bytes]] = {"sha256": sha256, "sha256_cbor": sha256_cbor}


def root_hash(algorithm: str, seed: str = DEFAULT_SEED) -> bytes:
    """Return what vLLM calls NONE_HASH; ``seed`` is the engine's ``PYTHONHASHSEED`` where it has one."""
    return _function(algorithm)(seed)


def block_hashes(
    tokens: Sequence[int],
    block_size: int,
    *,
    algorithm: str = "sha256",
    seed: str = DEFAULT_SEED,
    salt: str | None = None,
    lora: Lora | None = None,
    media: Sequence[Media] = (),
) -> list[bytes]:
    """Return the hash of each full block of a prompt, as vLLM from 0.31 on makes it.

    ``media`` stand in the order of their offsets. Raises ``UsageError`` for an algorithm that is not known
    and for a block size below 1.
    """
    hashed = _function(algorithm)
    if block_size < 1:
        raise UsageError(f"a block holds at least one token, not {block_size}")
    hashes: list[bytes] = []
    parent = hashed(seed)
    for start in range(0, len(tokens) - block_size + 1, block_size):
        keys = _keys(start, start + block_size, salt if start == 0 else None, lora, media)
        parent = hashed((parent, tuple(tokens[start : start + block_size]), keys or None))
        hashes.append(parent)
    return hashes


def event_hash(block_hash: bytes) -> int:
    """Return how KV events write a hash by default (``VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES``): 64 bits."""
    return int.from_bytes(block_hash[-8:], "big")


def _function(algorithm: str) -> Callable[[Hashed | str], bytes]:
    if algorithm not in ALGORITHMS:
        raise UsageError(f"no hash algorithm {algorithm!r}; known are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algorithm]


def _keys(start: int, end: int, salt: str | None, lora: Lora | None, media: Sequence[Media]) -> Keys:
    keys: list[tuple[str | int | bytes, ...]] = []
    if lora is not None:
        keys.append(("lora", lora.name, lora.path))
    keys += [
        ("mm", each.identifier, each.offset - start)
        for each in media
        if each.offset < end and start < each.offset + each.length
    ]
    if salt:
        keys.append(("cache_salt", salt))
    return tuple(keys)


_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY = range(5)  # CBOR's major types
_NULL = b"\xf6"
_WIDTHS = ((24, 1), (25, 2), (26, 4), (27, 8))  # what follows a head, and in how many bytes
_IN_HEAD = 24


def _cbor(value: object) -> bytes:
    match value:
        case None:
            return _NULL
        case int():
            return _head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
        case bytes():
            return _head(_BYTES, len(value)) + value
        case str():
            text = value.encode()
            return _head(_TEXT, len(text)) + text
        case tuple():
            return _head(_ARRAY, len(value)) + b"".join(map(_cbor, value))
        case _:
            raise TypeError(f"no part of a block hash: {value!r}")


def _head(major: int, number: int) -> bytes:
    if number < _IN_HEAD:
        return bytes([major << 5 | number])
    code, width = next((code, width) for code, width in _WIDTHS if number < 1 << 8 * width)
    return bytes([major << 5 | code]) + number.to_bytes(width, "big")
