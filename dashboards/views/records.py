"""Requests as rows, and one request with everything that is known of it."""

import dataclasses
from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboards import theme
from dashboards.views import charts
from kvscope.model.request import RequestRecord
from kvscope.reports import words

COLUMNS = (
    "arrived",
    "route",
    "status",
    "prompt_tokens",
    "cached_tokens",
    "hit_rate",
    "cause",
    "ttft_ms",
    "tpot_ms",
    "arm",
    "request_id",
)
_GROUPS = {
    "Request": (
        "request_id",
        "trace_id",
        "session",
        "tenant",
        "route",
        "model",
        "engine",
        "replica",
        "arrived_at",
        "status",
        "finish_reason",
    ),
    "Tokens": ("prompt_tokens", "cached_tokens", "output_tokens", "prompt_chars", "prompt_entropy"),
    "Times": (
        "ttft_seconds",
        "ttft_client_seconds",
        "queue_seconds",
        "prefill_seconds",
        "decode_seconds",
        "tpot_seconds",
        "itl_p50_seconds",
        "itl_p95_seconds",
        "itl_max_seconds",
        "e2e_seconds",
        "gateway_overhead_seconds",
    ),
    "Treatment": (
        "prompt_layout",
        "experiment",
        "arm",
        "warmup",
        "requests_in_flight",
        "preemptions",
    ),
}
_PHASES = (
    ("queue", "queue_seconds", theme.QUIET),
    ("prefill", "prefill_seconds", theme.CAUSE_COLOURS["diverged"]),
    ("decode", "decode_seconds", theme.CHART),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which requests to show; None or an empty text lets all through."""

    route: str | None = None
    status: str | None = None
    cause: str | None = None
    text: str = ""

    def lets(self, record: RequestRecord) -> bool:
        """Return whether the record is shown; ``text`` is looked for in its ids, session and tenant."""
        ids = (record.request_id, record.trace_id, record.session, record.tenant, record.experiment)
        return (
            self.route in (None, record.route)
            and self.status in (None, record.status)
            and (self.cause is None or bool((record.causes or {}).get(self.cause)))
            and (not self.text or any(self.text in value for value in ids if value))
        )


def record_frame(records: Sequence[RequestRecord]) -> pd.DataFrame:
    """Return a row a request, newest first; ``cause`` is the one that cost most tokens."""
    rows = [
        {
            "arrived": record.arrived_at,
            "route": record.route,
            "status": record.status.value if record.status else None,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "hit_rate": hit_rate(record),
            "cause": main_cause(record),
            "ttft_ms": _ms(record.ttft_seconds),
            "tpot_ms": _ms(record.tpot_seconds),
            "arm": record.arm,
            "request_id": record.request_id,
        }
        for record in reversed(records)
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.assign(arrived=charts.moments(frame["arrived"].astype(float)))


def hit_rate(record: RequestRecord) -> float | None:
    """Return cached ÷ prompt tokens of one request, or None where one is unknown."""
    if record.cached_tokens is None or not record.prompt_tokens:
        return None
    return record.cached_tokens / record.prompt_tokens


def main_cause(record: RequestRecord) -> str | None:
    """Return the miss cause with most tokens, or None."""
    causes = record.causes or {}
    return words.text(max(causes, key=lambda cause: (causes[cause], cause))) if causes else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def details(record: RequestRecord) -> dict[str, list[tuple[str, str, str]]]:
    """Return (name, value, who told it) of every field by group; what is unknown is left out."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for group, names in _GROUPS.items():
        lines = [
            (_name(name), _shown(name, getattr(record, name)), record.sources.get(name, ""))
            for name in names
            if getattr(record, name) is not None
        ]
        if lines:
            found[group] = lines
    return found


def detail_frame(lines: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
    """Return the lines of one group of ``details`` as a frame."""
    return pd.DataFrame(lines, columns=["field", "value", "source"])


def unknown_fields(record: RequestRecord) -> list[str]:
    """Return the names of the fields that no source told."""
    return [_name(name) for names in _GROUPS.values() for name in names if getattr(record, name) is None]


def _name(field: str) -> str:
    return words.text(field.removesuffix("_seconds").removesuffix("_at"))


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if name.endswith("_at"):
            return words.moment(value)
        return words.seconds(value) if name.endswith("_seconds") else words.decimal(value)
    return words.count(value) if isinstance(value, int) else str(value)


def token_bar(record: RequestRecord) -> alt.Chart | None:
    """Return the request's prompt as one bar of cached tokens and miss causes, or None where unknown."""
    if record.cached_tokens is None or not record.prompt_tokens:
        return None
    causes = record.causes or {"unknown": record.prompt_tokens - record.cached_tokens}
    parts = [(theme.CACHED, record.cached_tokens), *((c, causes.get(c, 0)) for c in theme.CAUSE_COLOURS)]
    shown = [(name, tokens) for name, tokens in parts if tokens]
    colours = {words.text(name): theme.CAUSE_COLOURS[name] for name, _ in shown}
    return _one_bar([(words.text(name), float(tokens)) for name, tokens in shown], colours, ",.0f", "Tokens")


def phase_bar(record: RequestRecord) -> alt.Chart | None:
    """Return the request's time as one bar of queue, prefill and decode, or None where none is known."""
    known = [(name, getattr(record, field), colour) for name, field, colour in _PHASES]
    told = [(name, seconds * 1000, colour) for name, seconds, colour in known if seconds is not None]
    if not told:
        return None
    colours = {name: colour for name, _, colour in told}
    return _one_bar([(name, ms) for name, ms, _ in told], colours, ",.1f", "ms")


def _one_bar(
    parts: Sequence[tuple[str, float]], colours: dict[str, str], number: str, unit: str
) -> alt.Chart:
    frame = pd.DataFrame(
        [{"part": name, "value": value, "order": order} for order, (name, value) in enumerate(parts)]
    )
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar(height=22)
        .encode(
            x=alt.X("value:Q", title=None, axis=alt.Axis(format="~s", tickCount=6), stack="zero"),
            color=alt.Color("part:N", scale=scale, legend=charts.legend()),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("part:N", title="Part"),
                alt.Tooltip("value:Q", title=unit, format=number),
            ],
        )
        .properties(height=130)
    )
    return chart
