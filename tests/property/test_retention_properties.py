"""Whatever an engine went through and whenever the store is pruned: its sums stay what they were."""

import tempfile
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.model.request import RequestPart, Source
from kvscope.model.telemetry import MetricSample
from kvscope.pipeline.contracts import Batch
from kvscope.reports.sums import engine_sums
from kvscope.store.counters import HITS, PROCESS_START, QUERIES
from kvscope.store.retention import Retention
from tests.support.databases import empty_store

EVENTS = st.lists(
    st.tuples(st.sampled_from(["request", "request", "scrape", "scrape", "restart"]), st.integers(0, 50)),
    min_size=1,
    max_size=30,
)


def life(events: Sequence[tuple[str, int]], *, engine: str, tells_start: bool) -> Batch:
    """What the store gets of an engine whose life is ``events``, one a second."""
    parts: list[RequestPart] = []
    samples: list[MetricSample] = []
    counted, started_at = 1_000, 0.25
    for second, (event, tokens) in enumerate(events, start=1):
        at = float(second)
        if event == "restart":
            counted, started_at = 0, at
        elif event == "request":
            counted += tokens
            values = {"engine": engine, "arrived_at": at, "cached_tokens": tokens or None}
            parts.append(RequestPart(request_id=f"{engine}{second}", source=Source.SPAN, values=values))
        else:
            told = {QUERIES: 2.0 * counted, HITS: float(counted)}
            told |= {PROCESS_START: started_at} if tells_start else {}
            samples += [
                MetricSample(engine=engine, replica="", name=name, labels={}, at=at, value=value)
                for name, value in told.items()
            ]
    return Batch(parts=parts, samples=samples)


@settings(max_examples=30, deadline=None)
@given(
    first=EVENTS,
    second=EVENTS,
    tells_start=st.booleans(),
    cutoffs=st.lists(st.integers(0, 35), min_size=1, max_size=4),
    rows=st.integers(1, 5),
)
def test_pruning_leaves_the_sums_of_engines_that_are_still_heard(
    first: list[tuple[str, int]],
    second: list[tuple[str, int]],
    tells_start: bool,
    cutoffs: list[int],
    rows: int,
) -> None:
    batches = [
        life(first, engine="a", tells_start=tells_start),
        life(second, engine="b", tells_start=tells_start),
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = empty_store(folder)
        store.batches.write(batches)
        counters, sums = store.reader.counters(), engine_sums(store)
        last_heard = {batch.samples[0].engine: batch.samples[-1].at for batch in batches if batch.samples}
        for cutoff in sorted(cutoffs):
            Retention(store.engines, rows=rows).prune(float(cutoff))
            heard = {engine for engine, at in last_heard.items() if at >= cutoff}
            assert store.reader.counters() == [row for row in counters if row.engine in heard]
            assert engine_sums(store) == tuple(row for row in sums if row.engine in heard)
            kept = [record.arrived_at for record in store.reader.requests()]
            assert all(at is not None and at >= cutoff for at in kept)
        store.close()
