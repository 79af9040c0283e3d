"""Tokens that stand for block hashes: they fill equal blocks exactly where the hashes are equal.

So that what is known by its hashes alone goes through the same model of the engine as text does.
"""

from array import array

import numpy as np

from kvscope.analysis.formats.records import BlockHashes


def stand_ins(
    prompt: BlockHashes, prompt_tokens: int, generated: int
) -> "tuple[array[int], array[int] | int]":
    """Return the prompt's tokens and the generated ones, of which only the number may be known.

    Each full block begins with its hash; nothing hashes what is behind the last full block.
    """
    tokens = np.zeros(prompt_tokens + generated, dtype=np.int64)
    tokens[: len(prompt.hashes) * prompt.block_size : prompt.block_size] = prompt.hashes
    all_tokens = array("q", tokens.tobytes())
    answer = all_tokens[prompt_tokens:] if prompt.answer_hashed else generated
    return all_tokens[:prompt_tokens], answer
