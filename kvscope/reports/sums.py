"""Compares the records with the engine's own counter: two ways to count the same cached tokens."""

from kvscope.reports.content import SumLine
from kvscope.store.database import Store


def engine_sums(store: Store) -> tuple[SumLine, ...]:
    """Return one line an engine, its ranks together, over the time that its counters cover."""
    spans: dict[str, tuple[float, float, float]] = {}
    for row in store.reader.counters():
        first, last, tokens = spans.get(row.engine, (row.first_at, row.last_at, 0.0))
        spans[row.engine] = (
            min(first, row.first_at),
            max(last, row.last_at),
            tokens + row.hits + row.external_hits,
        )
    return tuple(_line(store, engine, *spans[engine]) for engine in sorted(spans))


def _line(store: Store, engine: str, first_at: float, last_at: float, counted: float) -> SumLine:
    recorded, unknown = store.reader.cached_tokens_between(engine, first_at, last_at)
    return SumLine(
        engine=engine,
        first_at=first_at,
        last_at=last_at,
        counter_tokens=round(counted),
        record_tokens=recorded,
        unknown_requests=unknown,
        agree=None if unknown and recorded != round(counted) else recorded == round(counted),
    )
