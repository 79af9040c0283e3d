"""The agent's own recurring work: experiments every second, advice now and then."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from prometheus_client import Counter

from kvscope.agent.advising import AdviceTask, advice_pool, run_task
from kvscope.agent.asking import LastLook
from kvscope.agent.caches import CacheConfigs
from kvscope.analysis.latency import fit_latency
from kvscope.analysis.live import Analyser
from kvscope.clock import Clock
from kvscope.config.settings import AdvisorSettings
from kvscope.model.cache_config import CacheConfig
from kvscope.prompts.mining.live import LiveRoute, mined_routes
from kvscope.store.database import Store

_LOG = logging.getLogger(__name__)
_RECORDS_FOR_FIT = 5_000
_MINED_ROUTES = 64  # the busiest; a tenth of a second each

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")


class Loop:
    """Calls ``work`` every ``seconds`` until stopped; a failure is logged, counted and tried again."""

    def __init__(
        self, name: str, work: Callable[[], Awaitable[None]], seconds: float, failures: Counter
    ) -> None:
        self.name = name
        self._work = work
        self._seconds = seconds
        self._failures = failures
        self._task: asyncio.Task[None] | None = None
        self._last_error: str | None = None

    def start(self) -> None:
        """Begin; the first call comes after one interval."""
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """End after the call that is running."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def health(self) -> tuple[bool, str]:
        """Return whether the last call went well."""
        return self._last_error is None, self._last_error or "runs"

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self._work()
                self._last_error = None
            except Exception as error:  # noqa: BLE001 - the supervisor: one part's fault stops no other
                self._failures.labels(self.name).inc()
                if self._last_error != str(error):
                    _LOG.warning("%s: %s: %s", self.name, type(error).__name__, error)
                self._last_error = str(error) or type(error).__name__


class Advisor:
    """Refits the latency models and looks for suggestions over the analyser's window."""

    def __init__(
        self,
        *,
        store: Store,
        analyser: Analyser,
        caches: CacheConfigs,
        tokenizer: Path | str,
        settings: AdvisorSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._analyser = analyser
        self._caches = caches
        self._tokenizer = tokenizer
        self._settings = settings
        self._clock = clock
        self._pool: ProcessPoolExecutor | None = None
        self._seen = 0
        self.last_look = LastLook(
            looked_at=None, none_because="the advisor has not looked at the traffic yet", unchanged={}
        )
        """What the advisor said last, and why it said nothing of a route."""

    async def look(self) -> None:
        """Fit, advise, and save both; does nothing while there is nothing new."""
        window = self._analyser.window()
        newest = int(window[-1].arrived_at * 1e6) if window else 0
        cache = self._caches.only()
        waits_for = self._waits_for(len(window), cache)
        if waits_for is not None:
            self.last_look = dataclasses.replace(self.last_look, none_because=waits_for)
        if len(window) < self._settings.min_requests or newest == self._seen or cache is None:
            return
        self._seen = newest
        now = self._clock()
        records = await asyncio.to_thread(self._store.reader.requests, last=_RECORDS_FOR_FIT)
        fit = await asyncio.to_thread(fit_latency, records, now=now)
        await asyncio.to_thread(self._store.advice.save_models, list(fit.models))
        if cache.block_size is None:
            return
        policies = await asyncio.to_thread(self._store.advice.policies)
        task = AdviceTask(
            prompts=window,
            models=fit.models,
            tokenizer=self._tokenizer,
            block_size=cache.block_size,
            num_blocks=cache.num_blocks,
            now=now,
            min_gain=self._settings.min_gain,
            in_force={policy.route: policy.transforms for policy in policies},
        )
        advice = await self._aside(run_task, task)
        await asyncio.to_thread(
            self._store.advice.save_suggestions,
            advice.suggestions,
            looked_at={prompt.route for prompt in window},
        )
        self.last_look = LastLook(
            looked_at=now, none_because=advice.none_because, unchanged=dict(advice.unchanged)
        )

    def _waits_for(self, requests: int, cache: CacheConfig | None) -> str | None:
        """Return what is missing for a look, None where nothing is."""
        wanted = self._settings.min_requests
        if requests < wanted:
            return f"too few requests with their prompt have come through the gateway: {requests} of {wanted}"
        if cache is None or cache.block_size is None:
            return "the engine's block size is not known: the agent must scrape its metrics"
        return None

    async def mined(self) -> list[LiveRoute]:
        """Return what the prompts of each route share and where they vary, as of now."""
        samples = await asyncio.to_thread(self._analyser.samples)
        return await self._aside(mined_routes, samples[:_MINED_ROUTES])

    async def _aside(self, work: Callable[[_Task], _Found], task: _Task) -> _Found:
        """Do ``work`` in the advisor's process, one thing at a time."""
        if self._pool is None:
            self._pool = advice_pool()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, task)

    def close(self) -> None:
        """End the advisor's process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
