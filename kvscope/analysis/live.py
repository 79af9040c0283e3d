"""The live analyser: hears of prompts, cache events and committed parts, and records why tokens missed.

Everything is queued (bounded) and worked off by one thread, in the order in which it came. Nothing that goes
wrong in here reaches traffic: it is counted and the request stays without causes.
"""

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ConfigDict, Field

from kvscope.analysis.attribution import (
    Attribution,
    PromptFacts,
    attribute,
    attribute_counts,
    attribute_disabled,
)
from kvscope.analysis.ledger import Arrival, Ledger
from kvscope.analysis.live_metrics import AnalyserMetrics
from kvscope.analysis.outbox import Outbox, sequences_missing
from kvscope.analysis.reasons import Progress, reasons, seen_blocks, times_of
from kvscope.analysis.sent import Sent, sent_of
from kvscope.analysis.window import Window
from kvscope.analysis.worker import Worker
from kvscope.cache.index import BlockIndex
from kvscope.clock import Clock
from kvscope.errors import KvscopeError
from kvscope.model.cache_config import CacheConfig
from kvscope.model.merge import merge
from kvscope.model.prompt import Prompt
from kvscope.model.request import RequestPart, RequestRecord, Source, Status
from kvscope.model.telemetry import CacheEventBatch
from kvscope.pipeline.contracts import Batch, Sink
from kvscope.prompts.mining.live import RouteSample, RouteSamples
from kvscope.prompts.segments import Segment, segments
from kvscope.prompts.tokenizing import PromptTokenizer

_LOG = logging.getLogger(__name__)
_USED_FIELDS = frozenset(
    {
        "engine",
        "status",
        "prompt_tokens",
        "cached_tokens",
        "queue_seconds",
        "ttft_seconds",
        "ttft_client_seconds",
        "e2e_seconds",
    }
)
_REMEMBERED_IDS = 20_000
_REMEMBERED_COUNTS = 2_000
_NOT_COMPUTED = frozenset({Status.ERROR, Status.REJECTED})


class AnalyserSettings(BaseModel):
    """Settings of the live analysis of misses; all of it is in memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue_items: int = Field(5_000, gt=0, description="Prompts, events and parts that may wait.")
    cached_tokens_timeout_seconds: float = Field(
        30.0, gt=0, description="Seconds after a request's end that its cached tokens are waited for."
    )
    block_size: int | None = Field(
        None, gt=0, description="Tokens a block, where neither metrics nor events of the engine tell."
    )
    block_size_timeout_seconds: float = Field(
        20.0, ge=0, description="Seconds that first prompts wait for an engine to tell its block size."
    )
    open_requests: int = Field(10_000, gt=0, description="Requests whose cached tokens are waited for.")
    route_prompts: int = Field(
        64, gt=0, description="Latest prompts of a route that new ones are compared to."
    )
    ledger_bytes: int = Field(64_000_000, gt=0, description="Bytes of prompts that are compared to.")
    ledger_blocks: int = Field(300_000, gt=0, description="Blocks of prompts that are known as computed.")
    index_blocks: int = Field(
        500_000,
        gt=0,
        le=100_000_000,
        description="Blocks of an engine's cache that are followed, at 110 to 160 bytes each; of more, those "
        "unused for longest are dropped and counted.",
    )
    window_prompts: int = Field(2_000, gt=0, description="Latest prompts that the advisor looks at.")
    window_bytes: int = Field(64_000_000, gt=0, description="Bytes of prompts that the advisor looks at.")


@dataclasses.dataclass(slots=True)
class _Request:
    """What is known of one request whose causes are not yet recorded."""

    record: RequestRecord
    prompt: Sent | None = None
    facts: PromptFacts | None = None
    waits_for_block_size: bool = False
    ended_at: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Waiting:
    """A prompt that cannot be compared before its engine's block size is known."""

    request: _Request
    prompt: Prompt
    tokens: Sequence[int]
    segments: tuple[Segment, ...]


_Item = Prompt | CacheEventBatch | tuple[RequestPart, ...]


class Analyser:
    """Attributes misses of live traffic; its callbacks return at once and never raise."""

    def __init__(
        self,
        *,
        tokenizer: PromptTokenizer,
        sink: Sink,
        cache_configs: Callable[[str], CacheConfig | None],
        clock: Clock,
        registry: CollectorRegistry,
        settings: AnalyserSettings,
    ) -> None:
        self._tokenizer = tokenizer
        self._cache_configs = cache_configs
        self._clock = clock
        self._settings = settings
        self._metrics = AnalyserMetrics(registry)
        self._worker = Worker[_Item](
            self._work_off, self._failed, name="kvscope-analyser", max_items=settings.queue_items
        )
        self._metrics.waiting.set_function(lambda: len(self._worker))
        self._ledger = Ledger(
            group_prompts=settings.route_prompts,
            max_bytes=settings.ledger_bytes,
            max_chain_ids=settings.ledger_blocks,
        )
        self._progress = Progress()
        self._indexes: dict[str, BlockIndex] = {}
        self._open: OrderedDict[str, _Request] = OrderedDict()
        self._done: OrderedDict[str, None] = OrderedDict()
        self._counted: OrderedDict[str, RequestRecord] = OrderedDict()
        self._waiting: dict[str, list[_Waiting]] = {}
        self._window = Window(settings.window_prompts, settings.window_bytes)
        self._samples = RouteSamples()
        self._outbox = Outbox(sink, self._metrics.dropped)

    def start(self) -> None:
        """Begin working off what is heard."""
        self._worker.start()

    def stop(self, *, timeout_seconds: float = 5.0) -> None:
        """Work off what waits, for at most ``timeout_seconds``, and end; safe without start and twice."""
        self._worker.stop(timeout_seconds=timeout_seconds)

    def drain(self, *, timeout_seconds: float = 5.0) -> bool:
        """Wait until all that was heard is worked off; False when that takes too long."""
        return self._worker.drain(timeout_seconds=timeout_seconds)

    def arrived(self, prompt: Prompt) -> None:
        """Queue a prompt that is about to be sent to its engine."""
        self._put(prompt, "prompt")

    def on_events(self, batch: CacheEventBatch) -> None:
        """Queue an engine's cache events; a lost batch is later seen as a gap."""
        self._put(batch, "events")

    def on_committed(self, batch: Batch) -> None:
        """Queue what committed parts tell of requests."""
        parts = tuple(
            part
            for part in batch.parts
            if part.source is not Source.ANALYSIS and not _USED_FIELDS.isdisjoint(part.values)
        )
        if parts:
            self._put(parts, "parts")

    def window(self) -> list[Prompt]:
        """Return the latest prompts, oldest first, for the advisor."""
        return self._window.prompts()

    def samples(self) -> list[RouteSample]:
        """Return what was sampled of each route, without its text, the busiest first."""
        return self._samples.samples()

    def index(self, engine: str) -> BlockIndex | None:
        """Return what the engine has cached, or None while no event has told."""
        return self._indexes.get(engine)

    def _put(self, item: _Item, what: str) -> None:
        if not self._worker.put(item):
            self._metrics.dropped.labels(what).inc()

    def _failed(self, _error: Exception) -> None:
        self._metrics.failures.labels("analysis").inc()

    def _work_off(self, item: _Item | None) -> None:
        match item:
            case Prompt():
                with self._metrics.seconds.time():
                    self._take_prompt(item)
            case CacheEventBatch():
                self._take_events(item)
            case None:
                self._tick()
            case parts:
                for part in parts:
                    self._take_part(part)
        for engine in list(self._waiting):
            self._compare_waiting(engine)

    def _take_events(self, batch: CacheEventBatch) -> None:
        index = self._indexes.get(batch.engine)
        if index is None:
            index = self._indexes[batch.engine] = BlockIndex(self._settings.index_blocks)
        index.apply(batch)
        self._metrics.index(batch.engine, index)

    def _take_prompt(self, prompt: Prompt) -> None:
        texts = segments(prompt.api, prompt.sent_body)
        self._window.add(prompt, sum(len(segment.text) for segment in texts))
        try:
            self._samples.add(prompt.route, texts)
        except Exception:  # noqa: BLE001 - the prompt's misses are explained whatever fails beside that
            self._metrics.failures.labels("mining").inc()
        request = self._request(prompt.request_id)
        if request is None:
            return
        request.prompt = sent_of(prompt)
        if request.prompt.prompts > 1:
            return  # only their sums are told
        try:
            tokens = self._tokenizer.encode(prompt.api, prompt.sent_body)
        except KvscopeError as error:
            self._metrics.failures.labels("tokenizer").inc()
            _LOG.debug("a prompt was not tokenised: %s", error)
            return
        request.waits_for_block_size = True
        waiting = self._waiting.setdefault(prompt.engine, [])
        waiting.append(_Waiting(request, prompt, tokens, texts))

    def _compare_waiting(self, engine: str) -> None:
        """Compare the engine's prompts with those before them, once its block size is known."""
        size = self._block_size(engine)
        waiting = self._waiting[engine]
        patience = self._settings.block_size_timeout_seconds
        if size is None and self._clock() - waiting[0].prompt.arrived_at < patience:
            return
        del self._waiting[engine]
        for entry in waiting:
            try:
                self._compare(entry, size)
            except Exception as error:  # noqa: BLE001 - one prompt's fault is not that of those behind it
                self._failed(error)

    def _compare(self, entry: _Waiting, size: int | None) -> None:
        prompt, request = entry.prompt, entry.request
        request.waits_for_block_size = False
        model = prompt.sent_body.get("model")
        index = self._indexes.get(prompt.engine)
        facts = self._ledger.arrive(
            Arrival(
                engine=prompt.engine,
                route=prompt.route,
                tokens=entry.tokens,
                segments=entry.segments,
                salt=prompt.salt,
                lora=model if index is not None and model in index.loras else None,
                block_size=size,
            )
        )
        self._progress.begin(facts.serial)
        request.facts = facts
        self._settle(request)

    def _block_size(self, engine: str) -> int | None:
        config = self._cache_configs(engine)
        if config is not None and config.block_size:
            return config.block_size
        index = self._indexes.get(engine)
        if index is not None and index.block_size:
            return index.block_size
        return self._settings.block_size

    def _request(self, request_id: str) -> _Request | None:
        """Return what is known of a request, or None where its causes were recorded."""
        if request_id in self._done:
            return None
        request = self._open.get(request_id)
        if request is None:
            request = self._open[request_id] = _Request(RequestRecord(request_id=request_id))
            if len(self._open) > self._settings.open_requests:
                self._open.popitem(last=False)
                self._metrics.requests.labels("given_up").inc()
        return request

    def _take_part(self, part: RequestPart) -> None:
        self._reopen(part)
        request = self._request(part.request_id)
        if request is None:
            return
        request.record = merge(request.record, part)
        record = request.record
        ended = record.status is not None or record.e2e_seconds is not None
        if ended and request.ended_at is None:
            request.ended_at = self._clock()
        self._settle(request)

    def _reopen(self, part: RequestPart) -> None:
        """Count again where one more sequence tells its tokens: without a prompt nobody said how many."""
        counted = self._counted.get(part.request_id)
        if counted is not None and merge(counted, part).sequences > counted.sequences:
            self._open[part.request_id] = _Request(self._counted.pop(part.request_id))
            self._done.pop(part.request_id, None)

    def _settle(self, request: _Request) -> None:
        """Record the causes once everything that they need is known."""
        record = request.record
        if request.waits_for_block_size:
            return
        self._note_progress(request)
        if record.prompt_tokens is None or record.cached_tokens is None:
            if record.status in _NOT_COMPUTED and request.facts and request.prompt:
                self._ledger.forget(request.facts, request.prompt.engine)
                self._close(record.request_id, "not_computed")
            return
        if request.prompt is not None and record.sequences < request.prompt.sequences:
            return  # until each of them has told its tokens
        found = self._attribution(request, record.prompt_tokens, record.cached_tokens)
        self._close(record.request_id, "attributed" if request.facts else "counts_only")
        self._send(found, record.request_id)

    def _note_progress(self, request: _Request) -> None:
        if request.facts is not None and request.prompt is not None:
            times = times_of(request.prompt.arrived_at, request.record)
            if times.first_token_at > times.arrived_at:
                self._progress.computed(request.facts.serial, times.first_token_at)

    def _attribution(self, request: _Request, prompt_tokens: int, cached_tokens: int) -> Attribution:
        request_id, prompt, facts = request.record.request_id, request.prompt, request.facts
        engine = prompt.engine if prompt else request.record.engine or ""
        config = self._cache_configs(engine)
        if (config is not None and config.prefix_caching is False) or (prompt and not prompt.looked_up):
            return attribute_disabled(request_id, prompt_tokens, cached_tokens)
        if request.record.sequences > 1:
            facts = None  # they share a prompt or an id: whose tokens missed where is not told
        elif facts is not None and facts.prompt_tokens != prompt_tokens:
            self._metrics.mismatches.inc()
            facts = None
        if facts is None or prompt is None:
            return attribute_counts(request_id, prompt_tokens, cached_tokens, self._block_size(engine))
        index = self._indexes.get(engine)
        times = times_of(prompt.arrived_at, request.record)
        found = attribute(
            request_id,
            facts,
            cached_tokens=cached_tokens,
            seen_blocks=seen_blocks(facts, index, times.arrived_at),
            why=reasons(facts, times, self._progress, index),
        )
        if index is not None and facts.block_size:
            index.used(facts.chain[: cached_tokens // facts.block_size], times.admitted_at)
        return found

    def _close(self, request_id: str, result: str) -> None:
        request = self._open.pop(request_id, None)
        self._done[request_id] = None
        if len(self._done) > _REMEMBERED_IDS:
            self._done.popitem(last=False)
        if request is not None and request.prompt is None:
            self._counted[request_id] = request.record
            if len(self._counted) > _REMEMBERED_COUNTS:
                self._counted.popitem(last=False)
        self._metrics.requests.labels(result).inc()

    def _send(self, found: Attribution, request_id: str) -> None:
        part = RequestPart(
            request_id=request_id, source=Source.ANALYSIS, values={"causes": dict(found.causes)}
        )
        self._outbox.send(Batch(parts=[part], misses=found.misses))

    def _tick(self) -> None:
        """Give up requests that ended long ago without telling their cached tokens."""
        self._outbox.retry()
        latest = self._clock() - self._settings.cached_tokens_timeout_seconds
        late = [
            request
            for request in self._open.values()
            if request.ended_at is not None and request.ended_at < latest
        ]
        for request in late:
            asked = request.prompt.sequences if request.prompt else 1
            if (missing := sequences_missing(request.record, asked)) is not None:
                self._outbox.send(missing)
            self._close(request.record.request_id, "given_up")
