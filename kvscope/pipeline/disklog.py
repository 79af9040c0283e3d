"""Records in files on disk, added at the end and read from the start, for what must outlive the process.

A record is its length, its number of items and a checksum, then its bytes. A file is never written again by
another process: each begins one of its own. So a record that was cut off by a crash can stand at the end of
any file; reading passes over what does not agree with its checksum. A file is deleted when all of it is done.
"""

import contextlib
import dataclasses
import os
import struct
import threading
import zlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path

_HEAD = struct.Struct("<III")  # bytes of the record, its items, checksum of both and of the bytes
_COUNTS = struct.Struct("<II")
SUFFIX = ".log"


Record = tuple[bytes, int]
"""A record's bytes and its number of items."""


@dataclasses.dataclass(slots=True)
class _File:
    path: Path
    size: int = 0
    items: int = 0
    read_to: int = 0
    foreign: bool = False  # written by an earlier process


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records that were read, each with its items; ``damaged`` bytes among them agreed with no checksum."""

    records: Sequence[Record]
    items: int
    foreign: bool
    damaged: int
    path: Path
    read_to: int


class DiskLog:
    """A log in a folder of its own; ``append`` and ``read`` may be called from two threads.

    One thread reads: what it has read it tells to be ``done`` before it reads again.
    """

    def __init__(self, folder: Path, *, file_bytes: int) -> None:
        """Open the log in ``folder``, which is made; raises ``OSError``."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file_bytes = file_bytes
        self._lock = threading.Lock()
        self._files: deque[_File] = deque(_known(path) for path in sorted(folder.glob(f"*{SUFFIX}")))
        self._next = 1 + max((int(file.path.stem) for file in self._files), default=0)
        self._handle: int | None = None  # of the last file, while it may grow

    @property
    def bytes(self) -> int:
        """Bytes of all files, those that are read but not done included."""
        return sum(file.size for file in tuple(self._files))

    @property
    def items(self) -> int:
        """Items of all records that are not done."""
        return sum(file.items for file in tuple(self._files))

    def append(self, records: Sequence[Record], *, sync: bool) -> None:
        """Add records, all of them or none.

        With ``sync`` they are on the disk then, else with the operating system. Raises ``OSError``.
        """
        data = b"".join(framed(record, items) for record, items in records)
        with self._lock:
            handle, file = self._open()
            try:
                write_all(handle, data)
                if sync:
                    os.fdatasync(handle)
            except OSError:
                self._take_back(file)
                raise
            file.size += len(data)
            file.items += sum(items for _, items in records)
            if file.size >= self._file_bytes:
                self._close()

    def read(self, *, max_items: int) -> Chunk | None:
        """Return the oldest records that are not done, of one file; None where there are none."""
        with self._lock:
            if not self._files:
                return None
            file = self._files[0]
            path, start, end, foreign = file.path, file.read_to, file.size, file.foreign
        records, items, read_to, damaged = _records(path, start, end, max_items)
        return Chunk(
            records=records, items=items, foreign=foreign, damaged=damaged, path=path, read_to=read_to
        )

    def done(self, chunk: Chunk) -> None:
        """Forget what was read; the file is deleted once that was all of it. Raises ``OSError``."""
        with self._lock:
            file = self._files[0]
            file.read_to = chunk.read_to
            file.items -= chunk.items
            if file.read_to < file.size:
                return
            if len(self._files) == 1:
                self._close()
            self._files.popleft()
            file.path.unlink(missing_ok=True)

    def skip(self) -> None:
        """Pass over the oldest file, which stays on disk: it cannot be read."""
        with self._lock:
            if len(self._files) == 1:
                self._close()
            self._files.popleft()

    def close(self) -> None:
        """Let go of the file that is written to."""
        with self._lock:
            self._close()

    def _open(self) -> tuple[int, _File]:
        if self._handle is None:
            path = self._folder / f"{self._next:010d}{SUFFIX}"
            self._next += 1
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            self._files.append(_File(path))
            with contextlib.suppress(OSError):  # the records themselves are synced where that is asked for
                _sync_folder(self._folder)
        return self._handle, self._files[-1]

    def _take_back(self, file: _File) -> None:
        """Cut off what was written of records that do not fit; a file without any goes."""
        self._close()
        with contextlib.suppress(OSError):
            os.truncate(file.path, file.size)
            if not file.size:
                file.path.unlink()
        if not file.size:
            self._files.pop()

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def framed(record: bytes, items: int) -> bytes:
    """Return a record as it stands in a file."""
    return _HEAD.pack(len(record), items, _checksum(record, items)) + record


def _checksum(record: bytes, items: int) -> int:
    return zlib.crc32(record, zlib.crc32(_COUNTS.pack(len(record), items)))


def write_all(handle: int, data: bytes) -> None:
    """Write all of ``data``; raises ``OSError``."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _sync_folder(folder: Path) -> None:
    """Make a new file's name last as long as its content."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _known(path: Path) -> _File:
    """Return a file of an earlier process, with the items that its records claim."""
    size = path.stat().st_size
    items = 0
    with path.open("rb") as stream:
        at = 0
        while len(head := stream.read(_HEAD.size)) == _HEAD.size:
            length, claimed, _ = _HEAD.unpack(head)
            at += _HEAD.size + length
            if at > size:
                break
            items += claimed
            stream.seek(at)
    return _File(path, size=size, items=items, foreign=True)


def _records(path: Path, start: int, end: int, max_items: int) -> tuple[list[Record], int, int, int]:
    """Return the next records of a file, their items, where they end, and the bytes that were no record."""
    found: list[Record] = []
    items = damaged = 0
    at = start
    with path.open("rb") as stream:
        stream.seek(start)
        while at < end and items < max_items:
            head = stream.read(_HEAD.size)
            length, claimed, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (end, 0, 0)
            if (
                at + _HEAD.size + length > end
            ):  # cut off, or a length that cannot be: nothing behind it is told
                damaged += end - at
                at = end
                break
            record = stream.read(length)
            at += _HEAD.size + length
            items += claimed
            if _checksum(record, claimed) == checksum:
                found.append((record, claimed))
            else:
                damaged += _HEAD.size + length
    return found, items, at, damaged
