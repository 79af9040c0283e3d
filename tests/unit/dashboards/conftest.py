"""A seeded store and a way to run one page of the app without a browser."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboards.launch import APP
from tests.support.seed import seed

RunPage = Callable[[str, str], AppTest]


@pytest.fixture(scope="session")
def seeded_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite store with the seeded hour up to now; tests that write take a copy."""
    path = tmp_path_factory.mktemp("seeded") / "store.db"
    seed(f"sqlite:///{path}", now=time.time())
    return path


@pytest.fixture
def store_url(seeded_file: Path, tmp_path: Path) -> str:
    """The URL of a store of this test alone."""
    copy = tmp_path / "store.db"
    copy.write_bytes(seeded_file.read_bytes())
    return f"sqlite:///{copy}"


@pytest.fixture
def run_page(monkeypatch: pytest.MonkeyPatch) -> RunPage:
    """Run the app on a store and open a page of it: ``run_page(url, "causes")``."""

    def run(url: str, page: str) -> AppTest:
        st.cache_data.clear()
        st.cache_resource.clear()
        monkeypatch.setattr("sys.argv", ["app.py", "--db", url])
        app = AppTest.from_file(str(APP), default_timeout=60)
        app.run()
        if page != "overview":
            app.switch_page(f"screens/{page}.py").run()
        return app

    return run
