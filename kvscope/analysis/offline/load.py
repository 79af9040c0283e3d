"""Logged requests to what a replay takes: columns of block ids, or prompts as tokens."""

import dataclasses
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvscope.analysis.formats.columns import BlockColumns
from kvscope.analysis.formats.detect import KNOWN, read, read_columns
from kvscope.analysis.formats.records import BadLine, BlockHashes, BlockIds, Body, LoggedRequest, TokenIds
from kvscope.analysis.formats.sources import Watch
from kvscope.analysis.offline.stand_ins import stand_ins
from kvscope.cache.overlap import TimedRequest
from kvscope.cache.replay import ReplayRequest
from kvscope.cache.traces import TraceBuilder
from kvscope.errors import UsageError
from kvscope.prompts.segments import segments

DEFAULT_BLOCK_SIZE = 16
_BYTES_A_TOKEN = 4  # of English text under common vocabularies, roughly


class Encoder(Protocol):
    """Turns a body into prompt tokens, as ``PromptTokenizer`` does."""

    def encode(self, api: str, body: Mapping[str, Any]) -> Sequence[int]:
        """Return the prompt tokens of ``body``; raises as ``PromptTokenizer.encode``."""
        ...


class ByteTokenizer:
    """Stands in where no tokenizer is named: four bytes of text are a token, so prefixes stay prefixes."""

    def encode(self, api: str, body: Mapping[str, Any]) -> list[int]:
        """Return a number for each four bytes of the body's text."""
        prompt = body.get("prompt")
        if api == "completion" and isinstance(prompt, list) and all(type(each) is int for each in prompt):
            return list(prompt)
        parts = [f"\n{segment.role}\n{segment.text}" for segment in segments(api, body)]
        text = "".join(parts).encode("utf-8", "surrogatepass")
        text += b"\0" * (-len(text) % _BYTES_A_TOKEN)
        tokens: list[int] = np.frombuffer(text, dtype="<u4").tolist()
        return tokens


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPrompt:
    """A request as tokens with its times, and how many prompt tokens the engine had counted.

    ``tokenised`` says that its tokens were made here, not by the engine.
    """

    timed: TimedRequest
    recorded_prompt_tokens: int | None
    tokenised: bool


@dataclasses.dataclass(slots=True)
class Loaded:
    """What files hold: block ids in ``builder`` or prompts in ``prompts``, never both.

    ``ids`` are the requests' ids in the order of the files, kept for block ids when asked for.
    ``went_back``: requests that came before an earlier one's time. ``partial``: prompts known in part.
    ``block_size`` is that of hashes, None without any.
    """

    builder: TraceBuilder | None = None
    prompts: list[LoadedPrompt] = dataclasses.field(default_factory=list)
    ids: list[str] = dataclasses.field(default_factory=list)
    skipped: list[BadLine] = dataclasses.field(default_factory=list)
    went_back: int = 0
    partial: int = 0
    block_size: int | None = None


def load(
    paths: Sequence[Path],
    *,
    block_size: int | None,
    tokenizer: Encoder | None,
    keep_ids: bool,
    watch: Watch | None = None,
) -> Loaded:
    """Read all files; a line that cannot be used is put with ``skipped``. ``watch`` hears of bytes read.

    Raises ``UsageError`` where nothing is left, and for block ids mixed with text or of two block sizes.
    """
    found: Iterable[LoggedRequest | BadLine | BlockColumns]
    if keep_ids:
        found = read(paths, block_size=block_size, watch=watch)
    else:
        found = read_columns(paths, block_size=block_size, watch=watch)
    loaded = load_requests(found, tokenizer=tokenizer, keep_ids=keep_ids)
    if not loaded.prompts and not loaded.builder:
        first = "".join(f"; {each.origin}: {each.reason}" for each in loaded.skipped[:1])
        names = ", ".join(map(str, paths))
        raise UsageError(f"no request in {names} can be replayed{first}. Known formats: {KNOWN}")
    return loaded


def load_requests(
    found: Iterable[LoggedRequest | BadLine | BlockColumns], *, tokenizer: Encoder | None, keep_ids: bool
) -> Loaded:
    """Take requests from wherever they come, perhaps none; raises as ``load`` else."""
    loaded = Loaded()
    _Loader(loaded, tokenizer or ByteTokenizer(), keep_ids=keep_ids).take(found)
    return loaded


class _Loader:
    def __init__(self, loaded: Loaded, tokenizer: Encoder, *, keep_ids: bool) -> None:
        self._loaded = loaded
        self._tokenizer = tokenizer
        self._keep_ids = keep_ids
        self._last_at = 0.0
        self._last_file = ""

    def take(self, found: Iterable[LoggedRequest | BadLine | BlockColumns]) -> None:
        for each in found:
            if isinstance(each, BadLine):
                self._loaded.skipped.append(each)
                continue
            if isinstance(each, BlockColumns):
                self._add_columns(each)
                continue
            at = self._last_at if each.at is None else each.at
            file = each.origin.rpartition(":")[0]
            self._loaded.went_back += at < self._last_at and file == self._last_file
            self._last_at, self._last_file = at, file
            if isinstance(each.prompt, BlockIds):
                self._add_blocks(each, each.prompt, at)
            else:
                self._add_prompt(each, at)

    def _add_columns(self, columns: BlockColumns) -> None:
        """Add many requests of one file, as one by one."""
        if columns.origin != self._last_file:
            self._last_at = columns.at[0]
        self._loaded.went_back += int((np.diff(columns.at, prepend=self._last_at) < 0).sum())
        self._last_at, self._last_file = float(columns.at[-1]), columns.origin
        self._builder(columns.block_size, columns.origin).add_many(
            columns.ids,
            columns.lengths,
            prompt_tokens=columns.prompt_tokens,
            at=columns.at,
            scope=columns.scope,
        )

    def _builder(self, block_size: int, name: str) -> TraceBuilder:
        """Return what takes blocks of that size; raises ``UsageError`` where it cannot take ``name``'s."""
        builder = self._loaded.builder
        if builder is None:
            builder = self._loaded.builder = TraceBuilder(block_size)
        if block_size != builder.block_size or self._loaded.prompts:
            other = "prompts as text" if self._loaded.prompts else f"blocks of {builder.block_size} tokens"
            raise UsageError(
                f"{name} has block ids of {block_size} tokens, requests before it {other}: they share no "
                "cache; replay the files apart"
            )
        return builder

    def _add_blocks(self, logged: LoggedRequest, prompt: BlockIds, at: float) -> None:
        builder = self._builder(prompt.block_size, logged.request_id)
        builder.add(
            prompt.ids,
            prompt_tokens=logged.prompt_tokens or len(prompt.ids) * prompt.block_size,
            at=at,
            scope=prompt.scope,
        )
        if self._keep_ids:
            self._loaded.ids.append(logged.request_id)

    def _add_prompt(self, logged: LoggedRequest, at: float) -> None:
        if self._loaded.builder is not None:
            raise UsageError(
                f"{logged.request_id} is text, requests before it are block ids: replay them apart"
            )
        if isinstance(logged.prompt, BlockHashes):
            self._same_size(logged, logged.prompt)
        try:
            request = replay_request(logged, self._tokenizer)
        except UsageError as error:
            self._loaded.skipped.append(BadLine(origin=logged.origin, reason=str(error)))
            return
        self._loaded.partial += not logged.whole
        self._loaded.prompts.append(
            LoadedPrompt(
                timed=TimedRequest(request=request, at=at, finished_at=logged.finished_at),
                recorded_prompt_tokens=logged.prompt_tokens if logged.whole else None,
                tokenised=isinstance(logged.prompt, Body),
            )
        )

    def _same_size(self, logged: LoggedRequest, prompt: BlockHashes) -> None:
        """Note the block size of hashes; raises ``UsageError`` where it is another than before."""
        if self._loaded.block_size not in {None, prompt.block_size}:
            raise UsageError(
                f"{logged.request_id} has hashes of blocks of {prompt.block_size} tokens, requests before it "
                f"of {self._loaded.block_size}: replay them apart"
            )
        self._loaded.block_size = prompt.block_size


def replay_request(logged: LoggedRequest, tokenizer: Encoder) -> ReplayRequest:
    """Return a request that is no block ids as a replay takes it; raises ``UsageError`` for odd prompts."""
    prompt = logged.prompt
    tokens: Sequence[int]
    output: Sequence[int] | int = () if logged.output is None else logged.output
    salt, lora = logged.salt, logged.model
    if isinstance(prompt, BlockHashes):
        number = output if isinstance(output, int) else len(output)
        tokens, output = stand_ins(prompt, logged.prompt_tokens or 0, number, logged.request_id)
        salt = lora = None  # the hashes name them with all else
    elif isinstance(prompt, Body):
        tokens = _counted(tokenizer.encode(prompt.api, prompt.body))
    elif isinstance(prompt, TokenIds):
        tokens = _counted(prompt.ids)
    else:
        raise UsageError(f"{logged.request_id} is known by block ids alone")
    return ReplayRequest(
        request_id=logged.request_id,
        tokens=tokens,
        salt=salt,
        lora=lora,
        output_tokens=output,
        lookup=logged.lookup,
        recorded_cached_tokens=logged.cached_tokens if logged.whole else None,
    )


def _counted(tokens: Sequence[int]) -> "array[int]":
    if isinstance(tokens, array) and tokens.typecode == "I":
        return tokens
    try:
        return array("I", tokens)
    except OverflowError as error:
        raise UsageError("a token id is no number from 0 to 2**32 - 1") from error
