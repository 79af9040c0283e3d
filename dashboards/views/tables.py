"""How columns of tables are titled and formatted, the same on every page."""

from typing import Any

import pandas as pd
import streamlit as st

UNTOLD = "–"
"""What a cell shows that no source told."""

_RATES = frozenset({"hit_rate", "share"})


def options(frame: pd.DataFrame) -> dict[str, Any]:
    """Return what ``st.dataframe`` is given to draw ``frame`` as every table here is drawn."""
    return {
        # rates of 0 to 1 are drawn as per cent: Streamlit's own format of rates shows too many digits
        "data": frame.assign(
            **{name: frame[name].astype(float) * 100 for name in _RATES & set(frame.columns)}
        ),
        "column_config": {name: _COLUMNS[name]() for name in frame.columns},
        "hide_index": True,
        "placeholder": UNTOLD,
    }


def _whole(label: str) -> Any:
    return lambda: st.column_config.NumberColumn(label, format="localized", step=1)


def _ms(label: str) -> Any:
    return lambda: st.column_config.NumberColumn(label, format="%.1f ms")


def _text(label: str, **more: Any) -> Any:
    return lambda: st.column_config.TextColumn(label, **more)


def _rate(label: str) -> Any:
    return lambda: st.column_config.ProgressColumn(label, format="%.1f %%", min_value=0, max_value=100)


def _moment(label: str) -> Any:
    return lambda: st.column_config.DatetimeColumn(label, format="MMM DD, HH:mm:ss")


_COLUMNS = {
    "route": _text("Route"),
    "cause": _text("Cause", width=90),
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
    "status": _text("Status", width=60),
    "arm": _text("Arm", width=85),
    "request_id": _text("Request"),
    "arrived": _moment("Arrived"),
    "field": _text("Field"),
    "value": _text("Value"),
    "source": _text("Told by"),
    "started": _moment("Started"),
    "ended": _moment("Ended"),
    "ttft_p95_ms": _ms("TTFT p95"),
    "units": _whole("Units"),
    "name": _text("Experiment"),
    "state": _text("State", width=90),
    "verdict": _text("Verdict"),
    "metric": _text("Metric"),
    "difference": _text("Difference"),
    "interval": _text("Interval"),
    "relative": _text("Of baseline"),
    "reading": _text("Reading"),
}
