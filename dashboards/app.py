"""The Streamlit app: ``streamlit run dashboards/app.py -- --db URL``."""

import streamlit as st

from dashboards import ui

_PAGES = (
    ("overview", "Overview", ":material/monitoring:"),
    ("requests", "Requests", ":material/list:"),
    ("causes", "Causes", ":material/troubleshoot:"),
    ("suggestions", "Suggestions", ":material/lightbulb:"),
    ("experiments", "Experiments", ":material/science:"),
)


def main() -> None:
    """Draw the frame and the page that was chosen."""
    st.set_page_config(page_title="kvscope", page_icon=":material/speed:", layout="wide")
    chosen = st.navigation(
        [
            st.Page(f"screens/{name}.py", title=title, icon=icon, url_path=name, default=name == "overview")
            for name, title, icon in _PAGES
        ]
    )
    with st.sidebar:
        ui.choose_window()
    chosen.run()


main()
