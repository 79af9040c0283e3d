"""Tells each line's format by its content and reads files of any of them as one stream."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvscope.analysis.formats import agent_log, block_traces, bodies, hashed, sharegpt, texts, weka
from kvscope.analysis.formats.batches import Line, batches, block_columns
from kvscope.analysis.formats.columns import BlockColumns
from kvscope.analysis.formats.records import BadLine, LineError, LoggedRequest, Place
from kvscope.analysis.formats.sources import STDIN, BrokenStreamError, Watch, expanded, opened
from kvscope.errors import UsageError

_Found = Iterator[LoggedRequest | LineError]
_Read = Callable[[Mapping[str, Any], Place], LoggedRequest | _Found]
_TOKEN_COUNTS_ONLY = b"TIMESTAMP,ContextTokens"  # Azure's public traces
_MOST_UNKNOWN = 1_000
TEXT = "text"
KNOWN = (
    "OpenAI and Anthropic request bodies (plain or wrapped), recordings with token ids, Mooncake and Bailian "
    "block traces, ShareGPT conversations, kv-cache-tester sessions, Claude Code session files, agent traces "
    "with `input`, logs of hashes that kvscope exported, lines of plain text"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """A form of JSON lines: whether a line has it, and how one is read."""

    name: str
    claims: Callable[[Mapping[str, Any]], bool]
    read: _Read


def _line_formats(log: agent_log.AgentLog) -> tuple[Format, ...]:
    """Return the forms of lines, for one file: ``log`` remembers its lines."""
    return (
        Format("mooncake", block_traces.is_mooncake, block_traces.mooncake),
        Format("bailian", block_traces.is_bailian, block_traces.bailian),
        Format("kv-cache-tester", weka.is_weka, weka.weka),
        Format("bodies", bodies.is_body, bodies.body),
        Format("claude-code", agent_log.is_agent_log, log.read),
        Format("hashed", hashed.is_hashed, hashed.hashed),
        Format("sharegpt", sharegpt.is_sharegpt, sharegpt.sharegpt),
        Format("agent-trace", texts.is_agent_trace, texts.agent_trace),
    )


FORMATS = (*(each.name for each in _line_formats(agent_log.AgentLog())), TEXT)


def read(
    paths: Iterable[Path],
    *,
    block_size: int | None = None,
    named: str | None = None,
    watch: Watch | None = None,
) -> Iterator[LoggedRequest | BadLine]:
    """Yield the requests of all files, file by file and line by line; ``-`` is standard input.

    ``block_size`` is that of traces of block ids where it is not their format's usual one. ``named`` is one
    of ``FORMATS`` that all lines have; without it each line's is told by its content. A line that is not good
    comes as ``BadLine`` and reading goes on. ``watch`` hears of the bytes that were read. Raises
    ``UsageError`` for a file that cannot be read, and for one that goes on and on without a line of a known
    format.
    """
    for path in expanded(paths):
        with opened(path, watch) as lines:
            yield from _File(path, block_size, named).read(lines)


def read_columns(
    paths: Iterable[Path], *, block_size: int | None = None, watch: Watch | None = None
) -> Iterator[LoggedRequest | BadLine | BlockColumns]:
    """Yield as ``read`` does, but requests of traces of block ids many at a time, without their ids.

    Where a batch of lines needs a closer look, its requests come one by one.
    """
    for path in expanded(paths):
        with opened(path, watch) as lines:
            yield from _File(path, block_size, None).read_columns(lines)


class _File:
    """Reads one file; remembers its last line's format, as the next one most likely has it too."""

    def __init__(self, path: Path, block_size: int | None, named: str | None) -> None:
        self._path = path
        self._name = "stdin" if str(path) == STDIN else path.name
        self._block_size = block_size
        self._log = agent_log.AgentLog()
        formats = _line_formats(self._log)
        self._formats = formats if named is None else [each for each in formats if each.name == named]
        self._format: Format | None = None
        self._told = named is not None
        self._plain = named == TEXT
        self._known = False
        self._bad_lines = 0
        self._number = 0

    def read(self, lines: Iterator[Line]) -> Iterator[LoggedRequest | BadLine]:
        try:
            yield from self._lines(lines)
        except BrokenStreamError as error:
            yield self._bad(self._number + 1, str(error))
        yield from self._end()

    def read_columns(self, lines: Iterator[Line]) -> Iterator[LoggedRequest | BadLine | BlockColumns]:
        try:
            for batch in batches(lines):
                columns = None
                if not self._plain:
                    columns = block_columns(batch, self._name, str(self._path), self._block_size)
                if columns is None:  # a document over many lines takes those behind the batch, too
                    whole = _opens(batch[0][1])
                    yield from self._lines(itertools.chain(batch, lines) if whole else iter(batch))
                    continue
                self._known = True
                self._number = batch[-1][0]
                yield from columns
        except BrokenStreamError as error:
            yield self._bad(self._number + 1, str(error))
        yield from self._end()

    def _lines(self, lines: Iterator[Line]) -> Iterator[LoggedRequest | BadLine]:
        for self._number, line in lines:
            if not line.strip():
                continue
            if _opens(line) and not self._known and not self._plain:
                # one document over many lines
                line = line + b"".join(rest for _, rest in lines)  # noqa: PLW2901 - the loop ends here
            yield from self._line(self._number, line)

    def _end(self) -> Iterator[LoggedRequest | BadLine]:
        yield from self._log.end()
        if not self._number:
            yield self._bad(0, "the file is empty")

    def _line(self, number: int, line: bytes) -> Iterator[LoggedRequest | BadLine]:
        name = f"{self._name}:{number}"
        undecided = not (self._known or self._bad_lines or self._told)
        try:
            if self._plain or (undecided and self._begins_text(line)):
                yield texts.plain_line(line, name)
                self._plain = self._known = True
                return
            decoded = _decoded(line)
        except LineError as error:
            yield self._bad(number, str(error))
            return
        if isinstance(decoded, dict):
            yield from self._value(number, name, decoded)
            return
        for place, value in enumerate(decoded):  # a whole log as one list
            yield from self._value(number, f"{name}/{place}", value)

    def _value(self, number: int, name: str, value: Any) -> Iterator[LoggedRequest | BadLine]:
        place = Place(name=name, path=str(self._path), block_size=self._block_size)
        try:
            if not isinstance(value, dict):
                raise LineError(f"a {type(value).__name__} and no JSON object")  # noqa: TRY301 - told as others
            found = self._format_of(value).read(value, place)
            for each in (found,) if isinstance(found, LoggedRequest) else found:
                yield self._bad(number, str(each)) if isinstance(each, LineError) else each
        except LineError as error:
            yield self._bad(number, str(error))

    def _begins_text(self, line: bytes) -> bool:
        """Whether a file that begins with this line is one of plain text."""
        if line.lstrip().startswith((b"{", b"[")):
            return False
        if line.startswith(_TOKEN_COUNTS_ONLY):
            raise UsageError(
                f"{self._path} holds token counts without prompts or block ids: no replay can be"
            )
        if b"\0" in line:
            raise LineError("neither JSON nor text")
        return True

    def _format_of(self, value: Mapping[str, Any]) -> Format:
        if self._format is None or not self._format.claims(value):
            found = next((each for each in self._formats if each.claims(value)), None)
            if found is None and self._told:
                raise LineError(f"no line of the format {self._formats[0].name}")
            if found is None:
                raise LineError(f"an object of no known form, with the keys {', '.join(sorted(value)[:6])}")
            self._format = found
            self._known = True
        return self._format

    def _bad(self, number: int, reason: str) -> BadLine:
        self._bad_lines += 1
        if not self._known and self._bad_lines > _MOST_UNKNOWN:
            raise UsageError(f"{self._path}: no known format; line {number}: {reason}. Known are: {KNOWN}")
        return BadLine(origin=f"{self._name}:{number}", reason=reason)


def _opens(line: bytes) -> bool:
    """Whether a document begins here that goes on over many lines."""
    return line.strip() in {b"{", b"["}


def _decoded(line: bytes) -> dict[str, Any] | list[Any]:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise LineError(f"not JSON: {error}") from error
    if not isinstance(value, dict | list):
        raise LineError(f"a {type(value).__name__} and no JSON object")
    return value
