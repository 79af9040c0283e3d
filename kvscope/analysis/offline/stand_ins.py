"""Tokens that stand for block hashes: they fill equal blocks exactly where the hashes are equal.

So that what is known by its hashes alone goes through the same model of the engine as text does.
"""

import hashlib
from array import array

import numpy as np

from kvscope.analysis.formats.records import BlockHashes


def stand_ins(
    prompt: BlockHashes, prompt_tokens: int, generated: int, request_id: str
) -> "tuple[array[int], array[int] | int]":
    """Return the prompt's tokens and the generated ones, of which only the number may be known.

    Each token of a full block is its hash. Nothing hashes what is behind the last one: there stands a number
    of the request's own, which no other has.
    """
    digest = hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    own = int.from_bytes(digest, "little") >> 1
    tokens = np.full(prompt_tokens + generated, own, dtype=np.int64)
    tokens[: len(prompt.hashes) * prompt.block_size] = np.repeat(
        np.asarray(prompt.hashes, dtype=np.int64), prompt.block_size
    )
    all_tokens = array("q", tokens.tobytes())
    answer = all_tokens[prompt_tokens:] if prompt.answer_hashed else generated
    return all_tokens[:prompt_tokens], answer
