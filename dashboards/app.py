"""The Streamlit app: ``streamlit run dashboards/app.py -- --db URL``."""

from pathlib import Path

import streamlit as st

from dashboards import ui

_PAGES = (
    ("overview", "Overview", ":material/monitoring:"),
    ("requests", "Requests", ":material/list:"),
    ("causes", "Causes", ":material/troubleshoot:"),
    ("suggestions", "Suggestions", ":material/lightbulb:"),
    ("experiments", "Experiments", ":material/science:"),
)
_LOGO = Path(__file__).with_name("assets") / "logo.svg"
_SIDEBAR_PIXELS = 220


def main() -> None:
    """Draw the frame and the page that was chosen."""
    st.set_page_config(
        page_title="kvscope",
        page_icon=":material/speed:",
        layout="wide",
        initial_sidebar_state=_SIDEBAR_PIXELS,
    )
    chosen = st.navigation(
        [
            st.Page(f"screens/{name}.py", title=title, icon=icon, url_path=name, default=name == "overview")
            for name, title, icon in _PAGES
        ]
    )
    st.logo(str(_LOGO), size="large")
    with st.sidebar:
        ui.choose_window()
    chosen.run()


main()
