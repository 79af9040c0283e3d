"""What the demo needs of an engine, real or built in, and how the built-in one is started."""

import dataclasses
import random
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from kvscope.demo.process import ChildProcess
from kvscope.errors import UnreachableError

BUILTIN_MODEL = "tiny-builtin"  # what is served under it says that no language model answers
_START_SECONDS = 30.0
# below the range from which systems take ports for outgoing connections
_PORTS = range(20_000, 32_000)
_TRIES = 200
# gRPC would send even spans for the agent beside it through the proxy that the environment names
NO_PROXY = {"no_grpc_proxy": "127.0.0.1,localhost"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What both engines are told; their ports are free ones."""

    model: Path
    otlp_endpoint: str  # of the agent's OTLP receiver over gRPC, e.g. http://127.0.0.1:4317
    middleware_endpoint: str | None = None  # of the agent's receiver; vLLM's alone
    block_size: int = 32  # vLLM's CPU build takes multiples of 32 only
    blocks: int = 1_200
    max_model_len: int = 8_192
    time_scale: float = 1.0  # the built-in engine's; a real one takes the time it takes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running engine and where its signals are."""

    name: str  # "vllm" or "builtin"
    process: ChildProcess
    model: str  # the name that it is served under
    url: str
    kv_events: str
    kv_replay: str | None
    options: EngineOptions

    def stop(self) -> None:
        """End the engine's process group and nothing else."""
        self.process.stop()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listened on a moment ago."""
    for port in random.Random().sample(_PORTS, _TRIES):  # noqa: S311 - no secret
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UnreachableError(f"none of {_TRIES} ports between {_PORTS.start} and {_PORTS.stop} is free")


def answers(url: str) -> bool:
    """Return whether ``url`` answers with a success."""
    # a proxy of the environment is for the world outside, not for the server beside us
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0) as response:
            return bool(response.status < 300)  # noqa: PLR2004 - HTTP's classes
    except (OSError, urllib.error.HTTPError):
        return False


def start_builtin(
    options: EngineOptions, log: Path, *, progress: Callable[[float], None] | None = None
) -> Engine:
    """Return the built-in engine, answering; raises ``UnreachableError`` with its log's end."""
    port, events = free_port(), f"tcp://127.0.0.1:{free_port()}"
    flags = {
        "--tokenizer": str(options.model),
        "--model": BUILTIN_MODEL,
        "--port": str(port),
        "--block-size": str(options.block_size),
        "--blocks": str(options.blocks),
        "--max-model-len": str(options.max_model_len),
        "--otlp-endpoint": options.otlp_endpoint,
        "--kv-events": events,
        "--time-scale": str(options.time_scale),
    }
    argv = [sys.executable, "-m", "kvscope.demo.engine", *(word for flag in flags.items() for word in flag)]
    process = ChildProcess("the built-in engine", argv, log, env=NO_PROXY)
    url = f"http://127.0.0.1:{port}"
    process.ready_or_stop(
        lambda: answers(f"{url}/health"), deadline_seconds=_START_SECONDS, progress=progress
    )
    return Engine(
        name="builtin",
        process=process,
        model=BUILTIN_MODEL,
        url=url,
        kv_events=events,
        kv_replay=None,
        options=options,
    )
