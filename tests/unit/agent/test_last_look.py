"""Why routes get no suggestion: kept by the advisor, served by the admin port, asked for by the commands."""

import asyncio
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient
from typing_extensions import override

from kvscope.agent.admin import admin_app
from kvscope.agent.asking import LastLook, last_look
from kvscope.agent.loops import Advisor
from kvscope.config.settings import AdvisorSettings
from kvscope.errors import UnreachableError, UsageError

LOOK = LastLook(looked_at=1_790_000_000.0, none_because=None, unchanged={"chat": "already at its ceiling"})


@pytest.fixture
def served() -> Iterator[dict[str, Any]]:
    """A server whose ``body`` is what it answers, at ``url``."""
    state: dict[str, Any] = {"body": b"{}"}

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/advice" else 404)
            self.end_headers()
            self.wfile.write(state["body"])

        @override
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield state | {"url": f"http://127.0.0.1:{server.server_port}", "state": state}
        server.shutdown()
        thread.join()


async def _nothing_mined() -> list[Any]:
    return []


def test_what_the_admin_port_serves_is_what_commands_read(served: dict[str, Any]) -> None:
    app = admin_app(dict, CollectorRegistry(), _nothing_mined, lambda: LOOK)
    served["state"]["body"] = TestClient(app).get("/advice").content
    assert last_look(served["url"] + "/") == LOOK


@pytest.mark.parametrize("body", [b"[]", b"no json", b"[1]", b"{}", b'{"unchanged": 3}'])
def test_another_server_is_no_agent(served: dict[str, Any], body: bytes) -> None:
    served["state"]["body"] = body
    with pytest.raises(UnreachableError, match="not a kvscope agent's"):
        last_look(served["url"])
    with pytest.raises(UnreachableError, match="answered 404"):
        last_look(f"{served['url']}/elsewhere")
    with pytest.raises(UsageError, match="give a URL"):
        last_look("localhost:8801")


def test_an_advisor_without_traffic_says_what_it_waits_for() -> None:
    analyser: Any = SimpleNamespace(window=list)
    caches: Any = SimpleNamespace(only=lambda: None)
    store: Any = None
    advisor = Advisor(
        store=store,
        analyser=analyser,
        caches=caches,
        tokenizer=Path(),
        settings=AdvisorSettings(min_requests=30),
        clock=lambda: 0.0,
    )
    assert "not looked" in str(advisor.last_look.none_because)
    asyncio.run(advisor.look())
    assert advisor.last_look.looked_at is None
    assert "gateway: 0 of 30" in str(advisor.last_look.none_because)
