"""What was accepted while the store is away, on disk: bounded, in order, found again after a kill.

A spool's folder has a place for each agent that uses it at once. An agent takes the first one that is free
and adopts what it finds in any free one, so that what a killed agent left is written by the next.
"""

import contextlib
import dataclasses
import fcntl
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge
from pydantic import BaseModel, ConfigDict, Field

from kvscope.errors import ConfigError
from kvscope.pipeline.codec import UnreadableError, decode, encode
from kvscope.pipeline.contracts import Batch
from kvscope.pipeline.disklog import SUFFIX, Chunk, DiskLog
from kvscope.pipeline.journal import Journal

_LOG = logging.getLogger(__name__)
_FILE_BYTES = 8 * 2**20
_PLACES = 64
_MEBIBYTE = 2**20


class SpoolSettings(BaseModel):
    """Where accepted data waits on disk while the store is away."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path | None = Field(
        None, description="Folder; default: beside a SQLite file, else in the data directory."
    )
    max_bytes: int = Field(
        2**30, ge=0, description="Bytes that may wait on disk; above it senders are refused. 0 turns it off."
    )
    after_seconds: float = Field(
        0.5, gt=0, description="Seconds that data waits for the store in memory before it goes to disk."
    )
    sync: bool = Field(
        default=True,
        description="Wait for the disk itself before senders are answered; "
        "without it what they sent outlives the agent, but not the machine.",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The oldest batches on disk; ``foreign`` ones were left by an earlier agent."""

    batches: Sequence[Batch]
    foreign: bool
    chunk: Chunk


class Spool:
    """One agent's place in the folder; its methods do not raise for faults of the disk, but tell of them."""

    def __init__(self, folder: Path, settings: SpoolSettings, registry: CollectorRegistry) -> None:
        """Open a place in ``folder``; raises ``ConfigError`` when the folder cannot be used."""
        self._settings = settings
        self._fault: str | None = None
        self._unreadable = 0
        try:
            self._place, self._lock = _free_place(folder)
            journal = self._place / "journal"
            journal.mkdir(exist_ok=True)
            _adopt(folder, self._place)
            self._log = DiskLog(self._place, file_bytes=_FILE_BYTES)
        except OSError as error:
            raise ConfigError(
                f"the spool {folder} cannot be used: {error.strerror or error};"
                " name a folder that can be written with spool.folder"
            ) from error
        self._journal = Journal(journal, first=1)
        if self._log.items:
            _LOG.warning("%d items that an earlier agent left in %s are written now", self.items, folder)
        self._spooled = Counter("kvscope_spool_items_written", "Items put on disk.", registry=registry)
        self._failures = Counter(
            "kvscope_spool_failures", "Writes that the spool's disk did not take.", registry=registry
        )
        self._damaged = Counter(
            "kvscope_spool_records_unreadable",
            "Records on disk that were cut off or damaged, and left out.",
            registry=registry,
        )
        Gauge(
            "kvscope_spool_items", "Items that wait on disk for the store.", registry=registry
        ).set_function(lambda: self._log.items)
        Gauge("kvscope_spool_bytes", "Bytes that wait on disk.", registry=registry).set_function(
            lambda: self._log.bytes
        )

    @property
    def after_seconds(self) -> float:
        """How long data waits for the store in memory before it belongs here."""
        return self._settings.after_seconds

    @property
    def items(self) -> int:
        """Items that wait on disk."""
        return self._log.items

    def put(self, batches: Sequence[Batch]) -> bool:
        """Put ``batches`` on disk behind what is there; False when it is full or the disk takes nothing."""
        records = [(encode(batch), len(batch)) for batch in batches]
        size = sum(len(record) for record, _ in records)
        if self._log.bytes + size > self._settings.max_bytes:
            self._note(f"is full: {self._log.bytes / _MEBIBYTE:.1f} MiB wait; raise spool.max_bytes")
            return False
        try:
            self._log.append(records, sync=self._settings.sync)
        except OSError as error:
            self._failures.inc()
            self._note(f"cannot be written: {error.strerror or error}")
            return False
        self._fault = None
        self._spooled.inc(sum(len(batch) for batch in batches))
        return True

    def backlog(self, *, max_items: int) -> Backlog | None:
        """Return the oldest batches that wait here, or None where none does."""
        try:
            chunk = self._log.read(max_items=max_items)
        except OSError as error:
            _LOG.warning("a file of the spool %s cannot be read: %s", self._place, error)
            self._log.skip()
            self._lost(1)
            return None
        if chunk is None:
            return None
        batches: list[Batch] = []
        self._lost(int(chunk.damaged > 0))
        for record, _ in chunk.records:
            try:
                batches.append(decode(record))
            except UnreadableError as error:
                _LOG.warning("a batch in %s is left out: %s", chunk.path, error)
                self._lost(1)
        return Backlog(batches=batches, foreign=chunk.foreign, chunk=chunk)

    def done(self, backlog: Backlog) -> None:
        """Forget what the store has taken."""
        with contextlib.suppress(OSError):  # what cannot be deleted is written again at the next start
            self._log.done(backlog.chunk)

    def keep(self, batch: Batch) -> int | None:
        """Keep a copy of what waits in memory; return the number to settle it by, None where that fails."""
        try:
            return self._journal.append(encode(batch), len(batch))
        except OSError as error:
            self._failures.inc()
            self._note(f"cannot be written: {error.strerror or error}")
            return None

    def settle(self, numbers: Iterable[int]) -> None:
        """Forget copies of what the store or the spool has."""
        with contextlib.suppress(OSError):
            self._journal.settle(numbers)

    def health(self) -> tuple[bool, str]:
        """Return whether the disk takes data, and how much waits."""
        waiting = f"{self.items} items ({self._log.bytes / _MEBIBYTE:.1f} MiB) wait in {self._place}"
        unreadable = f"; {self._unreadable} unreadable records were left out" if self._unreadable else ""
        if self._fault is None:
            return True, waiting + unreadable
        return False, f"{waiting}{unreadable}; it {self._fault}"

    def close(self) -> None:
        """Let go of the place; what waits stays for the next agent."""
        self._log.close()
        self._journal.close()
        os.close(self._lock)

    def _lost(self, records: int) -> None:
        self._damaged.inc(records)
        self._unreadable += records

    def _note(self, fault: str) -> None:
        """Say what is wrong: once, not for each try."""
        if self._fault is None:
            _LOG.warning("the spool %s %s", self._place, fault)
        self._fault = fault


def _free_place(folder: Path) -> tuple[Path, int]:
    for number in range(_PLACES):
        place = folder / str(number)
        place.mkdir(parents=True, exist_ok=True)
        if (lock := _locked(place)) is not None:
            return place, lock
    raise OSError(f"{_PLACES} agents use it")


def _locked(place: Path) -> int | None:
    """Return the open lock of a place, or None where another agent holds it."""
    handle = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _adopt(folder: Path, own: Path) -> None:
    """Move what killed agents left behind our own: their journals, and all of a place that nobody holds."""
    _move((own / "journal").glob(f"*{SUFFIX}"), own)
    for place in sorted(folder.iterdir()):
        if place == own or not place.is_dir() or (lock := _locked(place)) is None:
            continue
        try:
            _move(place.glob(f"*{SUFFIX}"), own)
            _move((place / "journal").glob(f"*{SUFFIX}"), own)
        finally:
            os.close(lock)


def _move(files: Iterable[Path], own: Path) -> None:
    last = max((int(path.stem) for path in own.glob(f"*{SUFFIX}")), default=0)
    for number, file in enumerate(sorted(files), start=last + 1):
        file.rename(own / f"{number:010d}{SUFFIX}")
