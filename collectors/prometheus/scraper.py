"""The running scraper: one task a page, so that a slow engine delays no other."""

import asyncio
import contextlib
import dataclasses
import os
import zlib

import aiohttp
from prometheus_client import Counter

from collectors.prometheus.page import parse_page
from collectors.prometheus.settings import PrometheusSettings
from kvscope.errors import IngestError, KvscopeError, RetryableIngestError, UnreachableError
from kvscope.model.telemetry import MetricSample
from kvscope.pipeline.contracts import Batch, CollectorContext, Receipt

_OFF_THE_LOOP_CHARS = 262_144  # a larger page is read in a thread: the loop also serves the gateway
_NEXT_SECONDS = 0.001
_GZIP = 16 + zlib.MAX_WBITS


@dataclasses.dataclass(slots=True, kw_only=True)
class _Target:
    """A page, and what became of its last read."""

    url: str
    engine: str  # base URL of the server, as the rest of kvscope names it
    samples: int = 0
    read_at: float = 0.0  # Unix seconds
    problem: str | None = "not read yet"
    receipt: Receipt | None = None
    buckets_due: float = 0.0  # of the loop's clock


class Scraper:
    """Reads every engine's page at an interval, the first time at once."""

    def __init__(self, settings: PrometheusSettings, context: CollectorContext) -> None:
        self._settings = settings
        self._context = context
        self._targets = [_Target(url=url, engine=engine) for url, engine in _pages(settings, context)]
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._scrapes = Counter(
            "kvscope_scrapes",
            "Reads of metrics pages by result.",
            ["engine", "result"],
            registry=context.registry,
        )

    async def start(self) -> None:
        """Begin reading; an engine that is not there yet is asked again at every interval."""
        if not self._settings.interval_seconds:
            return
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_seconds)
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            auto_decompress=False,  # it would not say that a page is cut off
            headers={"Accept-Encoding": "gzip"},
        )
        self._tasks = [asyncio.create_task(self._run(target, self._session)) for target in self._targets]

    async def stop(self) -> None:
        """Stop reading; what was read has been handed on."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._session is not None:
            await self._session.close()
            self._session = None

    def health(self) -> tuple[bool, str]:
        """Return whether every page could be read the last time, and the first reason if not."""
        if not self._settings.interval_seconds:
            return True, "turned off"
        broken = [target for target in self._targets if target.problem is not None]
        if broken:
            return False, f"{broken[0].url}: {broken[0].problem}"
        samples = sum(target.samples for target in self._targets)
        every = f"every {self._settings.interval_seconds:g} s"
        return True, f"{len(self._targets)} metrics pages read {every}, {samples} samples the last time"

    async def _run(self, target: _Target, session: aiohttp.ClientSession) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            result = await self._scrape(target, session)
            self._scrapes.labels(target.engine, result).inc()
            # a read that took longer than the interval is not made up for
            due = max(due + self._settings.interval_seconds, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _scrape(self, target: _Target, session: aiohttp.ClientSession) -> str:
        """Read, decode and offer one page; say in one word what came of it."""
        if target.receipt is not None and not target.receipt.done():
            target.problem = "skipped: the store has not taken the last read yet"
            return "skipped"
        try:
            text, at = await self._read(target.url, session)
            # a clock that is set back must not make a counter look as if it had fallen
            at = target.read_at = max(at, target.read_at + _NEXT_SECONDS)
            samples = await self._parse(text, target, at)
            target.receipt = await self._offer(Batch(samples=samples))
        except RetryableIngestError as error:
            target.problem = f"skipped: {error}"
            return "skipped"
        except IngestError as error:
            target.problem = str(error)
            return "refused"
        except KvscopeError as error:
            target.problem = str(error)
            return "unreachable"
        target.problem = None
        target.samples = len(samples)
        return "ok"

    async def _parse(self, text: str, target: _Target, at: float) -> list[MetricSample]:
        """Return the page's samples; those of buckets, which are many, only now and then."""
        every, now = self._settings.buckets_seconds, asyncio.get_running_loop().time()
        buckets = every > 0 and now >= target.buckets_due
        if len(text) > _OFF_THE_LOOP_CHARS:
            samples = await asyncio.to_thread(parse_page, text, target.engine, at, buckets=buckets)
        else:
            samples = parse_page(text, target.engine, at, buckets=buckets)
        if buckets:
            target.buckets_due = now + every
        return samples

    async def _read(self, url: str, session: aiohttp.ClientSession) -> tuple[str, float]:
        most = self._settings.max_page_bytes
        try:
            async with session.get(url) as response:
                if response.status != 200:  # noqa: PLR2004 - HTTP's OK
                    raise UnreachableError(f"answered {response.status}")
                at = self._context.clock()
                body = bytearray()
                async for chunk in response.content.iter_chunked(65_536):
                    body += chunk
                    if len(body) > most:
                        raise UnreachableError(f"the page is larger than {most} bytes")
                plain = _unzipped(bytes(body), response.headers.get("Content-Encoding", ""), most)
        except TimeoutError as error:
            raise UnreachableError(f"no answer within {self._settings.timeout_seconds:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError, zlib.error) as error:
            raise UnreachableError(f"cannot be read: {_reason(error)}") from error
        return plain.decode("utf-8", "replace"), at

    async def _offer(self, batch: Batch) -> Receipt:
        """Hand the samples on; a full queue is given until about the next read to have space."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.interval_seconds
        while True:
            try:
                return self._context.sink.offer(batch)
            except RetryableIngestError as error:
                if loop.time() + error.retry_after_seconds > until:
                    raise
                await asyncio.sleep(error.retry_after_seconds)


def _unzipped(body: bytes, encoding: str, most: int) -> bytes:
    """Return the page itself; raises ``UnreachableError`` and ``zlib.error``."""
    if encoding.strip().lower() in {"", "identity"}:
        return body
    if encoding.strip().lower() != "gzip":
        raise UnreachableError(f"is encoded as {encoding[:40]!r}; only gzip was asked for")
    inflate = zlib.decompressobj(_GZIP)
    plain = inflate.decompress(body, most)
    if inflate.unconsumed_tail:
        raise UnreachableError(f"the page is larger than {most} bytes")
    if not inflate.eof:
        raise UnreachableError("cannot be read: the page is cut off")
    return plain


def _reason(error: Exception) -> str:
    """Say in few words why a page cannot be had; aiohttp's own words for a refused connection are many."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno)
    return str(error) or type(error).__name__


def _pages(settings: PrometheusSettings, context: CollectorContext) -> list[tuple[str, str]]:
    """Pair each page with its engine: the upstream at its place, else the page's own base URL."""
    if not settings.urls:
        return [(f"{upstream}/metrics", upstream) for upstream in context.upstreams]
    upstreams = list(context.upstreams)
    paired = len(upstreams) == len(settings.urls)
    return [
        (url, upstreams[place] if paired else url.removesuffix("/").removesuffix("/metrics"))
        for place, url in enumerate(settings.urls)
    ]
