"""Windows of time: which requests a page is about, and how finely a chart cuts them."""

import dataclasses
import math
from collections.abc import Sequence

_LADDER = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)
_BUCKETS = 90  # at most about so many points a line: more cannot be told apart
_REQUESTS = 15  # at least about so many requests a bucket: fewer make a line of noise
_FEWEST = 12  # buckets, however few the requests
STEP_SECONDS = 5.0
"""Windows begin at multiples of this, so that reads of the same few seconds share one answer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The newest ``seconds`` of traffic, or all of it where that is None."""

    label: str
    seconds: float | None

    def since_at(self, now: float) -> float | None:
        """Return when the window begins, or None."""
        return None if self.seconds is None else _floor(now) - self.seconds

    def before(self, now: float) -> tuple[float, float] | None:
        """Return the window of the same length before this one, or None."""
        begin = self.since_at(now)
        return None if begin is None or self.seconds is None else (begin - self.seconds, begin)


def _floor(now: float) -> float:
    return math.floor(now / STEP_SECONDS) * STEP_SECONDS


WINDOWS: Sequence[Window] = (
    Window(label="15 minutes", seconds=900),
    Window(label="1 hour", seconds=3600),
    Window(label="24 hours", seconds=86_400),
    Window(label="7 days", seconds=604_800),
    Window(label="All", seconds=None),
)
DEFAULT = WINDOWS[2]


def bucket_seconds(length: float, requests: int) -> float:
    """Return a round length of bucket for ``length`` seconds of traffic: not too many, not too empty."""
    wanted = max(length / _BUCKETS, length * _REQUESTS / max(requests, 1))
    wanted = min(wanted, length / _FEWEST)
    return float(next((step for step in _LADDER if step >= wanted), math.ceil(wanted / 86_400) * 86_400))
