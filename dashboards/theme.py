"""Colours and fonts of the dashboard: one accent, everything else is quiet."""

from collections.abc import Mapping

ACCENT = "#0f766e"
ACCENT_DARK = "#2dd4bf"
CHART = "#0d9488"
"""The accent in charts, which have one palette for light and dark."""

QUIET = "#94a3b8"
SERIES = (CHART, "#64748b", "#b45309", "#6d5bd0", "#0369a1", "#a3a3a3")
"""Colours of routes in the order of their traffic; the last one stands for all others."""

CACHED = "cached"
CAUSE_COLOURS: Mapping[str, str] = {
    CACHED: CHART,
    "diverged": "#d97706",
    "cold": "#8fa8c4",
    "evicted": "#b4506b",
    "in_flight": "#8b7fd1",
    "isolated": "#4f6fae",
    "granularity": "#cbd5e1",
    "disabled": "#71717a",
    "unknown": "#a1a1aa",
}

_BOTH = {
    "primaryColor": ACCENT,
    "baseRadius": "8px",
    "headingFontSizes": '["1.75rem", "1.3rem", "1.05rem", "1rem", "0.9rem", "0.85rem"]',
    "metricValueFontSize": "1.6rem",
    "paddingTop": "2.5rem",
    "paddingBottom": "3rem",
}
_LIGHT = {
    "backgroundColor": "#ffffff",
    "secondaryBackgroundColor": "#f4f6f8",
    "textColor": "#1c2530",
    "borderColor": "#dfe4ea",
}
_DARK = {
    "primaryColor": ACCENT_DARK,
    "backgroundColor": "#12171d",
    "secondaryBackgroundColor": "#1a2129",
    "textColor": "#e6ebf0",
    "borderColor": "#2a333d",
}


def flags() -> list[str]:
    """Return Streamlit's flags for this look, light or dark as the reader's system is."""
    options = {
        **{f"theme.{name}": value for name, value in _BOTH.items()},
        **{f"theme.light.{name}": value for name, value in _LIGHT.items()},
        **{f"theme.dark.{name}": value for name, value in _DARK.items()},
    }
    return [f"--{name}={value}" for name, value in options.items()]
