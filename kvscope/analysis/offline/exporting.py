"""Logged requests as JSON lines for other tools: block hashes under a salt, no text."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from kvscope.analysis.formats.block_traces import MOONCAKE_BLOCK_SIZE, mooncake_line
from kvscope.analysis.formats.hashed import hashed_line
from kvscope.analysis.formats.records import BadLine, BlockHashes, BlockIds, LoggedRequest
from kvscope.analysis.offline.hashing import Hasher, Salter
from kvscope.errors import UsageError

MOONCAKE, HASHED = "mooncake", "hashed"
EXPORT_FORMATS = (MOONCAKE, HASHED)


@dataclasses.dataclass(slots=True)
class Exported:
    """How many lines were written, of which block sizes, and what was left out."""

    requests: int = 0
    block_sizes: set[int] = dataclasses.field(default_factory=set)
    skipped: list[BadLine] = dataclasses.field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What a reader of the lines should know."""
        others = sorted(self.block_sizes - {MOONCAKE_BLOCK_SIZE})
        if not others:
            return []
        sizes = " and ".join(map(str, others))
        return [f"blocks hold {sizes} tokens, not Mooncake's {MOONCAKE_BLOCK_SIZE}: tell other tools so"]


class Exporter:
    """Writes requests as they come; ``form`` is one of ``EXPORT_FORMATS``."""

    def __init__(
        self, hasher: Hasher, salter: Salter, form: str, write: Callable[[dict[str, Any]], None]
    ) -> None:
        self._hasher = hasher
        self._salter = salter
        self._form = form
        self._write = write
        self._begins_at: float | None = None
        self._last_at: float | None = None

    def export(self, found: Iterable[LoggedRequest | BadLine]) -> Exported:
        """Write all of ``found``; what cannot be hashed is put with ``skipped``.

        Raises ``UsageError`` where nothing could be written.
        """
        done = Exported()
        for each in found:
            if isinstance(each, BadLine):
                done.skipped.append(each)
                continue
            try:
                hashed = self._hasher.hashed(each)
            except UsageError as error:
                done.skipped.append(BadLine(origin=each.origin, reason=str(error)))
                continue
            self._write(self._line(hashed))
            done.requests += 1
            if isinstance(hashed.prompt, BlockHashes | BlockIds):
                done.block_sizes.add(hashed.prompt.block_size)
        if not done.requests:
            first = f": {done.skipped[0].origin}: {done.skipped[0].reason}" if done.skipped else ""
            raise UsageError(f"nothing could be exported{first}")
        return done

    def _line(self, hashed: LoggedRequest) -> dict[str, Any]:
        at = self._last_at if hashed.at is None else hashed.at
        self._last_at = at
        if self._form == HASHED and isinstance(hashed.prompt, BlockHashes):
            named = dataclasses.replace(
                hashed,
                at=at,
                session=self._salter.name(hashed.session),
                tenant=self._salter.name(hashed.tenant),
            )
            return hashed_line(named, hashed.prompt)
        if self._begins_at is None:
            self._begins_at = at
        return mooncake_line(dataclasses.replace(hashed, at=at), self._begins_at or 0.0)
