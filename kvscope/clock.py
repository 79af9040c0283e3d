"""The one place that asks what time it is, so that tests can say it instead."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Returns Unix time in seconds (UTC)."""


def system_clock() -> float:
    """Return the machine's wall clock as Unix seconds."""
    return time.time()


def iso(at: float) -> str:
    """Return Unix seconds as ISO 8601 text in UTC, as the command line and reports show it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
