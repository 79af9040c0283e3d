"""An own chain of 64-bit block ids: equal ids mean equal prefixes, for analysis inside kvscope only.

It is no secret: who has a prompt can make its ids, so what leaves memory goes through the keyed hash of
``kvscope import`` and ``export`` first. It is not the engine's hash (``cache.vllm_hashes``): that one depends
on version, settings and sometimes on the process. A block's id depends on all tokens before it, so an id is
known only where the whole prefix was known.
"""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvscope.errors import UsageError

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_PART_BLOCKS = 64
_STEP = 0x9E37_79B9_7F4A_7C15  # odd, 2**64 divided by the golden ratio
# constants of the splitmix64 finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number
# generators", 2014): each input bit changes each output bit with probability near one half
_MIX_1 = 0xBF58_476D_1CE4_E5B9
_MIX_2 = 0x94D0_49BB_1331_11EB


def root_of(salt: str | None = None, lora: str | None = None) -> int:
    """Return the root under which a request's chain begins: another one for each cache salt and LoRA."""
    if salt is None and lora is None:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name in (salt, lora):
        digest.update(b"\0" if name is None else b"\1" + name.encode("utf-8", "surrogatepass") + b"\0")
    return int.from_bytes(digest.digest(), "little")


class ChainMemo:
    """Remembers parts of chains by digests of their tokens; bounded by blocks.

    So what many prompts begin with is hashed and chained once.
    """

    def __init__(self, max_blocks: int = 4_000_000) -> None:
        self._most = max(max_blocks // _PART_BLOCKS, 1)
        self._parts: dict[tuple[int, bytes], list[int]] = {}

    def chain(self, tokens: NDArray[np.integer], block_size: int, root: int) -> list[int]:
        """Return the chain of blocks by their tokens, whose number is a multiple of ``block_size``."""
        chain: list[int] = []
        form = f"{tokens.dtype.str} {block_size}".encode()
        for start in range(0, len(tokens), _PART_BLOCKS * block_size):
            part = tokens[start : start + _PART_BLOCKS * block_size]
            key = (root, hashlib.blake2b(part.tobytes(), digest_size=16, key=form).digest())
            known = self._parts.get(key)
            if known is None:
                known = chained(_hashed(part, block_size).tolist(), root)
                if len(self._parts) >= self._most:
                    self._parts.clear()
                self._parts[key] = known
            chain += known
            root = chain[-1]
        return chain


def block_chain(
    tokens: Sequence[int] | NDArray[np.integer],
    block_size: int,
    root: int = 0,
    *,
    memo: ChainMemo | None = None,
) -> list[int]:
    """Return the id of each full block of ``tokens``; the rest after the last full block has none.

    An id may serve as ``root`` of what follows: ``block_chain(a + b) == block_chain(a) + block_chain(b,
    root=block_chain(a)[-1])`` where ``a`` ends on a block's end. Raises ``UsageError`` for a block size
    below 1. ``memo`` makes chains of prompts with a common beginning cheaper, and changes no id.
    """
    if block_size < 1:
        raise UsageError(f"a block holds at least one token, not {block_size}")
    full = len(tokens) // block_size
    if not full:
        return []
    given = np.asarray(tokens)[: full * block_size]
    if memo is not None:
        return memo.chain(given, block_size, root)
    return chained(_hashed(given, block_size).tolist(), root)


def block_hashes(tokens: NDArray[np.integer], block_size: int) -> list[int]:
    """Return the own hash of each block, whatever stands before it; ``chained`` makes ids of them.

    The number of ``tokens`` is a multiple of ``block_size``.
    """
    hashes: list[int] = _hashed(tokens, block_size).tolist()
    return hashes


def _hashed(tokens: NDArray[np.integer], block_size: int) -> NDArray[np.uint64]:
    mixed = _mix(tokens.astype(np.uint64, copy=False) + np.uint64(1)).reshape(-1, block_size)
    hashes: NDArray[np.uint64] = mixed @ _weights(block_size)
    return hashes


def chained(hashes: Sequence[int], root: int) -> list[int]:
    """Return the ids of blocks that follow each other under ``root``, by their own hashes."""
    chain: list[int] = []
    state = root
    for block in hashes:
        state = (state ^ block) * _MIX_1 & _MASK
        state = (state ^ (state >> 29)) * _MIX_2 & _MASK
        state ^= state >> 32
        chain.append(state)
    return chain


@functools.lru_cache(maxsize=64)
def _weights(block_size: int) -> NDArray[np.uint64]:
    """Return an odd number for each place in a block, so that order counts."""
    weights = _mix(np.arange(1, block_size + 1, dtype=np.uint64)) | np.uint64(1)
    weights.flags.writeable = False
    return weights


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread the bits of each value; arithmetic wraps at 2**64."""
    values = values * np.uint64(_STEP)
    shifted = values >> np.uint64(30)
    values ^= shifted
    values *= np.uint64(_MIX_1)
    np.right_shift(values, np.uint64(27), out=shifted)
    values ^= shifted
    values *= np.uint64(_MIX_2)
    np.right_shift(values, np.uint64(31), out=shifted)
    values ^= shifted
    return values
