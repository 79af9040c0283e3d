"""Requests as they were: a table with filters, and all that is known of the one that is selected."""

from collections.abc import Sequence

import streamlit as st

from dashboards import data, theme, ui
from dashboards.views import records as view
from dashboards.views import tables
from kvscope.model.request import RequestRecord, Status
from kvscope.reports import words

_SIZES = (200, 1_000, 5_000)
_ALL = "All"
_TABLE_PIXELS = 340
_COLUMNS = (("Request", "Treatment"), ("Tokens", "Times"))


def show() -> None:
    """Draw the page."""
    ui.page("Requests", "One row a request. Select a row to see all that is known of it.", _body)


def _body() -> None:
    window, now = ui.window(), data.now()
    since_at = window.since_at(now)
    routes = [row.key for row in data.hits("route", since_at)]
    if not routes:
        ui.no_requests(window)
        return
    size, wanted = _filters(routes)
    found = [record for record in data.requests(size, since_at, wanted.route) if wanted.lets(record)]
    if not found:
        ui.empty(
            "No request matches", "Take a filter away, or look at more requests.", ":material/filter_alt:"
        )
        return
    st.caption(f"{words.count(len(found))} of the newest {words.count(size)} requests, newest first.")
    event = st.dataframe(
        **tables.options(view.record_frame(found)),
        height=_TABLE_PIXELS,
        on_select="rerun",
        selection_mode="single-row",
        key="requests-table",
    )
    rows = event.selection.rows
    newest_first = found[::-1]
    if rows and rows[0] < len(newest_first):
        _details(newest_first[rows[0]])


def _filters(routes: Sequence[str]) -> tuple[int, view.Filter]:
    first, second, third, fourth, fifth = st.columns([3, 2, 2, 3, 2])
    route = first.selectbox("Route", [_ALL, *routes], key="requests-route")
    status = second.selectbox("Status", [_ALL, *(status.value for status in Status)], key="requests-status")
    causes = [cause for cause in theme.CAUSE_COLOURS if cause != theme.CACHED]
    cause = third.selectbox("Miss cause", [_ALL, *causes], format_func=words.text, key="requests-cause")
    text = fourth.text_input("Id, session or tenant", key="requests-text", placeholder="part of an id")
    size = fifth.selectbox("Newest", _SIZES, format_func=words.count, key="requests-size")
    return size, view.Filter(
        route=_chosen(route), status=_chosen(status), cause=_chosen(cause), text=text.strip()
    )


def _chosen(value: str) -> str | None:
    return None if value == _ALL else value


def _details(record: RequestRecord) -> None:
    with st.container(border=True):
        st.markdown(f"**Request** `{record.request_id}`")
        left, right = st.columns(2, gap="medium")
        with left:
            st.caption("Prompt, in tokens")
            tokens = view.token_bar(record)
            if tokens is None:
                st.caption("No source told how many of its prompt tokens were cached.")
            else:
                st.altair_chart(tokens)
        with right:
            st.caption("Time, in milliseconds")
            phases = view.phase_bar(record)
            if phases is None:
                st.caption("No source told its times.")
            else:
                st.altair_chart(phases)
        groups = view.details(record)
        for column, names in zip(st.columns(2, gap="medium"), _COLUMNS, strict=True):
            with column:
                for name in names:
                    if name in groups:
                        st.markdown(f"**{name}**")
                        st.dataframe(**tables.options(view.detail_frame(groups[name])))
        unknown = view.unknown_fields(record)
        if unknown:
            st.caption(f"Not told by any source: {', '.join(unknown)}.")


if __name__ == "__main__":
    show()
