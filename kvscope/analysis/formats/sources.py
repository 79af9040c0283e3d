"""Files and standard input as numbered lines, gzipped or not."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from kvscope.errors import UsageError

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BUFFER_BYTES = 1 << 20
STDIN = "-"
_SUFFIXES = (".jsonl", ".json", ".ndjson", ".txt", ".log")


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
    return path.is_file() and path.name.removesuffix(".gz").endswith(_SUFFIXES)


@contextmanager
def opened(path: Path) -> Iterator[Iterator[tuple[int, bytes]]]:
    """Give the lines of a file with their numbers from 1 on; ``-`` is standard input.

    Reading a line raises ``BrokenStreamError`` where a gzip stream breaks off. Raises ``UsageError`` for a
    file that cannot be read or is compressed in another way.
    """
    try:
        with _source(path) as file:
            yield _lines(file, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


@contextmanager
def _source(path: Path) -> Iterator[io.BufferedReader]:
    if str(path) == STDIN:
        # standard input stays open: it is not ours
        yield cast("io.BufferedReader", sys.stdin.buffer)
        return
    with cast("io.BufferedReader", path.open("rb", buffering=_BUFFER_BYTES)) as file:
        yield file


def _lines(file: io.BufferedReader, path: Path) -> Iterator[tuple[int, bytes]]:
    start = file.peek(len(_ZSTD_MAGIC))
    if start.startswith(_ZSTD_MAGIC):
        raise UsageError(f"{path} is compressed with zstd: use `zstd -dc {path} | kvscope ... -`")
    source: io.BufferedIOBase = file
    if start.startswith(_GZIP_MAGIC):
        source = gzip.GzipFile(fileobj=file)
    try:
        yield from enumerate(source, start=1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BrokenStreamError(f"the gzip stream breaks off here: {error}") from error
