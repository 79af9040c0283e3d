"""Why the prompt tokens of log files missed: each with its cause, added up by route."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from kvscope.analysis.attribution import Attribution, attribute, attribute_disabled
from kvscope.analysis.formats.detect import read
from kvscope.analysis.formats.records import BadLine, Body, LoggedRequest, TokenIds
from kvscope.analysis.formats.sources import Watch
from kvscope.analysis.ledger import Arrival, Ledger
from kvscope.analysis.offline.load import DEFAULT_BLOCK_SIZE, ByteTokenizer, Encoder, replay_request
from kvscope.analysis.offline.report import Evidence
from kvscope.analysis.offline.token_check import TokenCheck
from kvscope.analysis.reasons import Progress, Times, reasons, seen_blocks
from kvscope.cache.admissions import admissions
from kvscope.cache.index import BlockIndex
from kvscope.cache.overlap import TimedRequest, replay_overlapping
from kvscope.cache.replay import ReplayRequest
from kvscope.errors import UsageError
from kvscope.model.request import Miss
from kvscope.model.telemetry import CacheEventBatch
from kvscope.prompts.routes import RouteMiner
from kvscope.prompts.segments import Segment, segments

Prefill = Callable[[int, int], float | None]
"""Prompt and cached tokens to seconds of prefill; None where the model cannot tell."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CauseOptions:
    """How to attribute. ``num_blocks`` None: the cache has no limit. ``watch`` hears of bytes that are read.

    The cached tokens that a log tells are taken as they are; where it tells none, the replay's are.
    ``kv_events`` tell what the engine evicted and when; without them the replay does.
    """

    num_blocks: int | None = None
    block_size: int | None = None
    tokenizer: Encoder | None = None
    kv_events: tuple[CacheEventBatch, ...] = ()
    prefill: Prefill | None = None
    watch: Watch | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """The tokens that missed for one cause on one route.

    ``prefill_seconds`` is their share of the prefill time of their requests, None where that is not known.
    ``example`` is the miss of the most tokens, with the place of the difference where that explains it.
    """

    route: str
    cause: str
    tokens: int
    requests: int
    prefill_seconds: float | None
    example: Miss


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CauseReport:
    """Causes of all misses, the most tokens first; cached tokens and causes add up to prompt tokens.

    ``recorded``: requests whose cached tokens were told by the log, not by the replay.
    """

    requests: int
    recorded: int
    prompt_tokens: int
    cached_tokens: int
    exactness: str
    notes: tuple[str, ...]
    rows: tuple[CauseRow, ...]
    skipped: tuple[BadLine, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Prompt:
    """A request with its route and texts; ``recorded``: its cached tokens, where they are of these tokens."""

    timed: TimedRequest
    route: str
    segments: tuple[Segment, ...]
    recorded: int | None


def causes_of(paths: Sequence[Path], options: CauseOptions) -> CauseReport:
    """Read ``paths`` and attribute each prompt token that was no hit, in the order of the requests' times.

    Raises ``UsageError`` for files without prompts of text or tokens, for a tokenizer that does not fit the
    recorded token counts, and as the replay does.
    """
    skipped: list[BadLine] = []
    evidence = Evidence()
    prompts = {id(each.timed.request): each for each in _prompts(paths, options, skipped, evidence)}
    if not prompts:
        first = f": {skipped[0].origin}: {skipped[0].reason}" if skipped else ""
        raise UsageError(f"no prompt in {', '.join(map(str, paths))} whose misses could be told{first}")
    block_size = options.block_size or DEFAULT_BLOCK_SIZE
    timed = [each.timed for each in prompts.values()]
    ordered: Sequence[TimedRequest] = sorted(timed, key=lambda each: each.at)
    if options.kv_events:
        ordered = admissions(ordered, options.kv_events, block_size).requests
    replayed = replay_overlapping(ordered, block_size=block_size, num_blocks=options.num_blocks)
    sums = _Sums(options.prefill)
    attributor = _Attributor(block_size, options.kv_events)
    for each, hits in zip(ordered, replayed.per_request, strict=True):
        prompt = prompts[id(each.request)]
        cached = hits.hit_tokens if prompt.recorded is None else prompt.recorded
        found = attributor.attributed(each, prompt, cached)
        sums.add(prompt.route, len(each.request.tokens), cached, found)
    return CauseReport(
        requests=len(ordered),
        recorded=sum(each.recorded is not None for each in prompts.values()),
        prompt_tokens=sum(len(each.request.tokens) for each in ordered),
        cached_tokens=sums.cached_tokens,
        exactness=evidence.exactness,
        notes=tuple(evidence.notes),
        rows=sums.rows(),
        skipped=tuple(skipped),
    )


def _prompts(
    paths: Sequence[Path], options: CauseOptions, skipped: list[BadLine], evidence: Evidence
) -> list[_Prompt]:
    tokenizer = options.tokenizer or ByteTokenizer()
    routes, check = RouteMiner(), TokenCheck()
    found: list[_Prompt] = []
    at = 0.0
    for each in read(paths, block_size=options.block_size, watch=options.watch):
        if isinstance(each, BadLine):
            skipped.append(each)
            continue
        at = at if each.at is None else each.at
        try:
            request, route, texts = _prompt(each, tokenizer, routes)
        except UsageError as error:
            skipped.append(BadLine(origin=each.origin, reason=str(error)))
            continue
        if isinstance(each.prompt, Body):
            check.add(request.request_id, len(request.tokens), each.prompt_tokens if each.whole else None)
        exact = options.tokenizer is not None or isinstance(each.prompt, TokenIds)
        fits = exact and each.whole and each.prompt_tokens in {None, len(request.tokens)}
        found.append(
            _Prompt(
                TimedRequest(request=request, at=at, finished_at=each.finished_at),
                route,
                texts,
                each.cached_tokens if fits else None,
            )
        )
    check.judge(evidence, estimated=options.tokenizer is None)
    return found


def _prompt(
    logged: LoggedRequest, tokenizer: Encoder, routes: RouteMiner
) -> tuple[ReplayRequest, str, tuple[Segment, ...]]:
    match logged.prompt:
        case Body(api=api, body=body):
            route, texts = routes.route(api, body, logged.route), segments(api, body)
        case TokenIds():
            route, texts = logged.route or "–", ()
        case _:
            raise UsageError("hashes of blocks: why they missed takes prompts as text or tokens")
    return replay_request(logged, tokenizer), route, texts


class _Attributor:
    """Compares each prompt with those before it, in the order in which the engine let them in."""

    def __init__(self, block_size: int, events: Sequence[CacheEventBatch]) -> None:
        self._block_size = block_size
        self._ledger = Ledger(max_bytes=1 << 40, max_chain_ids=1 << 40)  # a log is as long as it is
        self._progress = Progress(max_prompts=1 << 40)
        self._index = BlockIndex() if events else None
        if self._index is not None:
            for batch in events:
                self._index.apply(batch)

    def attributed(self, timed: TimedRequest, about: _Prompt, cached: int) -> Attribution:
        request, index = timed.request, self._index
        facts = self._ledger.arrive(
            Arrival(
                engine="",
                route=about.route,
                tokens=request.tokens,
                segments=about.segments,
                salt=request.salt,
                # without events models are told apart as the replay does; with them as the engine hashes them
                lora=request.lora if index is None or request.lora in index.loras else None,
                block_size=self._block_size,
            )
        )
        self._progress.begin(facts.serial)
        self._progress.computed(facts.serial, timed.at if timed.finished_at is None else timed.finished_at)
        if not request.lookup:
            return attribute_disabled(request.request_id, len(request.tokens), cached)
        ended = timed.at if timed.finished_at is None else timed.finished_at
        times = Times(arrived_at=timed.at, admitted_at=timed.at, first_token_at=ended)
        return attribute(
            request.request_id,
            facts,
            cached_tokens=cached,
            seen_blocks=seen_blocks(facts, index, timed.at),
            why=reasons(facts, times, self._progress, index),
        )


class _Sums:
    def __init__(self, prefill: Prefill | None) -> None:
        self._prefill = prefill
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[tuple[str, str], float | None] = defaultdict(float)
        self._examples: dict[tuple[str, str], Miss] = {}
        self.cached_tokens = 0

    def add(self, route: str, prompt_tokens: int, cached: int, found: Attribution) -> None:
        self.cached_tokens += cached
        seconds = None if self._prefill is None else self._prefill(prompt_tokens, cached)
        for miss in found.misses:
            key = (route, miss.cause.value)
            self._tokens[key] += miss.tokens
            self._requests[key] += 1
            before = self._seconds[key]
            share = None if seconds is None else seconds * miss.tokens / (prompt_tokens - cached)
            self._seconds[key] = None if before is None or share is None else before + share
            known = self._examples.get(key)
            if known is None or miss.tokens > known.tokens:
                self._examples[key] = miss

    def rows(self) -> tuple[CauseRow, ...]:
        return tuple(
            CauseRow(
                route=route,
                cause=cause,
                tokens=tokens,
                requests=self._requests[route, cause],
                prefill_seconds=self._seconds[route, cause],
                example=self._examples[route, cause],
            )
            for (route, cause), tokens in sorted(self._tokens.items(), key=lambda each: (-each[1], each[0]))
        )
