"""The modelled engine: admission, preemption, aborts and what it reports of its cache."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from kvscope.demo.engine.body import Job
from kvscope.demo.engine.core import CacheChange, EngineCore, Run, new_run
from kvscope.demo.engine.settings import EngineSettings, Timing
from kvscope.errors import ConfigError

_INSTANT = Timing(scale=0.0)


def _job(tokens: range, *, output: int = 1, salt: str | None = None, lookup: bool = True) -> Job:
    return Job(
        id="chatcmpl-x",
        api="chat",
        tokens=tuple(tokens),
        max_tokens=output,
        ignore_eos=True,
        salt=salt,
        lookup=lookup,
        stream=False,
        include_usage=False,
        return_token_ids=False,
        parameters={},
    )


def _settings(blocks: int = 100, block_size: int = 4, timing: Timing = _INSTANT) -> EngineSettings:
    limit = (blocks - 1) * block_size
    return EngineSettings(
        tokenizer=Path(), block_size=block_size, blocks=blocks, max_model_len=limit, timing=timing
    )


async def _finished(core: EngineCore, job: Job) -> Run:
    run = new_run(job)
    async for _ in core.generate(run):
        pass
    return run


async def test_a_second_prompt_hits_all_but_its_last_block() -> None:
    core = EngineCore(_settings(), [7])
    assert (await _finished(core, _job(range(40)))).cached_tokens == 0
    assert (await _finished(core, _job(range(40)))).cached_tokens == 36
    assert (await _finished(core, _job(range(40), salt="other"))).cached_tokens == 0
    assert (await _finished(core, _job(range(40), lookup=False))).cached_tokens == 0
    assert (core.running, core.waiting, core.cache_usage) == (0, 0, 0.0)


async def test_its_reports_add_up_to_what_is_cached() -> None:
    changes: list[CacheChange] = []
    core = EngineCore(_settings(blocks=21), [7], on_change=changes.append)
    for start in range(0, 400, 40):
        await _finished(core, _job(range(start, start + 40), output=9))
    cached: dict[int, int | None] = {}
    for change in changes:
        for block in change.removed:
            del cached[block]
        for stored in change.stored:
            assert len(stored.tokens) == 4 * len(stored.ids)
            assert stored.parent is None or stored.parent in cached
            for parent, block in zip((stored.parent, *stored.ids), stored.ids, strict=False):
                assert block not in cached
                cached[block] = parent
    # 20 usable blocks; 40 tokens and 8 computed ones of the answer fill 12 of them, twelve of which are full
    assert 12 <= len(cached) <= 20
    assert any(change.removed for change in changes)


async def test_without_room_requests_wait_or_are_preempted_and_all_come_to_their_end() -> None:
    core = EngineCore(_settings(blocks=13), [7])
    jobs = [_job(range(start, start + 8), output=30) for start in range(0, 400, 100)]
    runs = await asyncio.wait_for(asyncio.gather(*(_finished(core, job) for job in jobs)), timeout=20)
    assert [len(run.output) for run in runs] == [30] * 4
    assert sum(run.preemptions for run in runs) > 0
    assert (core.running, core.waiting, core.cache_usage) == (0, 0, 0.0)


async def test_a_reader_that_leaves_frees_its_blocks() -> None:
    core = EngineCore(_settings(timing=Timing(decode_seconds=5.0)), [7])
    run = new_run(_job(range(40), output=50))
    async with aclosing(core.generate(run)) as tokens:
        assert await anext(tokens) == 7
        assert core.running == 1
        assert core.cache_usage > 0
    assert (core.running, core.cache_usage) == (0, 0.0)
    assert run.finish_reason is None


async def test_one_that_is_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    core = EngineCore(_settings(timing=Timing(base_seconds=5.0)), [7])
    tasks = [asyncio.create_task(_finished(core, _job(range(40)))) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert (core.running, core.waiting) == (1, 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (core.running, core.waiting, core.cache_usage) == (0, 0, 0.0)


async def test_phases_follow_each_other() -> None:
    core = EngineCore(_settings(timing=Timing(base_seconds=0.05, decode_seconds=0.01)), [7])
    first, second = await asyncio.gather(
        _finished(core, _job(range(40), output=3)), _finished(core, _job(range(100, 140), output=3))
    )
    for run in (first, second):
        assert run.scheduled is not None
        assert run.first_token is not None
        assert run.last_token is not None
        assert run.queued <= run.scheduled < run.first_token < run.last_token
        assert run.first_token - run.scheduled >= 0.05
    assert second.scheduled is not None
    assert second.scheduled - second.queued >= 0.05


def test_a_cache_that_cannot_hold_one_request_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 257 are needed"):
        EngineSettings(tokenizer=Path(), blocks=100, max_model_len=8192)


def test_prefill_takes_longer_with_more_to_compute_and_with_more_before_it() -> None:
    timing = Timing()
    miss = timing.prefill_seconds(new_tokens=3000, cached_tokens=0)
    hit = timing.prefill_seconds(new_tokens=40, cached_tokens=2960)
    assert miss > 5 * hit
    assert hit > timing.prefill_seconds(new_tokens=40, cached_tokens=0)
