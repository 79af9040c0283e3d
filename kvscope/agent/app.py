"""The agent: builds every part, starts them in order and stops them in reverse."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from kvscope.agent.admin import admin_app
from kvscope.agent.advising import tokenizer_of
from kvscope.agent.caches import CacheConfigs
from kvscope.agent.comparing import Comparing
from kvscope.agent.export import Exporter
from kvscope.agent.export_metrics import MetricsSender, RequestMeasures
from kvscope.agent.foresight import Foresight
from kvscope.agent.loops import Advisor, Loop
from kvscope.agent.upkeep import Upkeep
from kvscope.analysis.live import Analyser
from kvscope.clock import Clock, system_clock
from kvscope.config.load import spool_folder
from kvscope.config.settings import AgentSettings
from kvscope.errors import ConfigError, UnreachableError
from kvscope.experiments.controller import Controller
from kvscope.experiments.policy import LivePolicy
from kvscope.pipeline.contracts import Collector, CollectorContext, CollectorFactory
from kvscope.pipeline.listen import AsgiListener, bind
from kvscope.pipeline.spool import Spool
from kvscope.pipeline.writer import Writer
from kvscope.store.database import open_store

_LOG = logging.getLogger(__name__)
_COLLECT_AFTER = 20_000  # objects
_SWITCH_SECONDS = 0.0005
_ROLL_UP_SECONDS = 15.0
_FORECAST_SECONDS = 10.0
_COMPARE_SECONDS = 30.0


class Agent:
    """One sidecar process. ``start`` either starts all parts or stops those it started and raises."""

    def __init__(
        self,
        settings: AgentSettings,
        factories: Mapping[str, CollectorFactory],
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._settings = settings
        self._registry = CollectorRegistry()
        self._stops: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        in_a_file = settings.db.startswith("sqlite")
        # where an agent has spooled for this store before, its address is known to be right
        known = bool(settings.spool.max_bytes) and spool_folder(settings).is_dir()
        conflicts = Counter(
            "kvscope_conflicts",
            "Fields of requests of which another source tells another value than the one taken.",
            ["field", "source", "other"],
            registry=self._registry,
        )
        self._store = open_store(
            settings.db,
            upgrade=in_a_file,
            may_be_away=known and not in_a_file,
            on_conflict=lambda told, requests: conflicts.labels(*told).inc(requests),
        )
        self._spool = _spool_of(settings, self._registry)
        tokenizer: Path | str = settings.tokenizer or settings.upstreams[0]
        self._writer = Writer(self._store.batches, settings.writer, self._registry, spool=self._spool)
        self._caches = CacheConfigs()
        self._foresight = Foresight(tokenizer_of(tokenizer), engines=settings.upstreams, clock=clock)
        self._analyser = Analyser(
            tokenizer=self._foresight,
            sink=self._writer,
            cache_configs=self._caches.get,
            clock=clock,
            registry=self._registry,
            settings=settings.analyser,
        )
        self._foresight.follow(self._analyser.index)
        self._writer.subscribe(self._caches.on_committed)
        self._writer.subscribe(self._analyser.on_committed)
        measures = RequestMeasures()
        self._exporter = Exporter(settings.export, clock=clock, registry=self._registry, note=measures.note)
        self._metrics = MetricsSender(
            settings.export, measures=measures, clock=clock, registry=self._registry
        )
        self._writer.subscribe(self._exporter.on_committed)
        policy = LivePolicy()
        self._controller = Controller(
            experiments=self._store.experiments,
            reader=self._store.reader,
            advice=self._store.advice,
            policy=policy,
            clock=clock,
        )
        self._advisor = Advisor(
            store=self._store,
            analyser=self._analyser,
            caches=self._caches,
            tokenizer=tokenizer,
            settings=settings.advisor,
            clock=clock,
        )
        context = CollectorContext(
            sink=self._writer,
            clock=clock,
            registry=self._registry,
            upstreams=settings.upstreams,
            policy=policy,
            prompts=self._analyser,
            cache_events=self._analyser,
            prefixes=self._foresight,
            forecast=self._foresight,
        )
        sections: Any = settings
        self._collectors: dict[str, Collector] = {
            name: factory.create(getattr(sections.collectors, name), context)
            for name, factory in factories.items()
        }
        failures = Counter(
            "kvscope_loop_failures", "Failed calls of recurring work.", ["loop"], registry=self._registry
        )
        self._loops = [
            Loop("forecast", self._foretell, _FORECAST_SECONDS, failures),
            Loop("controller", self._step, settings.controller.interval_seconds, failures),
        ]
        if settings.advisor.interval_seconds:
            self._loops.append(
                Loop("advisor", self._advisor.look, settings.advisor.interval_seconds, failures)
            )
        keep = settings.retention
        self._upkeep = Upkeep(self._store, keep_days=keep.days, clock=clock)
        comparing = Comparing(self._store, self._registry)
        self._loops.append(Loop("sums", comparing.compare, _COMPARE_SECONDS, failures))
        self._loops.append(Loop("rollups", self._upkeep.roll_up, _ROLL_UP_SECONDS, failures))
        if keep.days:
            self._loops.append(Loop("retention", self._upkeep.prune, keep.interval_seconds, failures))

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics of all parts, as ``/metrics`` serves them."""
        return self._registry

    async def _step(self) -> None:
        await asyncio.to_thread(self._controller.step)

    async def _foretell(self) -> None:
        self._foresight.foretell_with(await asyncio.to_thread(self._store.advice.models))

    def health(self) -> dict[str, tuple[bool, str]]:
        """Return the state of each part in one line."""
        parts = {name: collector.health() for name, collector in self._collectors.items()}
        parts["writer"] = self._writer.health()
        parts["spool"] = (True, "off") if self._spool is None else self._spool.health()
        parts["export"] = self._exporter.health()
        return parts | {loop.name: loop.health() for loop in self._loops}

    async def start(self) -> None:
        """Start the parts; raises ``ConfigError`` (port in use) after stopping what had started."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        # first, so that it stops last and hears all that is written
        self._metrics.start()
        self._stops.append(("metrics", self._stop_metrics))
        self._exporter.start()
        self._stops.append(("export", self._stop_exporter))
        self._writer.start()
        self._stops.append(("writer", self._stop_writer))
        self._analyser.start()
        self._stops.append(("analyser", self._stop_analyser))
        # promoted layouts and running experiments are in force from the first request on
        try:
            await self._step()
        except UnreachableError as error:
            _LOG.warning("no promoted layout and no experiment is in force yet: %s", error)
        for loop in self._loops:
            loop.start()
            self._stops.append((loop.name, loop.stop))
        # the gateway last: when traffic comes, everything behind it listens
        for name in sorted(self._collectors, key=lambda name: name == "gateway"):
            await self._collectors[name].start()
            self._stops.append((name, self._collectors[name].stop))
        # who hears of health finds every port open
        admin = self._settings.admin
        if admin.port:
            listener = AsgiListener(
                admin_app(self.health, self._registry, self._advisor.mined, lambda: self._advisor.last_look),
                bind(admin.host, admin.port, setting="--admin-port"),
            )
            await listener.start()
            self._stops.append(("admin", listener.stop))

    async def stop(self) -> None:
        """Stop the parts in reverse order; what was taken in is written first."""
        while self._stops:
            name, stop = self._stops.pop()
            try:
                await stop()
            except Exception:  # noqa: BLE001 - the supervisor: one part's fault stops no other from stopping
                _LOG.exception("%s did not stop cleanly", name)
        self._advisor.close()
        await asyncio.to_thread(self._upkeep.close)
        if self._spool is not None:
            self._spool.close()
        self._store.close()

    async def _stop_writer(self) -> None:
        left = await asyncio.to_thread(self._writer.stop)
        if left:
            _LOG.error("%d items could not be written before the end", left)
        elif self._spool is not None and self._spool.items:
            _LOG.warning("%d items wait on disk; the next start writes them", self._spool.items)

    async def _stop_metrics(self) -> None:
        await asyncio.to_thread(self._metrics.stop)

    async def _stop_exporter(self) -> None:
        await asyncio.to_thread(self._exporter.stop)

    async def _stop_analyser(self) -> None:
        # the last requests' own parts are committed first, so that their misses are explained too; while
        # the store fails there is only the writer's own wait, not one after the other
        if self._writer.health()[0]:
            await asyncio.to_thread(self._writer.flush, timeout_seconds=self._settings.writer.drain_seconds)
        await asyncio.to_thread(self._analyser.stop)

    async def run(self) -> None:
        """Start, wait for SIGINT or SIGTERM, stop."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        await self.start()
        # what comes by thousands holds no cycles, and what is there now stays: look for garbage less often
        gc.freeze()
        gc.set_threshold(_COLLECT_AFTER)
        # traffic waits for so long while the analysis, a thread, computes: 5 ms unless said
        sys.setswitchinterval(_SWITCH_SECONDS)
        parts = self.health()
        for name, (ok, detail) in parts.items():
            _LOG.log(logging.INFO if ok else logging.WARNING, "%s: %s", name, detail)
        broken = [name for name, (ok, _) in parts.items() if not ok]
        if broken:
            _LOG.warning("the agent runs, but does not work in full: %s", ", ".join(broken))
        else:
            _LOG.info("the agent is ready")
        await ended.wait()
        _LOG.info("stopping")
        await self.stop()


def _spool_of(settings: AgentSettings, registry: CollectorRegistry) -> Spool | None:
    """Return the spool, or None where it is off; a folder that nobody named may be unusable."""
    if not settings.spool.max_bytes:
        return None
    try:
        return Spool(spool_folder(settings), settings.spool, registry)
    except ConfigError as error:
        if settings.spool.folder is not None:
            raise
        _LOG.warning("%s; until then what the store does not take waits in memory", error)
        return None
