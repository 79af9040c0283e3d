"""``kvscope dashboard``: opens the Streamlit app."""

import importlib
import subprocess

import click

from kvscope.cli.common import db_option, store_url
from kvscope.config.load import environment_with_db


@click.command()
@db_option
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=8501, show_default=True)
@click.option("--check", is_flag=True, help="Only see to it that the app can start.")
def dashboard(db: str | None, host: str, port: int, check: bool) -> int:
    """Open the dashboard on the store."""
    # the core does not know the edge: the dashboard is found by name, as a plug-in would be
    launch = importlib.import_module("dashboards.launch")
    launch.check()
    if check:
        click.echo("the dashboard can start")
        return 0
    click.echo(f"dashboard: http://{host}:{port}", err=True)
    environment = environment_with_db(store_url(db))
    process = subprocess.Popen(launch.command(None, host, port), env=environment)  # noqa: S603 - our own command
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        return 0
