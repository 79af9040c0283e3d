"""What the pages share: the frame around a page, the window, and what is shown instead of a traceback."""

import re
from collections.abc import Callable

import streamlit as st

from dashboards import data
from dashboards.views.windows import DEFAULT, WINDOWS, Window
from kvscope.errors import KvscopeError, SchemaError, UsageError

EXPERIMENT = "experiment"
"""Where the session keeps the name of the experiment that was chosen."""

_CODE = re.compile(r"(`[^`]+`)")
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#$~:|])")
_WINDOW = "window"
_LABELS = {window.label: window for window in WINDOWS}


def page(title: str, intro: str, body: Callable[[], None]) -> None:
    """Draw a page; a store that cannot be read is explained, not raised."""
    st.title(title, anchor=False)
    st.caption(intro)
    guarded(body)


def guarded(body: Callable[[], None]) -> None:
    """Run ``body``; show what to do where the store is missing, old or away."""
    try:
        body()
    except KvscopeError as error:
        trouble(error)


def trouble(error: KvscopeError) -> None:
    """Say in a friendly way why there is nothing to show."""
    heading = {
        SchemaError: "The store needs an upgrade",
        UsageError: "There is no store to read yet",
    }.get(type(error), "The store cannot be read")
    with st.container(border=True):
        st.subheader(heading, anchor=False)
        st.write(_sentence(str(error)))
        st.caption("`kvscope agent` makes the store and fills it; this page reads it.")
        st.button("Try again", icon=":material/refresh:", key="try-again")  # a click draws the page anew


def _sentence(text: str) -> str:
    """Return an error's line as a sentence."""
    return prose((text[:1].upper() + text[1:]).rstrip(".")) + "."


def plain(text: str) -> str:
    """Return text that Streamlit's Markdown shows as it is: names of routes are data, not markup."""
    return _MARKUP.sub(r"\\\1", text)


def prose(text: str) -> str:
    """Return a sentence as ``plain`` does, except that commands between backticks are shown as code."""
    return "".join(part if _CODE.fullmatch(part) else plain(part) for part in _CODE.split(text))


def empty(heading: str, text: str, icon: str = ":material/hourglass_empty:") -> None:
    """Say that there is nothing yet, and what brings it."""
    with st.container(border=True):
        st.markdown(f"{icon} **{heading}**")
        st.caption(text)


def no_requests(window: Window) -> None:
    """Say that the window holds no requests, and where the newest one lies if there is one."""
    newest = data.requests(1, None)
    if not newest or window.seconds is None:
        empty(
            "No requests yet",
            "Send traffic through the gateway, or point vLLM's `--otlp-traces-endpoint` at the agent.",
        )
        return
    empty(
        f"No requests in the last {window.label}",
        "There are older ones: choose a longer window at the left.",
        icon=":material/history:",
    )


def choose_window() -> None:
    """Let the reader choose the window, for all pages."""
    st.selectbox(
        "Window",
        list(_LABELS),
        index=WINDOWS.index(DEFAULT),
        key=_WINDOW,
        help="Which requests the pages are about: the newest ones, up to this age.",
    )


def window() -> Window:
    """Return the window that the reader chose."""
    return _LABELS.get(st.session_state.get(_WINDOW, DEFAULT.label), DEFAULT)
