"""Starts a real vLLM server for the demo and the tests: small cache, every signal switched on."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

from kvscope.demo.engines import NO_PROXY, Engine, EngineOptions, answers, free_port
from kvscope.demo.model import MODEL_NAME
from kvscope.demo.process import ChildProcess
from kvscope.errors import UsageError

_START_SECONDS = 600.0


def vllm_installed() -> bool:
    """Return whether vLLM can be imported, without importing it."""
    return importlib.util.find_spec("vllm") is not None


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
    process.ready_or_stop(
        lambda: answers(f"{url}/health"), deadline_seconds=_START_SECONDS, progress=progress
    )
    return Engine(
        name="vllm",
        process=process,
        model=MODEL_NAME,
        url=url,
        kv_events=f"tcp://127.0.0.1:{events}",
        kv_replay=f"tcp://127.0.0.1:{replay}",
        options=options,
    )


def _environment(options: EngineOptions) -> dict[str, str]:
    return NO_PROXY | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the override below sets the real size
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "OTEL_SERVICE_NAME": "vllm",
        "OTEL_BSP_SCHEDULE_DELAY": "200",  # milliseconds: spans soon after their request
        "KVSCOPE_OTLP_ENDPOINT": options.otlp_endpoint,
        "KVSCOPE_MIDDLEWARE_ENDPOINT": options.middleware_endpoint or "",
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
    if options.middleware_endpoint is not None:
        flags["--middleware"] = "collectors.gateway.middleware.Observe"
    pairs = [word for flag in flags.items() for word in flag]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *pairs, *switches]
