"""One file to columns of block ids: what a worker does with it, and how the columns become one trace."""

import dataclasses
import functools
import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.analysis.formats.detect import KNOWN, read
from kvscope.analysis.formats.records import BadLine, BlockHashes, BlockIds, Body, LoggedRequest
from kvscope.analysis.offline.load import DEFAULT_BLOCK_SIZE, ByteTokenizer, Encoder, replay_request
from kvscope.analysis.offline.report import Evidence
from kvscope.analysis.offline.token_check import TokenCheck
from kvscope.cache.hashing import ChainMemo
from kvscope.cache.replay import UNKNOWN_TOKENS, computed_chain, computed_tokens
from kvscope.cache.traces import BlockTrace, TraceBuilder
from kvscope.errors import UsageError
from kvscope.model.prompt import TransformSpec
from kvscope.prompts.named import named_tokenizer
from kvscope.prompts.transforms import apply_transforms

_STAND_INS_A_FILE = 1 << 36


@dataclasses.dataclass(frozen=True, slots=True)
class HashOptions:
    """How files become blocks; ``tokenizer`` is a name that means the same on every worker."""

    block_size: int | None = None
    tokenizer: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class FileTask:
    """A file under one prompt layout; ``number`` is its place among the files."""

    path: Path
    number: int
    layout: tuple[TransformSpec, ...] = ()


@dataclasses.dataclass(slots=True)
class FileColumns:
    """The requests of a file, one after the other, in arrays that travel well.

    ``plain`` says that they are a trace's block ids. ``times`` and ``ends`` are NaN where the file tells
    none; ``scopes`` are pairs of a scope and how many requests in a row have it.
    """

    plain: bool | None = None
    block_size: int | None = None
    ids: "array[int]" = dataclasses.field(default_factory=lambda: array("Q"))
    lengths: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    lookups: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    prompt_tokens: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    uncached: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    times: "array[float]" = dataclasses.field(default_factory=lambda: array("d"))
    ends: "array[float]" = dataclasses.field(default_factory=lambda: array("d"))
    scopes: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    check: TokenCheck = dataclasses.field(default_factory=TokenCheck)
    partial: int = 0
    unknown_answers: int = 0
    skipped: list[BadLine] = dataclasses.field(default_factory=list)

    def add(
        self,
        logged: LoggedRequest,
        ids: Iterable[int],
        tokens: int,
        *,
        lookup: int,
        uncached: int = 0,
        scope: str = "",
    ) -> None:
        """Add a request; the parameters are those of ``TraceBuilder.add``."""
        before = len(self.ids)
        self.ids.extend(ids)
        self.lengths.append(len(self.ids) - before)
        self.lookups.append(lookup)
        self.prompt_tokens.append(tokens)
        self.uncached.append(uncached)
        self.times.append(float("nan") if logged.at is None else logged.at)
        self.ends.append(float("nan") if logged.finished_at is None else logged.finished_at)
        if self.scopes and self.scopes[-1][0] == scope:
            self.scopes[-1] = scope, self.scopes[-1][1] + 1
        else:
            self.scopes.append((scope, 1))


def hash_file(options: HashOptions, task: FileTask) -> FileColumns:
    """Return the blocks of one file's requests, the same in every process.

    Raises ``UsageError`` for a file that cannot be read, and one that mixes block ids and text or sizes.
    """
    columns = FileColumns()
    tokenizer = _tokenizer(options.tokenizer)
    memo = ChainMemo()
    # generated tokens of which only the number is known are found by nobody, in this file or another
    stand_ins = itertools.count(UNKNOWN_TOKENS + task.number * _STAND_INS_A_FILE)
    for each in read([task.path], block_size=options.block_size):
        if isinstance(each, BadLine):
            columns.skipped.append(each)
            continue
        prompt = each.prompt
        if isinstance(prompt, BlockIds) and not task.layout:
            _agree(columns, each, prompt.block_size, plain=True)
            tokens = each.prompt_tokens or len(prompt.ids) * prompt.block_size
            columns.add(each, prompt.ids, tokens, lookup=len(prompt.ids), scope=prompt.scope)
            continue
        size = prompt.block_size if isinstance(prompt, BlockHashes) else options.block_size
        size = size or DEFAULT_BLOCK_SIZE
        try:
            request = replay_request(_in_layout(each, task.layout), tokenizer)
        except UsageError as error:
            columns.skipped.append(BadLine(origin=each.origin, reason=str(error)))
            continue
        _agree(columns, each, size, plain=False)
        tokens = len(request.tokens)
        if isinstance(prompt, Body):
            counted = each.prompt_tokens if each.whole and not task.layout else None
            columns.check.add(each.request_id, tokens, counted)
        columns.partial += not each.whole
        columns.unknown_answers += isinstance(request.output_tokens, int) and request.output_tokens > 1
        columns.add(
            each,
            computed_chain(request, size, stand_ins, memo=memo),
            tokens if request.lookup else 0,
            lookup=max(tokens - 1, 0) // size if request.lookup else 0,
            uncached=int(computed_tokens(request) % size > 0),
        )
    return columns


def joined(files: Sequence[FileColumns], evidence: Evidence, *, estimated: bool) -> tuple[BlockTrace, bool]:
    """Return the trace of all files in the order of their times, and whether it is one of plain block ids.

    A request without a time has that of the one before it. ``estimated``: no tokenizer was named. Raises
    ``UsageError`` where nothing was read, for what shares no cache, and a tokenizer that does not fit.
    """
    kinds = {(each.plain, each.block_size) for each in files if each.plain is not None}
    if not kinds:
        first = next((f"; {each.origin}: {each.reason}" for file in files for each in file.skipped), "")
        raise UsageError(f"no request in the files can be replayed{first}. Known formats: {KNOWN}")
    if len(kinds) > 1:
        sizes = " and ".join(sorted(f"{size} tokens ({_KIND[plain]})" for plain, size in kinds))
        raise UsageError(f"the files hold blocks of {sizes}: they share no cache; replay them apart")
    ((plain, block_size),) = kinds
    check = TokenCheck()
    for file in files:
        check.join(file.check)
    check.judge(evidence, estimated=estimated)
    if partial := sum(file.partial for file in files):
        evidence.estimate(f"of {partial:,} prompts the files hold a part only: hits are those of the part")
    if sum(file.unknown_answers for file in files):
        evidence.estimate(
            "of generated tokens only the number is known: their blocks are found by no request"
        )
    if not plain and _overlap(files):
        evidence.estimate("requests overlapped: here they come one after the other")
    builder = TraceBuilder(block_size or DEFAULT_BLOCK_SIZE)
    last_at = 0.0
    for file in files:
        last_at = _add(builder, file, last_at)
    return builder.build()[0], plain is True


_KIND: Mapping[Any, str] = {True: "block ids", False: "prompts"}


def _add(builder: TraceBuilder, file: FileColumns, last_at: float) -> float:
    start = 0
    scopes = itertools.chain.from_iterable(itertools.repeat(*each) for each in file.scopes)
    columns = (file.lengths, file.lookups, file.prompt_tokens, file.uncached, file.times, scopes)
    for length, lookup, tokens, uncached, at, scope in zip(*columns, strict=True):
        last_at = last_at if at != at else at  # noqa: PLR0124 - NaN: the file tells no time
        builder.add(
            file.ids[start : start + length],
            prompt_tokens=tokens,
            at=last_at,
            lookup_blocks=lookup,
            uncached=uncached,
            scope=scope,
        )
        start += length
    return last_at


def _overlap(files: Sequence[FileColumns]) -> bool:
    """Whether any request came before an earlier one had ended, as far as the files tell."""
    times = np.concatenate([np.frombuffer(file.times) for file in files if file.times])
    ends = np.concatenate([np.frombuffer(file.ends) for file in files if file.ends])
    order = np.argsort(times, kind="stable")
    latest = np.fmax.accumulate(ends[order])
    return bool((times[order][1:] < latest[:-1]).any())


def _agree(columns: FileColumns, logged: LoggedRequest, block_size: int, *, plain: bool) -> None:
    if columns.plain is None:
        columns.plain, columns.block_size = plain, block_size
    elif (columns.plain, columns.block_size) != (plain, block_size):
        raise UsageError(
            f"{logged.request_id} has {_KIND[plain]} in blocks of {block_size} tokens, requests before it "
            f"{_KIND[columns.plain]} in blocks of {columns.block_size}: replay them apart"
        )


def _in_layout(logged: LoggedRequest, layout: Sequence[TransformSpec]) -> LoggedRequest:
    prompt = logged.prompt
    if not layout:
        return logged
    if not isinstance(prompt, Body):
        raise UsageError("tokens and block ids have no other prompt layout: that needs the prompts' text")
    body = apply_transforms(layout, prompt.api, dict(prompt.body))
    return dataclasses.replace(logged, prompt=Body(api=prompt.api, body=body))


@functools.lru_cache(maxsize=1)
def _tokenizer(name: str | None) -> Encoder:
    return ByteTokenizer() if name is None else named_tokenizer(name)
