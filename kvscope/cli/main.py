"""The entry point: finds the command, runs it, turns errors into one line and an exit code."""

import errno
import importlib
import io
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from kvscope import __version__
from kvscope.errors import KvscopeError

# a command is imported when it is called: `kvscope --help` loads nothing heavy
_COMMANDS = {
    "agent": ("kvscope.cli.agent", "agent", "Run the sidecar."),
    "answers": ("kvscope.cli.answers", "answers", "What a change of prompts does to a server's answers."),
    "batch": ("kvscope.cli.batch", "batch", "Order an offline batch so that it reuses the cache."),
    "causes": ("kvscope.cli.causes", "causes", "Why the prompt tokens of log files missed."),
    "dashboard": ("kvscope.cli.dashboard", "dashboard", "Open the Streamlit dashboard."),
    "db": ("kvscope.cli.db", "db", "Upgrade, check or prune the store."),
    "demo": ("kvscope.cli.demo", "demo", "Run the whole loop on a tiny model."),
    "doctor": ("kvscope.cli.doctor", "doctor", "Say what works, what is missing and whether sums agree."),
    "entropy": ("kvscope.cli.entropy", "entropy", "Entropies of prompts, and where they begin to vary."),
    "experiment": ("kvscope.cli.experiment", "experiment", "Create, start, stop, promote experiments."),
    "export": ("kvscope.cli.export", "export", "Logs and traces as hashes for other tools, without text."),
    "fit": ("kvscope.cli.fit", "fit", "Fit the latency models."),
    "grid": ("kvscope.cli.grid", "grid", "What many caches would have hit, also on a Ray cluster."),
    "hits": ("kvscope.cli.hits", "hits", "Hit rates and miss causes."),
    "import": ("kvscope.cli.import_", "import_command", "Logs and traces into the store."),
    "layout": ("kvscope.cli.layout", "layout", "Check, render and compare prompt layouts."),
    "predict": ("kvscope.cli.fit", "predict", "Predict a latency with the fitted models."),
    "replay": ("kvscope.cli.replay", "replay", "What log files and traces would have hit."),
    "report": ("kvscope.cli.report", "report", "Write the tuning report."),
    "requests": ("kvscope.cli.requests", "requests", "Show the newest request records."),
    "size": ("kvscope.cli.size", "size_command", "What a model's KV cache takes, and how many requests fit."),
    "suggest": ("kvscope.cli.suggest", "suggest", "Ranked suggestions, from the store or from log files."),
    "tokens": ("kvscope.cli.tokens", "tokens", "Token counts of a text, side by side."),
}


_NOWHERE = Path(os.devnull)
_NO_PLACE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT})
"""What a file system says where nothing may or can be written."""


class _LazyGroup(click.Group):
    """A group that knows its commands by name and loads one when it is needed."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # without its number, by which click would exit with 1, which says that a check does not hold
            raise BrokenPipeError from None

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, _, short) in _COMMANDS.items()])


@click.group(cls=_LazyGroup)
@click.version_option(__version__, prog_name="kvscope")
@click.option("--verbose", "-v", is_flag=True, help="Log more.")
def cli(verbose: bool) -> None:
    """Trace, explain and improve prefix-cache reuse of vLLM servers."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for chatty in ("alembic", "asyncio", "aiohttp.access", "uvicorn.error", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; exit codes: 0 done, 1 check fails, 2 wrong input, 3 unreachable."""
    sys.stdout = sys.stdout or _NOWHERE.open("w", encoding="utf-8")  # None where it is closed
    sys.stderr = sys.stderr or _NOWHERE.open("w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale may have no dash and no umlaut
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(arguments, standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        # click's own text takes several lines; the first says it all but for the way out
        where = f"{error.ctx.command_path}: " if isinstance(error, click.UsageError) and error.ctx else ""
        hint = " (see --help)" if where else ""
        click.echo(f"{where}{error.format_message()}{hint}", err=True)
        sys.exit(2)
    except KvscopeError as error:
        click.echo(f"kvscope: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        click.echo(
            f"kvscope: cannot write {error.filename or 'a file'}: {error.strerror};"
            " make that place writable, or name another one",
            err=True,
        )
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)
