"""Writes docs/reference from the code: settings, commands, metrics. With --check, says when it is stale."""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from collectors.prometheus.families import FAMILIES
from kvscope.agent.app import Agent
from kvscope.cli.main import cli
from kvscope.config.load import collector_factories, load_settings, settings_class

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- written by scripts/reference.py; do not edit -->\n"


def settings_page() -> str:
    """Return the page of all settings."""
    lines = [
        NOTE,
        "# Settings",
        "",
        "Of `kvscope agent`. A flag wins over the environment, the environment over the file (`--config`).",
        "In a file a dot is a level of YAML; in the environment `a.b` is `KVSCOPE_A__B`.",
        "",
        "| key | default | meaning |",
        "| --- | --- | --- |",
    ]
    return "\n".join([*lines, *_rows(settings_class(collector_factories().values()), "")]) + "\n"


def _rows(cls: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in cls.model_fields.items():
        annotation: Any = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _rows(annotation, f"{prefix}{name}.")
            continue
        default = (
            "the data directory's `kvscope.db`"
            if name == "db"
            else _shown(field.get_default(call_default_factory=True))
        )
        yield f"| `{prefix}{name}` | {default} | {field.description} |"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple | list):
        return ", ".join(f"`{item}`" for item in value) or "none"
    return f"`{value}`"


def commands_page() -> str:
    """Return the page of all commands."""
    parts = [NOTE, "# Commands\n"]
    root = click.Context(cli, info_name="kvscope")
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        if command is not None:
            parts += _help(command, click.Context(command, info_name=name, parent=root), "##")
    return "\n".join(parts)


def _help(command: click.Command, context: click.Context, level: str) -> Iterator[str]:
    context.terminal_width = context.max_content_width = 100
    yield f"{level} `{context.command_path}`\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from _help(child, click.Context(child, info_name=name, parent=context), level + "#")


def metrics_page() -> str:
    """Return the page of kvscope's own metrics, and of those that it reads of an engine."""
    lines = [
        NOTE,
        "# Metrics",
        "",
        "## kvscope's own",
        "",
        "Served at `/metrics` of the admin port (`admin.port`) in Prometheus' text format.",
        "A counter's samples end in `_total`, a histogram's in `_bucket`, `_sum` and `_count`.",
        "",
        "| name | type | labels | meaning |",
        "| --- | --- | --- | --- |",
        *sorted(_own_metrics()),
        "",
        "## What is read of an engine's page",
        "",
        "vLLM 0.11 to 0.33; values stay apart by server and by the `engine` label, the data-parallel rank.",
        "Buckets are kept every `collectors.prometheus.buckets_seconds`, all else every `interval_seconds`.",
        "Pages of the V0 engine and of 0.8 are refused: their cache counters are not in tokens.",
        "",
        "| name | type | versions |",
        "| --- | --- | --- |",
        *(f"| `vllm:{family.name}` | {family.kind} | {family.versions} |" for family in FAMILIES),
    ]
    return "\n".join(lines) + "\n"


def _own_metrics() -> Iterator[str]:
    factories = collector_factories()
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(None, {"db": f"sqlite:///{folder}/kvscope.db"}, factories.values(), {})
        agent = Agent(settings, factories)
        for metric in agent.registry._collector_to_names:  # noqa: SLF001 - labels are told nowhere else
            one: Any = metric
            labels = ", ".join(f"`{label}`" for label in one._labelnames)  # noqa: SLF001 - as above
            family = next(iter(one.describe()))
            yield f"| `{family.name}` | {family.type} | {labels} | {family.documentation} |"
        asyncio.run(agent.stop())


def main() -> int:
    """Write the pages, or compare them; the exit code is 1 when one is stale."""
    stale = []
    pages = {"settings.md": settings_page(), "commands.md": commands_page(), "metrics.md": metrics_page()}
    for name, text in pages.items():
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.stdout.write(f"docs/reference is stale ({', '.join(stale)}): run `python scripts/reference.py`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
