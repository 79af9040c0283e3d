"""How columns of tables are titled and formatted, the same on every page."""

from typing import Any

import streamlit as st


def columns(*names: str) -> dict[str, Any]:
    """Return Streamlit's configuration of the named columns."""
    return {name: _COLUMNS[name]() for name in names}


def _whole(label: str) -> Any:
    return lambda: st.column_config.NumberColumn(label, format="localized", step=1)


def _ms(label: str) -> Any:
    return lambda: st.column_config.NumberColumn(label, format="%.1f ms")


def _text(label: str, **options: Any) -> Any:
    return lambda: st.column_config.TextColumn(label, **options)


def _rate(label: str) -> Any:
    return lambda: st.column_config.ProgressColumn(label, format="percent", min_value=0, max_value=1)


_COLUMNS = {
    "route": _text("Route", pinned=True),
    "cause": _text("Cause"),
    "place": _text("Place"),
    "kind": _text("Kind of value"),
    "meaning": _text("These tokens", width="large"),
    "where": _text("Where, in the example"),
    "example": _text("Example request"),
    "requests": _whole("Requests"),
    "tokens": _whole("Tokens"),
    "prompt_tokens": _whole("Prompt tokens"),
    "cached_tokens": _whole("Cached"),
    "output_tokens": _whole("Output"),
    "hit_rate": _rate("Hit rate"),
    "share": _rate("Share"),
    "ttft_ms": _ms("TTFT"),
    "tpot_ms": _ms("TPOT"),
    "status": _text("Status"),
    "arm": _text("Arm"),
    "request_id": _text("Request"),
    "arrived": lambda: st.column_config.DatetimeColumn("Arrived", format="MMM DD, HH:mm:ss"),
}
