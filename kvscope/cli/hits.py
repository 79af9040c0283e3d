"""``kvscope hits``: hit rates and miss causes."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from kvscope.agent.advising import ttft_predictor
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


def prefill_seconds(
    miss: MissRow, routes: Mapping[str, HitRow], predict: Callable[[int, int], float | None] | None
) -> float | None:
    """Return a miss's share of the prefill time of its route's requests, None where that is not known.

    ``predict`` gives the seconds of a request of so many prompt and cached tokens; that of the route's mean
    request is taken for each, so it is an estimate. ``kvscope causes`` looks at each request.
    """
    row = routes.get(miss.route)
    if predict is None or row is None or row.prompt_tokens <= row.cached_tokens:
        return None
    known = row.known_requests
    each = predict(round(row.prompt_tokens / known), round(row.cached_tokens / known))
    return None if each is None else each * known * miss.tokens / (row.prompt_tokens - row.cached_tokens)


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
        by_route = rows if by == "route" else store.reader.hits("route", since_at=start)
        predict = ttft_predictor(store.advice.models())
    routes = {row.key: row for row in by_route}
    places = [(row, prefill_seconds(row, routes, predict)) for row in misses]
    if as_json:
        told = [dataclasses.asdict(row) | {"prefill_seconds": seconds} for row, seconds in places]
        emit_json({"by": by, "rows": [hit_json(row) for row in rows], "places": told})
        return
    _show(by, rows, places)


def _show(by: str, rows: Iterable[HitRow], places: Iterable[tuple[MissRow, float | None]]) -> None:
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
    broken = [(row, seconds) for row, seconds in places if row.role is not None]
    if broken:
        emit_table(
            "Where prefixes break",
            ("route", "cause", "tokens", "prefill", "requests", "place", "kind of value", "example request"),
            (
                (
                    row.route,
                    row.cause,
                    row.tokens,
                    milliseconds(seconds),
                    row.requests,
                    place(row),
                    row.value_kind,
                    row.example_request_id,
                )
                for row, seconds in broken[:20]
            ),
            empty="",
        )


def _largest_first(row: HitRow) -> list[tuple[str, int]]:
    return sorted(((c, n) for c, n in row.causes.items() if n), key=lambda item: -item[1])
