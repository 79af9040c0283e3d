"""Keeps records on disk while they wait in memory, for senders that keep no copy and do not wait.

Each is written before it is queued and settled when the store has it; what a killed process left unsettled
is found at the next start. It outlives the process without a sync to the disk, which would hold traffic up.
"""

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from kvscope.pipeline.disklog import SUFFIX, framed, write_all

_FILE_BYTES = 4 * 2**20
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND


class Journal:
    """The files of one process; a file is emptied when all in it is settled, and deleted when it was full."""

    def __init__(self, folder: Path, *, first: int, file_bytes: int = _FILE_BYTES) -> None:
        """Write to ``folder``, which exists, from the file numbered ``first`` on."""
        self._folder = folder
        self._file_bytes = file_bytes
        self._number = first
        self._handle: int | None = None
        self._size = 0
        self._unsettled: dict[int, int] = {}
        self._lock = threading.Lock()

    def append(self, record: bytes, items: int) -> int:
        """Write one record and return the number to settle it by; raises ``OSError``."""
        data = framed(record, items)
        with self._lock:
            if self._handle is None:
                self._handle = os.open(self._path(self._number), _FLAGS, 0o600)
                self._size = 0
            try:
                write_all(self._handle, data)
            except OSError:
                os.ftruncate(self._handle, self._size)
                raise
            number = self._number
            self._size += len(data)
            self._unsettled[number] = self._unsettled.get(number, 0) + 1
            if self._size >= self._file_bytes:
                self._close()
            return number

    def settle(self, numbers: Iterable[int]) -> None:
        """Forget one record for each number; raises ``OSError``, and then a file may be read again."""
        with self._lock:
            for number in numbers:
                self._unsettled[number] -= 1
                if not self._unsettled[number]:
                    del self._unsettled[number]
                    self._empty(number)

    def close(self) -> None:
        """Let go of the file that is written to, and delete it where all in it is settled."""
        with self._lock:
            if self._handle is not None:
                number = self._number
                self._close()
                if number not in self._unsettled:
                    self._path(number).unlink(missing_ok=True)

    def _empty(self, number: int) -> None:
        if number == self._number and self._handle is not None:
            os.ftruncate(self._handle, 0)
            self._size = 0
        else:
            self._path(number).unlink(missing_ok=True)

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            self._number += 1

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:010d}{SUFFIX}"
