"""The command that serves the dashboard, and the check that it can be served."""

import importlib.util
import sys
from pathlib import Path

import pytest

from dashboards import data, launch
from kvscope.errors import UsageError


def test_the_command_serves_the_app_on_the_given_address() -> None:
    argv = launch.command("sqlite:///x.db", "127.0.0.1", 8501)
    assert argv[:5] == [sys.executable, "-m", "streamlit", "run", str(launch.APP)]
    assert {"--server.address=127.0.0.1", "--server.port=8501", "--server.headless=true"} <= set(argv)
    assert "--browser.gatherUsageStats=false" in argv
    assert argv[-3:] == ["--", "--db", "sqlite:///x.db"]
    asked = launch.command(None, "127.0.0.1", 8501, agent="http://127.0.0.1:9")
    assert data.agent_url(asked[asked.index("--") + 1 :]) == "http://127.0.0.1:9"
    assert data.agent_url([]) == "http://127.0.0.1:8801"


def test_every_flag_is_one_that_streamlit_knows() -> None:
    from streamlit import config

    flags = [
        word for word in launch.command("sqlite:///x.db", "::1", 1) if word.startswith("--") and "=" in word
    ]
    unknown = {flag[2:].partition("=")[0] for flag in flags} - config.get_config_options().keys()
    assert flags
    assert unknown == set()


def test_the_check_passes_where_all_is_installed() -> None:
    launch.check()
    assert "dashboards.screens.overview" in sys.modules


def test_a_missing_extra_names_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "streamlit" else real(name, *rest)
    )
    with pytest.raises(UsageError, match=r"needs streamlit: run pip install 'kvscope\[dashboard\]'"):
        launch.check()


def test_a_missing_app_file_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch, "APP", tmp_path / "app.py")
    with pytest.raises(UsageError, match="is missing: install kvscope again"):
        launch.check()


def test_the_stores_url_comes_from_the_command_line_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVSCOPE_DB", "sqlite:///from-the-environment.db")
    assert data.database_url(["--db", "sqlite:///x.db"]) == "sqlite:///x.db"
    assert data.database_url([]) == "sqlite:///from-the-environment.db"
