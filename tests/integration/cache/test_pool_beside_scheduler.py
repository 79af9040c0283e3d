"""The pool's model follows vLLM's own scheduler: prompts in parts, preemption, recomputation, async steps."""

import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from kvscope.cache.hashing import block_chain, root_of
from kvscope.cache.pool import BlockPool
from kvscope.demo.model import build_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),  # torch and vLLM warn of themselves while they are imported
]

BLOCK_SIZE = 32


class Followed:
    """Stands before vLLM's manager of the cache and lets the model do what the scheduler asks of it."""

    def __init__(self, manager: Any, blocks: int) -> None:
        self._manager = manager
        self._evicted: list[int] = []
        self._pool = BlockPool(BLOCK_SIZE, blocks, on_evict=self._evicted.append)
        self._running: set[str] = set()
        self._own: dict[int, int] = {}  # vLLM's hash as events have it -> own chain id
        self.hits: dict[str, int] = {}
        self.refused = self.chunks = self.evictions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def allocate_slots(
        self, request: Any, new: int, num_new_computed_tokens: int = 0, *more: Any, **named: Any
    ) -> Any:
        slots = self._manager.allocate_slots(request, new, num_new_computed_tokens, *more, **named)
        name, chain = request.request_id, self._chain(request)
        if name in self._running:
            tokens = request.num_computed_tokens + new
            assert self._pool.extend(name, chain, tokens) == (slots is not None)
            self.chunks += request.num_computed_tokens < request.num_prompt_tokens
        else:
            hit = self._pool.admit(name, chain, request.num_tokens, chunk_tokens=new)
            assert hit == (None if slots is None else num_new_computed_tokens)
            if hit is not None:
                self._running.add(name)
                self.hits.setdefault(name, hit)
        self.refused += slots is None
        self._agree()
        return slots

    def cache_blocks(self, request: Any, tokens: int) -> None:
        """Take over what an asynchronous step learns of generated tokens after it was scheduled."""
        self._manager.cache_blocks(request, tokens)
        if tokens:
            assert self._pool.extend(request.request_id, self._chain(request), tokens)
        self._agree()

    def free(self, request: Any) -> None:
        self._manager.free(request)
        if request.request_id in self._running:
            self._running.discard(request.request_id)
            self._pool.finish(request.request_id)
        self._agree()

    def _chain(self, request: Any) -> list[int]:
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        tokens = list(request.all_token_ids)
        chain = block_chain(tokens, BLOCK_SIZE, root_of(salt=request.cache_salt))
        for own, theirs in zip(chain, request.block_hashes, strict=True):
            self._own[int(maybe_convert_block_hash(theirs))] = own
        return chain

    def _agree(self) -> None:
        from vllm.distributed.kv_events import BlockRemoved

        assert self._pool.free_blocks == self._manager.block_pool.get_num_free_blocks()
        removed = [event for event in self._manager.take_events() if isinstance(event, BlockRemoved)]
        assert self._evicted == [self._own[int(each)] for event in removed for each in event.block_hashes]
        self.evictions += len(self._evicted)
        self._evicted.clear()


def scheduler_of(model: Path, blocks: int, *, asynchronous: bool) -> Any:
    import torch
    from vllm.config import KVEventsConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = EngineArgs(
        model=str(model),
        dtype="float32",
        max_model_len=1024,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=blocks,
        enable_prefix_caching=True,
        max_num_batched_tokens=128,
        max_num_seqs=8,
        async_scheduling=asynchronous,
        enforce_eager=True,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return (AsyncScheduler if asynchronous else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["0"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
    )


def computed(scheduler: Any, scheduled: Any, chance: random.Random) -> Any:
    """Return what a model runner would: a token for each request but those with a part of their prompt."""
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(scheduled.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: at for at, name in enumerate(names)},
        sampled_token_ids=[
            [] if scheduler.requests[name].is_prefill_chunk else [chance.randrange(3, 90)] for name in names
        ],
    )


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_pool_follows_the_scheduler(tmp_path: Path, asynchronous: bool) -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256_cbor)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256_cbor)
    scheduler = scheduler_of(build_model(tmp_path / "model", weights=False), 40, asynchronous=asynchronous)
    followed = scheduler.kv_cache_manager = Followed(scheduler.kv_cache_manager, 40)
    chance = random.Random(7)
    beginnings = [[chance.randrange(3, 90) for _ in range(400)] for _ in range(3)]
    pending: deque[tuple[Any, Any]] = deque()
    preempted = 0
    for step in range(600):
        if step < 420 and chance.random() < 0.25:
            tokens = chance.choice(beginnings)[: chance.randrange(1, 400)]
            tokens = tokens + [chance.randrange(3, 90) for _ in range(chance.randrange(60))]
            params = SamplingParams(max_tokens=chance.randrange(1, 120), ignore_eos=True)
            params.update_from_generation_config({}, eos_token_id=2)
            salt = chance.choice([None, None, None, "s"])
            scheduler.add_request(
                Request(str(step), tokens, params, None, cache_salt=salt, block_hasher=hasher)
            )
        scheduled = scheduler.schedule()
        preempted += len(scheduled.preempted_req_ids or ())
        pending.append((scheduled, computed(scheduler, scheduled, chance)))
        if len(pending) > asynchronous:  # an asynchronous engine plans a step before the last one is over
            scheduler.update_from_output(*pending.popleft())
    assert preempted >= 5
    assert followed.chunks > 30
    assert followed.evictions > 200
    assert sum(followed.hits.values()) > 2_000
