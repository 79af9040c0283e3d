"""Why tokens missed: by route and cause, and the places in prompts that break prefixes."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboards import theme
from dashboards.views import charts
from kvscope.model.views import HitRow, MissRow
from kvscope.reports import words

_BAR_PIXELS = 38
_ROUTES = 12


def cause_frame(rows: Sequence[HitRow]) -> pd.DataFrame:
    """Return a row a route and cause, ``cached`` among them: the tokens of a route are its whole prompts.

    ``share`` is of the route's prompt tokens. Routes of which no tokens are known are absent.
    """
    found = [
        {
            "route": row.key,
            "cause": words.text(cause),
            "tokens": tokens,
            "share": tokens / row.prompt_tokens,
            "order": order,
        }
        for row in sorted(rows, key=lambda row: (-row.prompt_tokens, row.key))[:_ROUTES]
        if row.prompt_tokens
        for order, (cause, tokens) in enumerate(_of_route(row))
        if tokens
    ]
    return pd.DataFrame(found, columns=["route", "cause", "tokens", "share", "order"])


def _of_route(row: HitRow) -> list[tuple[str, int]]:
    causes = [(cause, row.causes.get(cause, 0)) for cause in theme.CAUSE_COLOURS if cause != theme.CACHED]
    return [(theme.CACHED, row.cached_tokens), *causes]


def cause_chart(frame: pd.DataFrame, *, share: bool) -> alt.Chart:
    """Return stacked bars, one a route: in tokens, or as shares of the route's prompt tokens."""
    names = [words.text(cause) for cause in theme.CAUSE_COLOURS]
    present = [name for name in names if name in set(frame["cause"])]
    colours = dict(zip(names, theme.CAUSE_COLOURS.values(), strict=True))
    routes = list(dict.fromkeys(frame["route"]))
    value = alt.X(
        "share:Q" if share else "tokens:Q",
        title=None,
        # by ticks' own format all would get the largest one's prefix: "0M"
        axis=alt.Axis(labelExpr=f"format(datum.value, '{'.0%' if share else '~s'}')", tickCount=6),
        scale=alt.Scale(domain=[0, 1]) if share else alt.Undefined,
        stack="zero",
    )
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar(height=20)
        .encode(
            y=alt.Y("route:N", sort=routes, title=None, axis=alt.Axis(labelLimit=180, ticks=False)),
            x=value,
            color=alt.Color(
                "cause:N",
                scale=alt.Scale(domain=present, range=[colours[name] for name in present]),
                legend=charts.legend(),
            ),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("route:N", title="Route"),
                alt.Tooltip("cause:N", title="Cause"),
                alt.Tooltip("tokens:Q", title="Tokens", format=","),
                alt.Tooltip("share:Q", title="Share of prompt", format=".1%"),
            ],
        )
        .properties(height=_BAR_PIXELS * max(2, len(routes)) + 50)
    )
    return chart


def totals_frame(rows: Sequence[HitRow]) -> pd.DataFrame:
    """Return a row a cause with its missed tokens, their share of all missed tokens, and what it means."""
    tokens: dict[str, int] = {}
    for row in rows:
        for cause, amount in row.causes.items():
            tokens[cause] = tokens.get(cause, 0) + amount
    total = sum(tokens.values())
    ordered = sorted((item for item in tokens.items() if item[1]), key=lambda item: (-item[1], item[0]))
    return pd.DataFrame(
        [
            {
                "cause": words.text(cause),
                "tokens": amount,
                "share": amount / total,
                "meaning": words.CAUSE_MEANINGS.get(cause, ""),
            }
            for cause, amount in ordered
        ],
        columns=["cause", "tokens", "share", "meaning"],
    )


def place_frame(rows: Sequence[MissRow], causes: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a row a place where tokens missed, in the order of ``rows``; for ``causes``, or for all."""
    return pd.DataFrame(
        [
            {
                "route": row.route,
                "cause": words.text(row.cause),
                "place": words.place(row.role, row.message_index),
                "kind": words.text(row.value_kind),
                "requests": row.requests,
                "tokens": row.tokens,
                "where": words.characters(row.example_char_start, row.example_char_end),
                "example": row.example_request_id,
            }
            for row in rows
            if causes is None or row.cause in causes
        ],
        columns=["route", "cause", "place", "kind", "requests", "tokens", "where", "example"],
    )
