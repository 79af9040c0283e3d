"""``kvscope demo``: the whole loop on a tiny model."""

from pathlib import Path
from typing import Any

import click

from kvscope.cli.common import json_option
from kvscope.errors import UsageError


@click.command()
@click.option(
    "--engine",
    type=click.Choice(["vllm", "builtin"]),
    default="vllm",
    show_default=True,
    help="A real vLLM, or the built-in model of it.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Folder for model, store, logs and reports.",
)
@click.option("--dashboard", is_flag=True, help="Leave the dashboard running at the end.")
@json_option
def demo(engine: Any, output: Path, dashboard: bool, as_json: bool) -> int:
    """Trace, explain, suggest, test, promote: on a server that is started for it."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{output} cannot be made a folder: {error.strerror}; name another by -o") from error
    from kvscope.demo.loop import DemoOptions, run_demo

    result = run_demo(DemoOptions(engine=engine, output=output, dashboard=dashboard, as_json=as_json))
    return 0 if result.succeeded else 1
