"""Judges the sequence numbers of one engine: next, seen before, something is missing, or a new engine.

An engine counts its batches from 0 and says nothing else about itself, so a restart shows only as a
number that goes back. A number that a replay has brought already also seems to go back; it is told apart
by its time, and because the live numbers of one engine never go back.
"""

import dataclasses
from enum import StrEnum


class Judgement(StrEnum):
    """What a live batch is, seen from those before it."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    RESTART = "restart"


@dataclasses.dataclass(slots=True)
class SequenceTracker:
    """Knows what was handed on last; numbers are None until the first batch."""

    last: int | None = None
    last_at: float = 0.0
    last_payload: int = 0  # hash of the payload, to know the same engine again
    _last_live: int | None = None

    @property
    def expected(self) -> int:
        """The number that should come next."""
        return 0 if self.last is None else self.last + 1

    def judge(self, sequence: int, at: float) -> Judgement:
        """Judge a live batch; call ``handed_on`` once it has been handed on."""
        went_back = self._last_live is not None and sequence <= self._last_live
        self._last_live = sequence
        if went_back or (self.last is not None and sequence <= self.last and at > self.last_at):
            return Judgement.RESTART
        if sequence == self.expected:
            return Judgement.NEXT
        return Judgement.DUPLICATE if sequence < self.expected else Judgement.GAP

    def handed_on(self, sequence: int, at: float, payload: bytes) -> None:
        """Note the batch that listeners have heard last."""
        self.last, self.last_at, self.last_payload = sequence, at, hash(payload)

    def restarted(self) -> None:
        """Expect a new engine's numbers, from 0."""
        self.last, self.last_payload = None, 0
