"""The scraper against a server that comes, goes, and says odd things."""

import asyncio
import contextlib
import dataclasses
import gzip
import resource
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from collectors.prometheus.factory import FACTORY
from collectors.prometheus.scraper import Scraper
from collectors.prometheus.settings import PrometheusSettings
from kvscope.errors import RetryableIngestError
from kvscope.model.cache_config import cache_config
from kvscope.pipeline.contracts import Batch, Receipt
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.store.database import Store, open_store
from tests.support.telemetry import AnsweringSink, context, eventually, metrics_page

PAGE = metrics_page("0.32.0")


class Engine:
    """A server whose metrics page can be changed while it runs."""

    def __init__(self) -> None:
        self.page: str | None = PAGE  # None: no answer
        self.zipped: bytes | None = None  # sent instead of the page
        self.asked = asyncio.Event()
        self._stopping = asyncio.Event()
        self.status = 200
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            self._stopping.set()
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, _: web.Request) -> web.Response:
        self.asked.set()
        if self.page is None:
            await self._stopping.wait()
        if self.zipped is not None:
            return web.Response(body=self.zipped, headers={"Content-Encoding": "gzip"})
        return web.Response(text=self.page, status=self.status)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    server = Engine()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'samples.db'}", upgrade=True)
    yield opened
    opened.close()


@contextlib.asynccontextmanager
async def _running(sink: Any, *upstreams: str, **settings: Any) -> AsyncIterator[Scraper]:
    chosen = PrometheusSettings.model_validate({"interval_seconds": 0.05, **settings})
    scraper = Scraper(chosen, context(sink, upstreams=upstreams))
    await scraper.start()
    try:
        yield scraper
    finally:
        await scraper.stop()


async def test_the_first_read_comes_at_once_and_reaches_the_store(engine: Engine, store: Store) -> None:
    writer = Writer(store.batches, WriterSettings.model_validate({}), CollectorRegistry())
    writer.start()
    async with _running(writer, engine.url, interval_seconds=3600) as scraper:
        await eventually(lambda: scraper.health()[0])
        await eventually(lambda: bool(store.reader.latest_samples("vllm:prefix_cache_hits_total")))
    assert writer.stop() == 0
    (hits,) = store.reader.latest_samples("vllm:prefix_cache_hits_total")
    assert (hits.engine, hits.replica, hits.value) == (engine.url, "0", 45_728)
    config = cache_config(store.reader.latest_samples("vllm:cache_config_info"))
    assert config is not None
    assert config.usable_blocks == 299


async def test_an_engine_that_comes_later_is_found_and_its_absence_is_said(engine: Engine) -> None:
    await engine.stop()
    sink = AnsweringSink()
    async with _running(sink, engine.url) as scraper:
        assert scraper.health() == (False, f"{engine.url}/metrics: not read yet")
        await eventually(lambda: "cannot be read: Connection refused" in scraper.health()[1])
        assert scraper.health()[0] is False
        await engine.start()
        await eventually(lambda: scraper.health()[0])
        assert "1 metrics pages" in scraper.health()[1]
    assert sink.accepted


@pytest.mark.parametrize(
    ("page", "status", "line"),
    [
        ("vllm:gpu_prefix_cache_hit_rate 0.1\n", 200, "V0 engine"),
        ("hello", 200, "no metrics of vLLM"),
        (PAGE, 404, "answered 404"),
        ("vllm:x 1\n" * 10_000, 200, "larger than 50000 bytes"),
    ],
)
async def test_what_is_wrong_with_a_page_is_said_in_one_line(
    engine: Engine, page: str, status: int, line: str
) -> None:
    engine.page, engine.status = page, status
    sink = AnsweringSink()
    async with _running(sink, engine.url, max_page_bytes=50_000) as scraper:
        await eventually(lambda: line in scraper.health()[1])
        assert scraper.health()[0] is False
    assert sink.accepted == []


@pytest.mark.parametrize(
    ("zipped", "line"),
    [
        (gzip.compress(bytes(200_000_000), 9), "larger than 8388608 bytes"),
        (gzip.compress(PAGE.encode())[:-1_000], "cut off"),
        (b"no gzip at all", "cannot be read"),
    ],
    ids=["bomb", "cut off", "none"],
)
async def test_zipped_pages_are_read_no_further_than_allowed(
    engine: Engine, zipped: bytes, line: str
) -> None:
    engine.zipped = zipped
    sink = AnsweringSink()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with _running(sink, engine.url) as scraper:
        await eventually(lambda: line in scraper.health()[1])
        engine.zipped = gzip.compress(PAGE.encode())
        await eventually(lambda: scraper.health()[0])
    assert sink.accepted
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000  # kilobytes; the bomb is twice that


async def test_a_slow_engine_delays_no_other(engine: Engine) -> None:
    slow = Engine()
    slow.page = None
    await slow.start()
    sink = AnsweringSink()
    async with _running(sink, slow.url, engine.url, timeout_seconds=0.3) as scraper:
        await eventually(lambda: len(sink.accepted) >= 3)
        await eventually(lambda: "no answer within 0.3 s" in scraper.health()[1])
    assert {sample.engine for batch in sink.accepted for sample in batch.samples} == {engine.url}
    await slow.stop()


async def test_a_full_queue_is_waited_for_and_then_skips_the_read(engine: Engine) -> None:
    answers: list[int | Exception] = [RetryableIngestError("full", retry_after_seconds=0.01), 0]
    sink = AnsweringSink(lambda _: answers.pop(0) if answers else RetryableIngestError("full"))
    async with _running(sink, engine.url) as scraper:
        await eventually(lambda: len(sink.accepted) == 1)
        await eventually(lambda: scraper.health() == (False, f"{engine.url}/metrics: skipped: full"))
    assert len(sink.accepted) == 1


async def test_one_read_at_a_time_waits_for_the_store(engine: Engine) -> None:
    class Silent:
        offers = 0

        def offer(self, batch: Batch) -> Receipt:
            assert batch.samples
            self.offers += 1
            return Receipt()

    sink = Silent()
    async with _running(sink, engine.url) as scraper:
        await eventually(lambda: "has not taken the last read yet" in scraper.health()[1])
        assert sink.offers == 1


async def test_pages_are_named_by_flag_or_by_upstream() -> None:
    def pages(upstreams: tuple[str, ...], urls: tuple[str, ...]) -> list[tuple[str, str]]:
        scraper = Scraper(PrometheusSettings.model_validate({"urls": urls}), context(upstreams=upstreams))
        return [(target.url, target.engine) for target in scraper._targets]

    assert pages(("http://a", "http://b"), ()) == [
        ("http://a/metrics", "http://a"),
        ("http://b/metrics", "http://b"),
    ]
    assert pages(("http://a",), ("http://m:9/metrics",)) == [("http://m:9/metrics", "http://a")]
    assert pages(("http://a",), ("http://b/metrics", "http://c/x")) == [
        ("http://b/metrics", "http://b"),
        ("http://c/x", "http://c/x"),
    ]


async def test_it_can_be_turned_off_and_stopped_twice() -> None:
    off = FACTORY.create(FACTORY.settings(interval_seconds=0), context(upstreams=["http://127.0.0.1:9"]))
    await off.start()
    assert off.health() == (True, "turned off")
    await off.stop()
    await off.stop()


async def test_stopping_does_not_wait_for_a_slow_page(engine: Engine) -> None:
    engine.page = None
    async with _running(AnsweringSink(), engine.url, timeout_seconds=30):
        await engine.asked.wait()
        began = time.monotonic()
    assert time.monotonic() - began < 2


def _with_buckets(sink: AnsweringSink) -> list[bool]:
    return [any(one.name.endswith("_bucket") for one in batch.samples) for batch in sink.accepted]


async def test_buckets_are_kept_at_their_own_interval(engine: Engine) -> None:
    sink = AnsweringSink()
    async with _running(sink, engine.url, interval_seconds=0.02, buckets_seconds=60.0):
        await eventually(lambda: len(sink.accepted) >= 3)
    assert _with_buckets(sink)[:3] == [True, False, False]
    none = AnsweringSink()
    async with _running(none, engine.url, interval_seconds=0.02, buckets_seconds=0):
        await eventually(lambda: len(none.accepted) >= 2)
    assert not any(_with_buckets(none))


async def test_a_large_page_of_many_ranks_is_read_whole(engine: Engine) -> None:
    filler = "".join(f'vllm:lora_requests_info{{n="{number}"}} 1.0\n' for number in range(10_000))
    ranks = "".join(f'vllm:prompt_tokens_total{{engine="{rank}"}} {rank}.0\n' for rank in range(64))
    engine.page = filler + ranks
    sink = AnsweringSink()
    async with _running(sink, engine.url, interval_seconds=60.0):
        await eventually(lambda: len(sink.accepted) == 1)
    assert {(one.replica, one.value) for one in sink.accepted[0].samples} == {
        (str(rank), float(rank)) for rank in range(64)
    }


async def test_a_clock_that_is_set_back_does_not_put_samples_in_another_order(engine: Engine) -> None:
    times = iter([1_000.0, 400.0, 401.0, 2_000.0])
    sink = AnsweringSink()
    around = dataclasses.replace(context(sink, upstreams=[engine.url]), clock=lambda: next(times, 3_000.0))
    scraper = Scraper(PrometheusSettings(interval_seconds=0.02), around)
    await scraper.start()
    await eventually(lambda: len(sink.accepted) >= 4)
    await scraper.stop()
    found = [batch.samples[0].at for batch in sink.accepted[:4]]
    assert found == pytest.approx([1_000.0, 1_000.001, 1_000.002, 2_000.0], abs=1e-6)
