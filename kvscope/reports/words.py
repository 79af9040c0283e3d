"""Numbers, times and places as people read them: reports and the dashboard say them the same way.

``None`` is always "unknown": no source told the value, which is not the same as zero.
"""

import math
from datetime import UTC, datetime

from kvscope.experiments.metrics import METRICS

UNKNOWN = "unknown"
_MINUS = "\N{MINUS SIGN}"
_TENTHS_BELOW_MS = 9.95
_SECONDS_FROM_MS = 10_000
_SHORT_ID = 12
_WHOLE_FROM = 10

CAUSE_MEANINGS = {
    "cold": "begin a prefix that this engine had not seen",
    "diverged": "came after a difference from an earlier prompt of the same route",
    "evicted": "were cached once and had been evicted",
    "in_flight": "were still being computed by another request",
    "isolated": "are cached, but under another salt, adapter or replica",
    "granularity": "fall in a partial block, or are the last token, which is always computed",
    "disabled": "were not looked up",
    "unknown": "cannot be told from the sources at hand",
}


def metric(name: str) -> str:
    """Return what a metric of an experiment is, in words."""
    known = METRICS.get(name)
    return known.words if known else text(name)


def count(value: float | None) -> str:
    """Return a whole number with thousands separators: ``1,234``."""
    return UNKNOWN if value is None else _signed(f"{value:,.0f}")


def rough(value: float | None) -> str:
    """Return a forecast of a count with three digits that mean something: ``557,000,000``."""
    return UNKNOWN if value is None else count(float(f"{value:.3g}"))


def requests(number: int) -> str:
    """Return a number of requests: ``1 request``, ``1,234 requests``."""
    return f"{count(number)} request{'' if number == 1 else 's'}"


def percent(rate: float | None) -> str:
    """Return a rate of 0 to 1 as ``35.9 %``."""
    return UNKNOWN if rate is None else _signed(f"{rate * 100:.1f} %")


def change_percent(rate: float | None) -> str:
    """Return a relative change with its sign: ``+35.9 %``."""
    return UNKNOWN if rate is None else _signed(f"{rate * 100:+.1f} %")


def points(difference: float | None) -> str:
    """Return a difference of two rates in percentage points: ``+31.2 points``."""
    return UNKNOWN if difference is None else _signed(f"{difference * 100:+.1f} points")


def seconds(value: float | None) -> str:
    """Return a time as ``123 ms``, ``4.6 ms`` or ``12.3 s``: three digits at most matter."""
    if value is None:
        return UNKNOWN
    ms = value * 1000
    if abs(ms) >= _SECONDS_FROM_MS:
        return _signed(f"{value:,.1f} s")
    return _signed(f"{ms:.1f} ms" if abs(ms) < _TENTHS_BELOW_MS else f"{ms:,.0f} ms")


def change_seconds(value: float | None) -> str:
    """Return a change of a time with its sign: ``+12 ms``."""
    return UNKNOWN if value is None else ("+" if value > 0 else "") + seconds(value)


def change_within(value: float | None, low: float | None, high: float | None) -> str:
    """Return a change of a time with its 90 % interval: ``−131 ms (−140 to −122 ms)``."""
    told = change_seconds(value)
    if value is None or low is None or high is None:
        return told
    return f"{told} ({interval(low, high, 'ttft_seconds')})"


def gpu_seconds(value: float | None) -> str:
    """Return GPU time as ``3,460 GPU s``, three digits of it meant."""
    return UNKNOWN if value is None else f"{rough(value)} GPU s"


def decimal(value: float | None, digits: int = 2) -> str:
    """Return a number with a fixed count of decimals."""
    return UNKNOWN if value is None else _signed(f"{value:,.{digits}f}")


def is_share(metric: str) -> bool:
    """Return whether values of the metric are rates of 0 to 1."""
    known = METRICS.get(metric)
    return metric.endswith("_rate") if known is None else known.unit == "rate"


def quantity(value: float | None, metric: str, *, change: bool = False) -> str:
    """Return a value of ``metric`` (its name tells the unit), with a sign where it is a change."""
    if value is None:
        return UNKNOWN
    if metric.endswith("_seconds"):
        return change_seconds(value) if change else seconds(value)
    if is_share(metric):
        return points(value) if change else percent(value)
    sign = "+" if change and value > 0 else ""
    if metric.endswith("_tokens") and abs(value) >= _WHOLE_FROM:
        return sign + count(value)
    return sign + decimal(value, 2 if abs(value) < 1 else 1)


def bound(value: float | None, metric: str) -> str:
    """Return the end of an interval of a change; None is an end that the interval does not have."""
    return "any" if value is None or math.isinf(value) else quantity(value, metric, change=True)


def interval(low: float | None, high: float | None, metric: str) -> str:
    """Return both ends of an interval of a change, their unit once: ``−137 to −125 ms``."""
    first, last = bound(low, metric), bound(high, metric)
    first_number, _, first_unit = first.partition(" ")
    return f"{first_number if first_unit == last.partition(' ')[2] else first} to {last}"


def margin(value: float, metric: str, *, relative: bool) -> str:
    """Return how much worse a guardrail lets its metric become."""
    return f"{value:.0%}".replace("%", " %") if relative else quantity(value, metric, change=True).lstrip("+")


def moment(at: float | None) -> str:
    """Return Unix seconds as ``2026-11-29 17:44:03 UTC``."""
    return UNKNOWN if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(value: float | None) -> str:
    """Return a length of time in its two largest units: ``3 min 20 s``."""
    if value is None:
        return UNKNOWN
    left = round(value)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, left = divmod(left, size)
        if amount or (unit == "s" and not parts):
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])


def text(value: object) -> str:
    """Return any value as text; None is "unknown"."""
    return UNKNOWN if value is None else str(value).replace("_", " ")


def place(role: str | None, message_index: int | None) -> str:
    """Return where in a prompt something lies: ``system message 0`` or ``tools``."""
    if role is None and message_index is None:
        return UNKNOWN
    if message_index is None:
        return str(role)
    return f"{role or 'message'} message {message_index}" if role else f"message {message_index}"


def characters(start: int | None, end: int | None) -> str:
    """Return a range of characters within a message: ``characters 12 to 31``."""
    if start is None:
        return UNKNOWN
    return f"character {start:,}" if end in (None, start) else f"characters {start:,} to {end:,}"


def short_id(value: str) -> str:
    """Return an id cut for tables; the whole id is shown where it is the subject."""
    return value if len(value) <= _SHORT_ID else value[:_SHORT_ID] + "…"


def _signed(written: str) -> str:
    """Write a true minus sign, and no sign before a zero."""
    if written.startswith(("-", "+")) and not any(digit in written for digit in "123456789"):
        return written[1:]
    return written.replace("-", _MINUS, 1) if written.startswith("-") else written
