"""``kvscope dashboard``: opens the Streamlit app."""

import importlib
import os

import click

from kvscope.agent.asking import DEFAULT_AGENT
from kvscope.cli.common import db_option, store_url
from kvscope.config.load import environment_with_db


@click.command()
@db_option
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=8501, show_default=True)
@click.option(
    "--agent",
    metavar="URL",
    default=DEFAULT_AGENT,
    show_default=True,
    help="The agent's admin port: it knows why a route gets no suggestion.",
)
@click.option("--check", is_flag=True, help="Only see to it that the app can start.")
def dashboard(db: str | None, host: str, port: int, agent: str, check: bool) -> None:
    """Open the dashboard on the store."""
    # the core does not know the edge: the dashboard is found by name, as a plug-in would be
    launch = importlib.import_module("dashboards.launch")
    launch.check()
    if check:
        click.echo("the dashboard can start")
        return
    environment = environment_with_db(store_url(db))
    from kvscope.pipeline.listen import bind

    bind(host, port, setting="--port").close()
    click.echo(f"dashboard: http://{f'[{host}]' if ':' in host else host}:{port}", err=True)
    command = launch.command(None, host, port, agent=agent)
    # in our place, not as a child: a signal to this process ends the server, nothing is left behind
    os.execvpe(command[0], command, environment)  # noqa: S606 - our own command
