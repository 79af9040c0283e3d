"""Starts the real agent, `kvscope agent`, beside an engine: as a process of its own, from a config file."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from kvscope.demo.engines import Engine, answers, free_port
from kvscope.demo.process import ChildProcess

_START_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """A running agent and its addresses."""

    process: ChildProcess
    gateway: str
    admin: str
    db: str

    def stop(self) -> None:
        """End the agent; it writes what it has taken in first."""
        self.process.stop(grace_seconds=20.0)


def agent_config(engine: Engine, db: str, *, gateway_port: int, admin_port: int) -> dict[str, Any]:
    """Return the agent's configuration for one engine; its OTLP port is the one that the engine sends to."""
    source = {"endpoint": engine.kv_events}
    if engine.kv_replay:
        source["replay_endpoint"] = engine.kv_replay
    return {
        "db": db,
        "upstreams": [engine.url],
        "tokenizer": str(engine.options.model),
        "admin": {"port": admin_port},
        "advisor": {"interval_seconds": 5.0},
        "collectors": {
            "gateway": {"port": gateway_port},
            "otlp": {"grpc_port": int(engine.options.otlp_endpoint.rpartition(":")[2]), "http_port": 0},
            "middleware": {"port": 0},
            "prometheus": {"interval_seconds": 1.0},
            "kv_events": {"endpoints": [source]},
        },
    }


def start_sidecar(
    engine: Engine,
    folder: Path,
    *,
    db: str | None = None,
    change: Callable[[dict[str, Any]], None] = lambda _: None,
    ready: bool = True,
) -> Sidecar:
    """Return a running agent whose files are in ``folder``; ``change`` may edit its configuration first.

    It has all parts working then; with ``ready`` False it is alive, whatever stands beside it.

    Raises ``UnreachableError`` with the end of its log when it does not start.
    """
    gateway, admin = free_port(), free_port()
    db = db or f"sqlite:///{(folder / 'kvscope.db').resolve()}"
    config = agent_config(engine, db, gateway_port=gateway, admin_port=admin)
    change(config)
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    run = "from kvscope.cli.main import main; main()"  # the console script may lie elsewhere
    argv = [sys.executable, "-c", run, "agent", "--config", str(file)]
    process = ChildProcess("the agent", argv, folder / "agent.log")
    url = f"http://127.0.0.1:{admin}"
    process.ready_or_stop(
        lambda: answers(f"{url}/{'readyz' if ready else 'healthz'}"), deadline_seconds=_START_SECONDS
    )
    return Sidecar(process=process, gateway=f"http://127.0.0.1:{gateway}", admin=url, db=db)
