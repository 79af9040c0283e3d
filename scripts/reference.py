"""Writes docs/reference from the code: settings and commands. With --check, says when it is stale."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from kvscope.cli.main import cli
from kvscope.config.load import collector_factories, settings_class

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


def main() -> int:
    """Write the pages, or compare them; the exit code is 1 when one is stale."""
    stale = []
    for name, text in (("settings.md", settings_page()), ("commands.md", commands_page())):
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
