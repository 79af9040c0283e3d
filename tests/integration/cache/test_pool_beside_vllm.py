"""The models of the block pool beside vLLM's own KVCacheManager, fed with the same requests, step by step."""

import random
from collections.abc import Sequence
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.cache.groups import Group, GroupedPool, GroupKey
from kvscope.cache.hashing import block_chain, root_of
from kvscope.cache.pool import BlockPool

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),  # torch and vLLM warn of themselves while they are imported
]

MOST_TOKENS = 120  # of a made-up request, what it generates included


class Model(Protocol):
    """What both models of the pool offer."""

    @property
    def free_blocks(self) -> int | None: ...
    def admit(
        self,
        request_id: str,
        chain: Sequence[int],
        prompt_tokens: int,
        *,
        lookup: bool = True,
        chunk_tokens: int | None = None,
    ) -> int | None: ...
    def extend(self, request_id: str, chain: Sequence[int], tokens: int) -> bool: ...
    def finish(self, request_id: str) -> None: ...


class Engine:
    """vLLM's manager of the cache and the model of it, which must agree after each step."""

    def __init__(
        self,
        groups: Sequence[Group],
        blocks: int,
        in_flight: int | None,
        single: bool,
        retention: int | None = None,
    ) -> None:
        import torch
        from vllm.utils.hashing import sha256_cbor
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            SlidingWindowSpec,
        )

        init_none_hash(sha256_cbor)
        self.evicted: list[GroupKey] = []
        self.model: Model
        if single:
            self.model = BlockPool(
                groups[0].block_size, blocks, on_evict=lambda chain_id: self.evicted.append((0, chain_id))
            )
        else:
            self.model = GroupedPool(
                groups,
                blocks,
                max_in_flight_tokens=in_flight,
                retention=retention,
                on_evict=self.evicted.append,
            )
        self.groups = groups
        sizes = GroupedPool(groups)
        self.hash_block_size = sizes.hash_block_size
        shape: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        specs = [
            FullAttentionSpec(block_size=group.block_size, **shape)
            if group.window is None
            else SlidingWindowSpec(block_size=group.block_size, sliding_window=group.window, **shape)
            for group in groups
        ]
        self.vllm = KVCacheManager(
            KVCacheConfig(
                num_blocks=blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)],
                prefix_cache_retention_interval=retention,
            ),
            max_model_len=8192,
            scheduler_block_size=sizes.hit_step,
            hash_block_size=self.hash_block_size,
            max_in_flight_tokens=in_flight,
            enable_kv_cache_events=True,
        )
        self.hasher = get_request_block_hasher(self.hash_block_size, sha256_cbor)
        self.requests: dict[str, Any] = {}
        self.chain_of: dict[int, tuple[int, int]] = {}  # vLLM's hash -> own id, tokens before its end

    def request(self, name: str, tokens: list[int], salt: str | None) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        return Request(
            name, tokens, SamplingParams(max_tokens=1000), None, cache_salt=salt, block_hasher=self.hasher
        )

    def chain(self, request: Any) -> list[int]:
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        tokens = list(request.all_token_ids)
        chain = block_chain(tokens, self.hash_block_size, root_of(salt=request.cache_salt))
        for at, (own, theirs) in enumerate(zip(chain, request.block_hashes, strict=True), start=1):
            self.chain_of[int(maybe_convert_block_hash(theirs))] = own, at * self.hash_block_size
        return chain

    def admit(self, request: Any, chunk: int) -> int | None:
        found, hit, request.shared_prefix_boundary = self.vllm.get_computed_blocks(request)
        new = min(request.num_tokens - hit, chunk)
        slots = self.vllm.allocate_slots(request, new, hit, found, full_sequence_must_fit=True)
        asked = {} if isinstance(self.model, BlockPool) else {"asked_tokens": request.num_prompt_tokens}
        got = self.model.admit(
            request.request_id, self.chain(request), request.num_tokens, chunk_tokens=chunk, **asked
        )
        assert got == (None if slots is None else hit)
        if got is not None:
            request.num_computed_tokens = hit + new
            self.requests[request.request_id] = request
        self.agree()
        return got

    def grow(self, request: Any, chunk: int, new_token: int) -> bool:
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token_ids(new_token)
        new = min(request.num_tokens - request.num_computed_tokens, chunk)
        slots = self.vllm.allocate_slots(request, new)
        tokens = request.num_computed_tokens + new
        assert self.model.extend(request.request_id, self.chain(request), tokens) == (slots is not None)
        if slots is not None:
            request.num_computed_tokens = tokens
        self.agree()
        return slots is not None

    def finish(self, request: Any) -> None:
        self.vllm.free(request)
        self.model.finish(request.request_id)
        del self.requests[request.request_id]
        request.num_computed_tokens = 0
        self.agree()

    def agree(self) -> None:
        """Both have the same blocks free, and have evicted the same ones in the same order."""
        from vllm.distributed.kv_events import BlockRemoved

        assert self.model.free_blocks == self.vllm.block_pool.get_num_free_blocks()
        removed = []
        for event in self.vllm.take_events():
            if not isinstance(event, BlockRemoved):
                continue
            assert event.group_idx is not None
            for block_hash in event.block_hashes:
                own, tokens = self.chain_of[int(block_hash)]
                # a name that vLLM gives to the prompt's end inside a larger block; no lookup asks for it
                if tokens % self.groups[event.group_idx].block_size == 0:
                    removed.append((event.group_idx, own))
        assert self.evicted == removed
        self.evicted.clear()


def enough(groups: Sequence[Group]) -> int:
    """Return blocks that hold the largest request and little more."""
    return 10 + sum(-(-MOST_TOKENS // group.block_size) for group in groups)


def play(engine: Engine, seed: int, steps: int) -> tuple[int, int]:
    """Let requests come, grow, be preempted and end at random; return hit tokens and refusals."""
    chance = random.Random(seed)
    beginnings = [[chance.randrange(50) for _ in range(80)] for _ in range(3)]
    past: list[list[int]] = []
    preempted: list[Any] = []
    hits = refused = 0
    for step in range(steps):
        move = chance.random()
        running = list(engine.requests.values())
        if move < 0.35 or not running:
            if preempted and chance.random() < 0.7:
                request = preempted.pop()
            else:
                tokens = chance.choice(past if past and chance.random() < 0.4 else beginnings)[:80]
                tokens = tokens[: chance.randrange(1, len(tokens) + 1)]
                tokens += [chance.randrange(50) for _ in range(chance.randrange(20))]
                request = engine.request(str(step), tokens, chance.choice([None, None, None, "s"]))
            hit = engine.admit(request, chance.choice([4, 16, 1000]))
            refused += hit is None
            hits += hit or 0
            continue
        request = chance.choice(running)
        if move < 0.8 and request.num_tokens < MOST_TOKENS:
            refused += not engine.grow(request, chance.choice([4, 16, 1000]), chance.randrange(50))
            continue
        engine.finish(request)
        if chance.random() < 0.3:
            preempted.append(request)
        else:
            past.append(list(request.all_token_ids))
    return hits, refused


FULL = Group(block_size=4)
MODELS = {
    "full attention": ([FULL], None),
    "sliding window": ([Group(block_size=4, window=10)], None),
    "window of one block": ([Group(block_size=4, window=4)], 32),
    "full and window": ([FULL, Group(block_size=4, window=12)], None),
    "window first, several groups alike": (
        [Group(block_size=4, window=9), Group(block_size=4, window=9), FULL],
        64,
    ),
    "two windows": ([Group(block_size=4, window=9), Group(block_size=4, window=20)], None),
    "full and two windows": ([FULL, Group(block_size=4, window=9), Group(block_size=4, window=21)], 48),
    "coarse full, fine window": ([Group(block_size=8), Group(block_size=4, window=9)], None),
    "fine full, coarse window": ([FULL, Group(block_size=16, window=20)], None),
    "neither divides the other": ([Group(block_size=6), Group(block_size=4, window=7)], 40),
    "narrow window before far ends": ([Group(block_size=16), Group(block_size=2, window=5)], None),
}


@pytest.mark.parametrize("retention", [None, 0, 48])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_hits_free_blocks_and_evictions(name: str, retention: int | None) -> None:
    groups, in_flight = MODELS[name]
    hits = refused = 0
    for seed in range(6):
        kept = None if groups == [FULL] else retention  # vLLM refuses it without a window
        engine = Engine(groups, enough(groups), in_flight, single=False, retention=kept)
        found, turned_away = play(engine, seed, 100)
        hits, refused = hits + found, refused + turned_away
    assert hits > (500 if retention is None else 150)  # else the runs would show little
    assert refused > 5


def test_the_pool_of_one_group_does_the_same() -> None:
    hits = 0
    for seed in range(12):
        hits += play(Engine([FULL], enough([FULL]), None, single=True), seed, 150)[0]
    assert hits > 500  # else the runs would show little


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            Group,
            block_size=st.sampled_from([2, 4, 6, 8]),
            window=st.none() | st.integers(min_value=2, max_value=30),
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
    st.integers(min_value=0, max_value=1 << 32),
)
def test_any_groups(groups: list[Group], dense: bool, seed: int) -> None:
    retention = None if dense or all(group.window is None for group in groups) else 0
    play(Engine(groups, enough(groups), None, single=False, retention=retention), seed, 60)
