"""Advice from log files alone: suggestions where there is text, and what hashes of blocks still tell."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kvscope.analysis.formats.sources import Watch
from kvscope.analysis.offline.load import DEFAULT_BLOCK_SIZE, ByteTokenizer, Encoder, load_requests
from kvscope.analysis.offline.replay_files import replay_loaded
from kvscope.analysis.offline.report import ESTIMATED, ReplayOptions, ReplayReport
from kvscope.analysis.offline.what_ifs import RoutingRow, WhatIfs
from kvscope.cache.curve import CurvePoint
from kvscope.errors import UsageError
from kvscope.tuning.advisor import Advice, advise
from kvscope.tuning.effects import TtftPredictor
from kvscope.tuning.logs import Log, hashed, prompts_of, read_log

_REPLICAS = 2  # that routing is tried with
_FACTORS = (1, 2, 4, 8)  # of the cache's blocks
_WITHOUT_TEXT = "the log has hashes of blocks and no text: no prompt can be changed, but see what is told"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What is known of the engine. None: no tokenizer (estimated), 16 tokens a block, a cache without limit.

    ``watch`` hears of the bytes that are read.
    """

    tokenizer: Encoder | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    ttft: TtftPredictor | None = None
    watch: Watch | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WithoutText:
    """What hashes tell: the hit rate of larger caches, and of two replicas under each routing."""

    capacity: tuple[CurvePoint, ...]
    routing: tuple[RoutingRow, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogAdvice:
    """Suggestions, the replay of the whole log as it is, and for logs of hashes what these tell."""

    advice: Advice
    replay: ReplayReport
    without_text: WithoutText | None

    def check(self, at_least: float) -> bool:
        """Whether the log's hit rate is ``at_least`` that; raises ``UsageError`` where it is not known."""
        rate = self.replay.hit_rate
        if rate is None:
            raise UsageError("--fail-under: the log has no prompt tokens, so no hit rate")
        return rate >= at_least


def advise_log(paths: Sequence[Path], options: LogOptions, *, now: float) -> LogAdvice:
    """Read ``paths`` and return what would raise their hit rate.

    Raises ``UsageError`` for files without requests, and as the replay does.
    """
    log = read_log(paths, block_size=options.block_size, watch=options.watch)
    without_text = all(map(hashed, log.requests))
    replay = _replayed(log, options, without_text=without_text)
    if without_text:
        nothing = Advice(suggestions=(), none_because=_WITHOUT_TEXT)
        return LogAdvice(advice=nothing, replay=replay, without_text=_told(replay, options.num_blocks))
    advice = advise(
        prompts_of(log.requests),
        tokenizer=options.tokenizer or ByteTokenizer(),
        block_size=options.block_size or DEFAULT_BLOCK_SIZE,
        num_blocks=options.num_blocks,
        ttft=options.ttft,
        now=now,
    )
    return LogAdvice(advice=advice, replay=replay, without_text=None)


def _replayed(log: Log, options: LogOptions, *, without_text: bool) -> ReplayReport:
    loaded = load_requests(log.requests, tokenizer=options.tokenizer, keep_ids=False)
    loaded.skipped[:0] = log.skipped
    if not loaded.prompts and not loaded.builder:
        first = loaded.skipped[-1]
        raise UsageError(f"no prompt can be replayed: {first.origin}: {first.reason}")
    asked = ReplayOptions(
        num_blocks=options.num_blocks,
        block_size=options.block_size,
        tokenizer=options.tokenizer,
        curve=without_text,
        what_ifs=WhatIfs(replicas=_REPLICAS) if without_text else WhatIfs(),
    )
    return replay_loaded(loaded, asked)


def _told(replay: ReplayReport, num_blocks: int | None) -> WithoutText:
    points = replay.points or ()
    sizes = [] if num_blocks is None else [num_blocks * factor for factor in _FACTORS]
    found = [max((p for p in points if p.blocks <= size), key=lambda p: p.blocks) for size in sizes]
    if points:
        found.append(max(points, key=lambda point: point.blocks))
    capacity = {point.blocks: point for point in found}
    return WithoutText(capacity=tuple(capacity.values()), routing=replay.what_ifs.routing or ())


def estimated(replay: ReplayReport, options: LogOptions) -> bool:
    """Whether the figures are those of no engine, because text was there and no tokenizer."""
    return replay.exactness == ESTIMATED and options.tokenizer is None
