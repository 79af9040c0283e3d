"""Starts a real vLLM server for the demo and the tests: small cache, every signal switched on."""

import dataclasses
import importlib.util
import json
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from kvscope.demo.model import MODEL_NAME
from kvscope.demo.process import ChildProcess
from kvscope.errors import UsageError

_START_SECONDS = 300.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What both engines are told; ports are free ones unless named."""

    model: Path
    otlp_endpoint: str  # of the agent's OTLP receiver over gRPC, e.g. http://127.0.0.1:4317
    block_size: int = 32  # vLLM's CPU build takes multiples of 32 only
    blocks: int = 1_200
    max_model_len: int = 8_192


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running engine and where its signals are."""

    name: str  # "vllm" or "builtin"
    process: ChildProcess
    url: str
    kv_events: str
    kv_replay: str | None
    options: EngineOptions

    def stop(self) -> None:
        """End the engine's process group and nothing else."""
        self.process.stop()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def vllm_installed() -> bool:
    """Return whether vLLM can be imported, without importing it."""
    return importlib.util.find_spec("vllm") is not None


def answers(url: str) -> bool:
    """Return whether ``url`` answers with a success."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as response:  # noqa: S310 - our own http:// address
            return bool(response.status < 300)  # noqa: PLR2004 - HTTP's classes
    except (OSError, urllib.error.HTTPError):
        return False


def start_vllm(
    options: EngineOptions, log: Path, *, progress: Callable[[float], None] | None = None
) -> Engine:
    """Return a real vLLM that answers ``/health``, or raise ``UnreachableError`` with its log's end."""
    if not vllm_installed():
        raise UsageError(
            "vLLM is not installed here; run `make install`, or take the built-in engine (ENGINE=builtin)"
        )
    port, events, replay = free_port(), free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    process = ChildProcess("vLLM", _argv(options, port, events, replay), log, env=_environment(options))
    try:
        process.wait_until(
            lambda: answers(f"{url}/health"), deadline_seconds=_START_SECONDS, progress=progress
        )
    except BaseException:
        process.stop(grace_seconds=2.0)
        raise
    return Engine(
        name="vllm",
        process=process,
        url=url,
        kv_events=f"tcp://127.0.0.1:{events}",
        kv_replay=f"tcp://127.0.0.1:{replay}",
        options=options,
    )


def _environment(options: EngineOptions) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the override below sets the real size
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "OTEL_SERVICE_NAME": "vllm",
        "OTEL_BSP_SCHEDULE_DELAY": "200",  # milliseconds: spans soon after their request
        "KVSCOPE_OTLP_ENDPOINT": options.otlp_endpoint,
    }


def _argv(options: EngineOptions, port: int, events: int, replay: int) -> list[str]:
    kv_events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events}",  # with a host name in it, vLLM would connect instead of bind
        "replay_endpoint": f"tcp://*:{replay}",
        "topic": "kv",
    }
    flags = {
        "--model": str(options.model),
        "--served-model-name": MODEL_NAME,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": "float32",  # bfloat16 is far slower on processors without it
        "--max-model-len": str(options.max_model_len),
        "--block-size": str(options.block_size),
        "--num-gpu-blocks-override": str(options.blocks),
        "--otlp-traces-endpoint": options.otlp_endpoint,
        "--kv-events-config": json.dumps(kv_events),
        "--kv-cache-metrics-sample": "1.0",
        "--tool-call-parser": "hermes",
    }
    switches = [
        "--enforce-eager",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--enable-auto-tool-choice",
        "--kv-cache-metrics",
    ]
    pairs = [word for flag in flags.items() for word in flag]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *pairs, *switches]
