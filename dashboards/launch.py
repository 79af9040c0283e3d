"""Starts the dashboard: the command that serves it, and a check that it can be served.

Nothing here imports Streamlit, so that a missing extra is one clear line and not a traceback.
"""

import contextlib
import importlib
import importlib.util
import logging
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

from dashboards import theme
from kvscope.errors import UsageError

APP = Path(__file__).with_name("app.py")
_NEEDS = ("streamlit", "altair")
_INSTALL = "pip install 'kvscope[dashboard]'"


def command(db_url: str | None, host: str, port: int, *, agent: str | None = None) -> list[str]:
    """Return the command that serves the dashboard of the store at ``db_url`` on ``host:port``.

    ``agent`` is the base URL of the agent's admin port, which knows why routes get no suggestion.

    With None the app takes the store that KVSCOPE_DB names: a URL with a password in it belongs there, where
    the list of processes does not show it.
    """
    return [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        str(APP),
        f"--server.address={host}",
        f"--server.port={port}",
        "--server.headless=true",
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
        "--client.toolbarMode=minimal",
        "--client.showErrorDetails=type",
        *theme.flags(),
        "--",
        *(("--agent", agent) if agent else ()),
        *(("--db", db_url) if db_url else ()),
    ]


def check() -> None:
    """See to it that the app can start; raises ``UsageError`` with the command to run when it cannot."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the dashboard needs {' and '.join(missing)}: run {_INSTALL}")
    if not APP.is_file():
        raise UsageError(f"the dashboard's app file {APP} is missing: install kvscope again")
    with _quiet():
        for package in ("dashboards.screens", "dashboards.views"):
            for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
                importlib.import_module(module.name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Streamlit from warning that pages are imported outside its server, as a check must do."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
