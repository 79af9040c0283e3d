"""Files and standard input as numbered lines, compressed or not, a piece of them in memory at a time."""

import gzip
import io
import sys
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from typing_extensions import Buffer, override

from kvscope.errors import UsageError

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BUFFER_BYTES = 1 << 20
_ZSTD_PIECE_BYTES = 1 << 12  # unpacked at a time at most: to 128 MiB, whatever they hold
_ZSTD_FIRST_BYTES = 1 << 6
_ZSTD_UNPACKED_BYTES = 1 << 20  # wanted at a time: pieces become smaller where they hold more
STDIN = "-"
_SUFFIXES = (".jsonl", ".json", ".ndjson", ".txt", ".log")


_PACKED = (".gz", ".zst")

Watch = Callable[[int], None]
"""Hears of each piece that was read, in bytes of the file as it lies there."""


class BrokenStreamError(Exception):
    """Raised where a compressed file breaks off; the lines before it are good."""


def expanded(paths: Iterable[Path]) -> list[Path]:
    """Return the files, those in folders by name: a folder's ``requests.jsonl``, else all logs in it.

    Raises ``UsageError`` for a folder without any.
    """
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        recording = path / "requests.jsonl"
        inside = [recording] if recording.is_file() else sorted(filter(_is_log, path.iterdir()))
        if not inside:
            raise UsageError(f"{path} holds no {', '.join(_SUFFIXES)} files")
        files += inside
    return files


def _is_log(path: Path) -> bool:
    name = next((path.name.removesuffix(end) for end in _PACKED if path.name.endswith(end)), path.name)
    return path.is_file() and name.endswith(_SUFFIXES)


@contextmanager
def opened(path: Path, watch: Watch | None = None) -> Iterator[Iterator[tuple[int, bytes]]]:
    """Give the lines of a file with their numbers from 1 on; ``-`` is standard input.

    Reading a line raises ``BrokenStreamError`` where a compressed stream breaks off. Raises ``UsageError``
    for a file that cannot be read.
    """
    try:
        with _source(path, watch) as file:
            yield _lines(file)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


@contextmanager
def _source(path: Path, watch: Watch | None) -> Iterator[io.BufferedReader]:
    if str(path) == STDIN:
        # standard input stays open: it is not ours
        yield cast("io.BufferedReader", sys.stdin.buffer)
        return
    with io.BufferedReader(_WatchedFile(path, watch), _BUFFER_BYTES) as file:
        yield cast("io.BufferedReader", file)


class _WatchedFile(io.FileIO):
    def __init__(self, path: Path, watch: Watch | None) -> None:
        super().__init__(path)
        self._watch = watch

    @override
    def readinto(self, buffer: Buffer, /) -> int | None:
        count = super().readinto(buffer)
        if self._watch is not None and count:
            self._watch(count)
        return count


def _lines(file: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    start = file.peek(len(_ZSTD_MAGIC))
    packing, source = "", cast("io.BufferedIOBase", file)
    if start.startswith(_GZIP_MAGIC):
        packing, source = "gzip", gzip.GzipFile(fileobj=file)
    elif start.startswith(_ZSTD_MAGIC):
        packing, source = "zstd", io.BufferedReader(_ZstdReader(file), _BUFFER_BYTES)
    try:
        if first := source.readline():
            yield 1, first.removeprefix(BOM_UTF8)  # Windows' tools begin a file with it
        yield from enumerate(source, start=2)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BrokenStreamError(f"the {packing} stream breaks off here: {error}") from error


class _ZstdReader(io.RawIOBase):
    """Unpacks a zstd file of one or more frames; reading raises ``EOFError`` where one is cut or damaged.

    The library's own reader takes a cut frame for the end of the file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._frame: Any = None
        self._ready = memoryview(b"")
        self._piece_bytes = _ZSTD_FIRST_BYTES

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        while not self._ready:
            piece = self._file.read(self._piece_bytes)
            if not piece:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            unpacked = self._unpacked(piece)
            fitting = self._piece_bytes * _ZSTD_UNPACKED_BYTES // max(len(unpacked), 1)
            self._piece_bytes = min(max(fitting, 1), _ZSTD_PIECE_BYTES)
            self._ready = memoryview(unpacked)
        into = memoryview(buffer)
        taken = min(len(into), len(self._ready))
        into[:taken] = self._ready[:taken]
        self._ready = self._ready[taken:]
        return taken

    def _unpacked(self, piece: bytes) -> bytes:
        import zstandard

        out = []
        while piece:
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                out.append(self._frame.decompress(piece))
            except zstandard.ZstdError as error:
                raise EOFError(str(error)) from error
            piece = b""
            if self._frame.eof:
                piece = self._frame.unused_data
                self._frame = None
        return b"".join(out)
