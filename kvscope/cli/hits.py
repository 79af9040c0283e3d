"""``kvscope hits``: hit rates and miss causes."""

from typing import Any

import click

from kvscope.cli.common import (
    db_option,
    emit_json,
    emit_table,
    json_option,
    milliseconds,
    opened,
    percent,
    since_at,
    since_option,
)
from kvscope.model.views import HitRow, MissRow


def hit_json(row: HitRow) -> dict[str, Any]:
    """Return a row as ``kvscope hits --json`` shows it."""
    return {
        "key": row.key,
        "requests": row.requests,
        "known_requests": row.known_requests,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "hit_rate": row.hit_rate,
        "ttft_seconds_mean": row.ttft_seconds_mean,
        "causes": dict(row.causes),
    }


def place(row: MissRow) -> str:
    """Say where the prefix breaks."""
    where = row.role or "–"
    if row.message_index is not None:
        where = f"message {row.message_index} ({where})"
    if row.example_char_start is not None:
        where += f", from character {row.example_char_start}"
    return where


@click.command()
@db_option
@json_option
@since_option
@click.option(
    "--by",
    type=click.Choice(["route", "tenant", "model", "arm", "cause"]),
    default="route",
    show_default=True,
    help="What a row stands for.",
)
def hits(db: str | None, as_json: bool, since: str | None, by: Any) -> None:
    """Show hit rates and why the rest missed, in tokens."""
    start = since_at(since)
    with opened(db) as store:
        rows = store.reader.hits(by, since_at=start)
        misses = store.reader.misses(since_at=start)
    if as_json:
        emit_json({"by": by, "rows": [hit_json(row) for row in rows], "places": misses})
        return
    emit_table(
        f"Prefix hits by {by}",
        (
            by,
            "requests",
            "prompt tokens",
            "cached tokens",
            "hit rate",
            "mean TTFT",
            "misses by cause, in tokens",
        ),
        (
            (
                row.key,
                row.requests,
                row.prompt_tokens,
                row.cached_tokens,
                percent(row.hit_rate),
                milliseconds(row.ttft_seconds_mean),
                ", ".join(f"{cause} {tokens:,}" for cause, tokens in _largest_first(row)),
            )
            for row in rows
        ),
        empty="no requests yet",
    )
    broken = [row for row in misses if row.role is not None]
    if broken:
        emit_table(
            "Where prefixes break",
            ("route", "cause", "tokens", "requests", "place", "kind of value", "example request"),
            (
                (
                    row.route,
                    row.cause,
                    row.tokens,
                    row.requests,
                    place(row),
                    row.value_kind,
                    row.example_request_id,
                )
                for row in broken[:20]
            ),
            empty="",
        )


def _largest_first(row: HitRow) -> list[tuple[str, int]]:
    return sorted(((c, n) for c, n in row.causes.items() if n), key=lambda item: -item[1])
