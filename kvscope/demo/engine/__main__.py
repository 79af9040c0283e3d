"""Runs the built-in engine: ``python -m kvscope.demo.engine --tokenizer DIR --port 8000``."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from kvscope.demo.engine.app import BuiltinEngine
from kvscope.demo.engine.settings import EngineSettings, Timing
from kvscope.errors import KvscopeError
from kvscope.pipeline.listen import AsgiListener, bind


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; one line on stderr and an exit code when it cannot."""
    try:
        asyncio.run(_serve(_settings(argv)))
    except KvscopeError as error:
        print(f"kvscope.demo.engine: {error}", file=sys.stderr)  # noqa: T201 - its command line
        return error.exit_code
    return 0


def _settings(argv: list[str] | None) -> EngineSettings:
    parser = argparse.ArgumentParser(prog="python -m kvscope.demo.engine", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="tiny-builtin", help="name that it is served under")
    parser.add_argument("--block-size", type=int, default=32, help="tokens a block")
    parser.add_argument(
        "--blocks", type=int, default=1_200, help="blocks of the cache, the null block included"
    )
    parser.add_argument(
        "--max-model-len", type=int, default=8_192, help="tokens of prompt and answer together"
    )
    parser.add_argument("--otlp-endpoint", help="gRPC receiver of spans, e.g. http://127.0.0.1:4317")
    parser.add_argument("--kv-events", help="address to publish cache events on, e.g. tcp://127.0.0.1:5557")
    parser.add_argument("--time-scale", type=float, default=1.0, help="multiplies all modelled times")
    given = vars(parser.parse_args(argv))
    return EngineSettings(timing=Timing(scale=given.pop("time_scale")), **given)


async def _serve(settings: EngineSettings) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    listener = bind(settings.host, settings.port, setting="--port")
    engine = BuiltinEngine(settings)
    server = AsgiListener(engine.app, listener, drain_seconds=2.0)
    await server.start()
    try:
        await ended.wait()
    finally:
        await server.stop()
        await asyncio.to_thread(engine.close)


if __name__ == "__main__":
    sys.exit(main())
