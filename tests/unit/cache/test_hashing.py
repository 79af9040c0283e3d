"""Chain ids tell prefixes apart and are the same whatever the tokens come in."""

import numpy as np
import pytest

from kvscope.cache.hashing import ChainMemo, block_chain, root_of
from kvscope.errors import UsageError


def test_only_full_blocks_have_ids_and_equal_prefixes_equal_ids() -> None:
    tokens = list(range(100))
    chain = block_chain(tokens, 16)
    assert len(chain) == 6
    assert block_chain(tokens[:95], 16) == chain[:5]
    assert block_chain(np.array(tokens, dtype=np.uint32), 16) == chain
    assert block_chain(tuple(tokens), 16) == chain
    assert block_chain(range(100), 16) == chain
    assert block_chain([], 16) == block_chain([1], 16) == []


def test_a_chain_goes_on_from_its_last_id() -> None:
    head, tail = list(range(32)), list(range(500, 548))
    chain = block_chain(head, 16)
    assert block_chain(head + tail, 16) == chain + block_chain(tail, 16, chain[-1])


def test_every_difference_changes_all_ids_from_there_on() -> None:
    tokens = list(range(64))
    chain = block_chain(tokens, 16)
    for at in range(64):
        changed = tokens.copy()
        changed[at] += 1
        other = block_chain(changed, 16)
        assert other[: at // 16] == chain[: at // 16]
        assert not set(other[at // 16 :]) & set(chain)
    swapped = [tokens[1], tokens[0], *tokens[2:]]
    assert not set(block_chain(swapped, 16)) & set(chain)
    assert not set(block_chain(tokens[16:] + tokens[:16], 16)) & set(chain)


def test_ids_of_many_similar_blocks_differ() -> None:
    ids = {block_chain([token, 0], 2)[0] for token in range(200_000)}
    ids |= {block_chain([0, token], 2)[0] for token in range(1, 200_000)}
    assert len(ids) == 399_999


def test_roots() -> None:
    roots = [root_of(), root_of("a"), root_of(lora="a"), root_of("a", "b"), root_of("b", "a"), root_of("")]
    assert len(set(roots)) == len(roots)
    assert roots[0] == 0
    assert root_of("a") == root_of(salt="a")
    assert block_chain(range(16), 16, root_of("a")) != block_chain(range(16), 16)


def test_block_size_below_one() -> None:
    with pytest.raises(UsageError, match="at least one token, not 0"):
        block_chain([1], 0)


def test_a_memo_changes_no_id() -> None:
    memo = ChainMemo(max_blocks=300)
    tokens = list(range(5_000))
    for end in (0, 3, 1_000, 1_024, 4_999, 5_000, 2_000):
        for root in (0, 7):
            text = [*tokens[:end], *range(9_000, 9_100)]
            assert block_chain(text, 8, root, memo=memo) == block_chain(text, 8, root)
