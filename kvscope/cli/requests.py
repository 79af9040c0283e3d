"""``kvscope requests``: the newest records."""

import click

from kvscope.cli.common import (
    db_option,
    emit_json,
    emit_table,
    json_option,
    milliseconds,
    opened,
    since_at,
    since_option,
)
from kvscope.clock import iso


@click.command()
@db_option
@json_option
@since_option
@click.option("--last", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="How many.")
@click.option("--route", help="Only this route.")
def requests(db: str | None, as_json: bool, since: str | None, last: int, route: str | None) -> None:
    """Show the newest request records, oldest first."""
    with opened(db) as store:
        records = store.reader.requests(last=last, since_at=since_at(since), route=route)
    if as_json:
        emit_json(records)
        return
    emit_table(
        "Requests",
        (
            "arrived",
            "request",
            "route",
            "status",
            "prompt",
            "cached",
            "output",
            "TTFT",
            "TPOT",
            "queue",
            "prefill",
            "decode",
            "arm",
        ),
        (
            (
                iso(record.arrived_at) if record.arrived_at is not None else None,
                _cut(record.request_id),
                record.route,
                record.status.value if record.status else None,
                record.prompt_tokens,
                record.cached_tokens,
                record.output_tokens,
                milliseconds(record.ttft_seconds or record.ttft_client_seconds),
                milliseconds(record.tpot_seconds),
                milliseconds(record.queue_seconds),
                milliseconds(record.prefill_seconds),
                milliseconds(record.decode_seconds),
                record.arm,
            )
            for record in records
        ),
        empty="no requests yet: send some through the gateway, or let vLLM send its spans to the agent",
    )


_ID_SHOWN = 64


def _cut(request_id: str) -> str:
    """Return an id for a column: what a client may choose can be as long as a header."""
    return request_id if len(request_id) <= _ID_SHOWN else request_id[: _ID_SHOWN - 1] + "…"
