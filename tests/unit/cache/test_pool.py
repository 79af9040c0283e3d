"""Admission, sharing and eviction of blocks in the pool's model."""

import pytest

from kvscope.cache.blocks import Blocks
from kvscope.cache.hashing import block_chain
from kvscope.cache.pool import BlockPool
from kvscope.errors import UsageError


def test_a_whole_prompt_in_the_cache_still_computes_its_last_block() -> None:
    pool = BlockPool(4, 20)
    chain = block_chain(range(8), 4)
    assert pool.admit("a", chain, 8) == 0
    pool.finish("a")
    assert pool.admit("b", chain, 8) == 4
    assert pool.admit("c", block_chain(range(9), 4), 9) == 8
    assert pool.hit_blocks(chain, 8) == 1
    assert pool.hit_blocks(chain, 0) == 0


def test_blocks_are_shared_while_requests_run_and_freed_by_the_last() -> None:
    pool = BlockPool(4, 20)
    chain = block_chain(range(12), 4)
    pool.admit("a", chain, 12)
    assert pool.free_blocks == 16
    assert pool.admit("b", chain, 12) == 8
    assert pool.free_blocks == 15  # b has computed its own last block
    pool.finish("a")
    assert pool.free_blocks == 16
    pool.finish("b")
    assert pool.free_blocks == 19
    assert pool.cached_ids == 3


def test_eviction_takes_the_tail_of_the_oldest_first() -> None:
    evicted: list[int] = []
    pool = BlockPool(4, 5, on_evict=evicted.append)
    old, new = block_chain(range(8), 4), block_chain(range(100, 116), 4)
    pool.admit("a", old, 8)
    pool.finish("a")
    assert pool.admit("b", new[:3], 12) == 0
    assert evicted == [old[1]]
    assert old[0] in pool
    pool.finish("b")
    pool.admit("c", block_chain(range(200, 204), 4), 4)
    assert evicted == [old[1], old[0]]


def test_a_hit_is_not_evicted_and_becomes_the_youngest() -> None:
    pool = BlockPool(4, 4)
    a, b = block_chain(range(8), 4), block_chain(range(100, 104), 4)
    pool.admit("a", a[:1], 5)
    pool.finish("a")
    pool.admit("b", b, 4)
    pool.finish("b")
    assert pool.admit("a again", a[:1], 5) == 4
    pool.finish("a again")
    pool.admit("c", block_chain(range(200, 208), 4), 8)
    assert a[0] in pool
    assert b[0] not in pool


def test_a_copy_of_an_evicted_block_is_found() -> None:
    pool = BlockPool(4, 4)
    chain = block_chain(range(4), 4)
    pool.admit("a", chain, 4)
    pool.admit("b", chain, 4)  # the only block holds the last token: computed again
    pool.finish("a")
    pool.finish("b")
    pool.admit("c", block_chain(range(100, 108), 4), 8)
    assert chain[0] in pool
    assert pool.evictions == 1
    assert pool.admit("d", chain, 5) is None  # one free block, which is the hit itself
    pool.finish("c")
    assert pool.admit("d", chain, 5) == 4


def test_requests_wait_for_room_and_leave_the_pool_as_it_was() -> None:
    pool = BlockPool(4, 4)
    pool.admit("a", block_chain(range(8), 4), 8)
    assert pool.admit("b", block_chain(range(50, 58), 4), 8) is None
    assert pool.free_blocks == 1
    assert pool.extend("a", block_chain(range(12), 4), 12)
    assert pool.admit("c", [], 1) is None
    pool.finish("a")
    assert pool.admit("b", block_chain(range(50, 58), 4), 8) == 0
    with pytest.raises(UsageError, match="is running"):
        pool.admit("b", [], 1)
    with pytest.raises(UsageError, match="needs 4 blocks"):
        pool.extend("b", block_chain(range(13), 4), 13)


def test_growth_waits_for_room() -> None:
    pool = BlockPool(4, 4)
    pool.admit("a", [], 3)
    pool.admit("b", [], 8)
    assert not pool.extend("a", [], 5)
    pool.finish("b")
    assert pool.extend("a", block_chain(range(5), 4), 5)
    assert pool.cached_ids == 1


def test_clear_forgets_what_is_cached() -> None:
    for size in (10, None):
        pool = BlockPool(4, size)
        chain = block_chain(range(8), 4)
        pool.admit("a", chain, 8)
        pool.finish("a")
        pool.clear()
        assert pool.cached_ids == 0
        assert pool.admit("b", chain, 8) == 0


def test_a_pool_without_limit_uses_blocks_that_cache_nothing_again() -> None:
    pool = BlockPool(4)
    assert pool.free_blocks is None
    blocks: Blocks[int] = Blocks(None)
    for _ in range(50):
        taken = blocks.take(1)
        assert taken == [0]
        blocks.release(taken)


def test_a_prompt_comes_in_parts_but_is_let_in_as_a_whole() -> None:
    pool = BlockPool(4, 6)
    chain = block_chain(range(16), 4)
    assert pool.admit("a", chain, 16, chunk_tokens=6) == 0
    assert (pool.free_blocks, pool.cached_ids) == (3, 1)
    assert pool.admit("b", block_chain(range(100, 116), 4), 16, chunk_tokens=4) is None
    assert pool.extend("a", chain, 16)
    assert (pool.free_blocks, pool.cached_ids) == (1, 4)
