"""``kvscope agent``: runs the sidecar."""

import asyncio
from pathlib import Path
from typing import Any

import click

from kvscope.config.load import check_place, collector_factories, load_settings, make_data_directory


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), help="YAML file; flags and environment win over it."
)
@click.option("--db", metavar="URL", help="Store: sqlite:///FILE or postgresql://USER@HOST/NAME.")
@click.option(
    "--upstream", "upstreams", metavar="URL", multiple=True, help="Base URL of a vLLM server; repeatable."
)
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Folder of the model's tokenizer.")
@click.option("--host", help="Address that the gateway and the receivers listen on.")
@click.option("--gateway-port", type=int, help="Port of the gateway (8800); 0 turns it off.")
@click.option("--otlp-grpc-port", type=int, help="Port of the OTLP gRPC receiver (4317); 0 turns it off.")
@click.option("--otlp-http-port", type=int, help="Port of the OTLP HTTP receiver (4318); 0 turns it off.")
@click.option("--middleware-port", type=int, help="Port of the engines' middleware (8802); 0 turns it off.")
@click.option(
    "--kv-events", "kv_events", metavar="tcp://H:P", multiple=True, help="KV-event socket of a server."
)
@click.option(
    "--metrics-url",
    "metrics_urls",
    metavar="URL",
    multiple=True,
    help="Metrics page, if not UPSTREAM/metrics.",
)
@click.option("--admin-port", type=int, help="Port of health and own metrics (8801); 0 turns it off.")
@click.option("--check", is_flag=True, help="Only validate the configuration.")
def agent(
    config: Path | None,
    db: str | None,
    upstreams: tuple[str, ...],
    tokenizer: Path | None,
    host: str | None,
    gateway_port: int | None,
    otlp_grpc_port: int | None,
    otlp_http_port: int | None,
    middleware_port: int | None,
    kv_events: tuple[str, ...],
    metrics_urls: tuple[str, ...],
    admin_port: int | None,
    check: bool,
) -> None:
    """Run the sidecar: gateway, receivers, analysis, experiments."""
    flags: dict[str, Any] = {
        "db": db,
        "upstreams": upstreams or None,
        "tokenizer": tokenizer,
        "admin": {"port": admin_port},
        "collectors": {
            "gateway": {"host": host, "port": gateway_port},
            "otlp": {"host": host, "grpc_port": otlp_grpc_port, "http_port": otlp_http_port},
            "middleware": {"host": host, "port": middleware_port},
            "prometheus": {"urls": metrics_urls or None},
            "kv_events": {"endpoints": kv_events or None},
        },
    }
    factories = collector_factories()
    settings = load_settings(config, flags, factories.values())
    check_place(settings.db)
    if check:
        from kvscope.prompts.tokenizing import load_tokenizer

        if settings.tokenizer is not None:
            load_tokenizer(settings.tokenizer)
        click.echo("the configuration is valid")
        return
    make_data_directory(settings.db)
    import uvloop

    from kvscope.agent.app import Agent

    async def run() -> None:
        await Agent(settings, factories).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
