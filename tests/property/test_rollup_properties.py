"""Whatever is written, in whatever order, and whenever minutes are rolled up: answers are of the requests."""

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from kvscope.model.request import Miss, MissCause, RequestPart, RequestRecord, Source
from kvscope.model.views import HitRow, SpreadRow, TimelineRow
from kvscope.pipeline.contracts import Batch
from kvscope.store import schema
from kvscope.store.database import Store
from kvscope.store.reader import UNKNOWN_KEY
from kvscope.store.sketches import ACCURACY
from kvscope.store.totals import Grouping
from tests.support.databases import empty_store

# on and around the ends of minutes, and where no clock goes
TIMES = st.one_of(
    st.sampled_from([0.0, 59.999, 60.0, 119.5, 120.0, 600.0, -1.0, 1e11, 1e15]),
    st.floats(0.0, 900.0),
)
NAMES = st.sampled_from(["a", "b", None])
SECONDS = st.one_of(st.none(), st.floats(0.0, 50.0), st.just(0.0))
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "arrived_at": TIMES,
        "route": NAMES,
        "tenant": NAMES,
        "model": NAMES,
        "experiment": st.sampled_from(["e", None]),
        "arm": NAMES,
        "prompt_tokens": st.integers(0, 2**31 - 1),
        "cached_tokens": st.integers(0, 1_000),
        "ttft_seconds": SECONDS,
        "ttft_client_seconds": SECONDS,
        "tpot_seconds": SECONDS,
        "causes": st.dictionaries(st.sampled_from(["cold", "diverged"]), st.integers(0, 100)),
    },
)
IDS = st.sampled_from([f"r{number}" for number in range(8)])
PARTS = st.builds(
    RequestPart,
    request_id=IDS,
    source=st.sampled_from([Source.GATEWAY, Source.SPAN, Source.PLUGIN]),
    values=VALUES,
)
MISSES = st.builds(
    Miss,
    request_id=IDS,
    cause=st.sampled_from([MissCause.COLD, MissCause.DIVERGED]),
    tokens=st.integers(1, 20),
    role=st.sampled_from(["user", None]),
    message_index=st.sampled_from([0, None]),
    char_start=st.integers(0, 3),
)
BATCHES = st.builds(
    Batch,
    parts=st.lists(PARTS, min_size=1, max_size=4),
    misses=st.lists(MISSES, max_size=4),
)
STEPS = st.lists(
    st.one_of(
        BATCHES,
        st.floats(0.0, 2_000.0).map(lambda now: ("roll up", now)),
        st.sampled_from([30.0, 60.0, 130.0]).map(lambda before: ("prune", before)),
    ),
    min_size=1,
    max_size=10,
)
WINDOWS = st.tuples(
    st.one_of(st.none(), st.floats(-100.0, 1_000.0), st.sampled_from([0.0, 60.0, 120.0])),
    st.one_of(st.none(), st.floats(-100.0, 1_000.0), st.sampled_from([60.0, 120.0, 1e12])),
)

KEYS = st.lists(
    st.sampled_from(["route", "tenant", "model", "arm", "total"]), min_size=1, max_size=2, unique=True
)


def key_of(by: str, record: RequestRecord) -> str | None:
    if by == "total":
        return "total"
    if by == "arm":
        return f"{record.experiment}/{record.arm or UNKNOWN_KEY}" if record.experiment else None
    return getattr(record, by) or UNKNOWN_KEY


def inside(record: RequestRecord, since_at: float | None, until_at: float | None) -> bool:
    if record.arrived_at is None:
        return since_at is None and until_at is None
    return (since_at is None or record.arrived_at >= since_at) and (
        until_at is None or record.arrived_at < until_at
    )


def mean(values: Sequence[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return pytest.approx(sum(known) / len(known), abs=1e-9) if known else None


def plain_hits(records: Sequence[RequestRecord], key: str) -> HitRow:
    """What a row says, by plain Python over the records."""
    known = [r for r in records if r.prompt_tokens is not None and r.cached_tokens is not None]
    causes: dict[str, int] = {}
    for record in known:
        for cause, tokens in (record.causes or {}).items():
            causes[cause] = causes.get(cause, 0) + tokens
    return HitRow(
        key=key,
        requests=len(records),
        known_requests=len(known),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in known),
        cached_tokens=sum(record.cached_tokens or 0 for record in known),
        ttft_seconds_mean=mean([record.ttft_seconds for record in records]),
        causes={cause: tokens for cause, tokens in causes.items() if tokens},
    )


def plain_causes(records: Sequence[RequestRecord]) -> dict[str, HitRow]:
    """The rows by cause: over the requests that have it, with its tokens alone."""
    found = {}
    for cause in ("cold", "diverged"):
        own = [record for record in records if (record.causes or {}).get(cause)]
        row = plain_hits(own, cause)
        if own:
            found[cause] = dataclasses.replace(row, causes={cause: row.causes.get(cause, 0)})
    return found


def plain_conflicts(records: Sequence[RequestRecord]) -> Counter[tuple[str, str, str]]:
    return Counter(
        (field, record.sources[field], other)
        for record in records
        for field, other in record.conflicts.items()
        if other != record.sources[field]
    )


def plain_misses(
    store: Store, records: Sequence[RequestRecord], *, orphans: bool
) -> dict[tuple[Any, ...], tuple[int, int, str]]:
    """Requests, tokens and the example of each place, by plain Python over the misses."""
    route_of = {record.request_id: record.route or UNKNOWN_KEY for record in records}
    everyone = {record.request_id for record in store.reader.requests()}
    places: dict[tuple[Any, ...], list[Any]] = {}
    with store.engines.reading() as connection:
        for miss in connection.execute(select(schema.misses)):
            if miss.request_id in route_of or (orphans and miss.request_id not in everyone):
                route = route_of.get(miss.request_id, UNKNOWN_KEY)
                place = (route, miss.cause, miss.role, miss.message_index, miss.value_kind)
                places.setdefault(place, []).append(miss)
    return {
        place: (
            len({miss.request_id for miss in own}),
            sum(miss.tokens for miss in own),
            min(own, key=lambda miss: (-miss.tokens, miss.request_id, miss.ordinal)).request_id,
        )
        for place, own in places.items()
    }


def grouped(records: Sequence[RequestRecord], key: Any) -> dict[Any, list[RequestRecord]]:
    groups: dict[Any, list[RequestRecord]] = {}
    for record in records:
        if (found := key(record)) is not None:
            groups.setdefault(found, []).append(record)
    return groups


def assert_answers_are_those_of_the_records(
    store: Store, keys: Sequence[Grouping], window: tuple[float | None, float | None]
) -> None:
    since_at, until_at = window
    everything = store.reader.requests()
    records = [record for record in everything if inside(record, since_at, until_at)]
    for by in keys:
        groups = grouped(records, lambda record, by=by: key_of(by, record))
        found = store.reader.hits(by, since_at=since_at, until_at=until_at)
        assert {row.key: row for row in found} == {key: plain_hits(own, key) for key, own in groups.items()}
        assert [row.prompt_tokens for row in found] == sorted((r.prompt_tokens for r in found), reverse=True)
    for row in store.reader.ttft("route", since_at=since_at, until_at=until_at):
        assert_spread(row, [record for record in records if key_of("route", record) == row.key])
    by_cause = store.reader.hits("cause", since_at=since_at, until_at=until_at)
    assert {row.key: row for row in by_cause} == plain_causes(records)
    since = [record for record in everything if inside(record, since_at, None)]
    conflicts = store.reader.conflicts(since_at=since_at)
    assert {(r.field, r.source, r.other): r.requests for r in conflicts} == plain_conflicts(since)
    misses = {
        (r.route, r.cause, r.role, r.message_index, r.value_kind): (
            r.requests,
            r.tokens,
            r.example_request_id,
        )
        for r in store.reader.misses(since_at=since_at)
    }
    assert misses == plain_misses(store, since, orphans=since_at is None)
    timed = [
        r for r in everything if r.arrived_at is not None and (since_at is None or r.arrived_at >= since_at)
    ]
    timed = [r for r in timed if r.arrived_at is not None and r.arrived_at >= 0]
    for bucket in (60.0, 300.0, 7.0):
        groups = grouped(
            timed, lambda r, bucket=bucket: (r.arrived_at // bucket * bucket, key_of("route", r))
        )
        expected = [plain_bucket(at, route, groups[at, route]) for at, route in sorted(groups)]
        found_rows = [
            row for row in store.reader.timeline(bucket_seconds=bucket, since_at=since_at) if row.at >= 0
        ]
        if not any(r.arrived_at is not None and r.arrived_at < 0 for r in everything):
            assert found_rows == expected


def plain_bucket(at: float, route: str, records: Sequence[RequestRecord]) -> TimelineRow:
    row = plain_hits(records, route)
    return TimelineRow(
        at=at,
        route=route,
        requests=row.requests,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        ttft_seconds_mean=row.ttft_seconds_mean,
        tpot_seconds_mean=mean([record.tpot_seconds for record in records]),
    )


def assert_spread(row: SpreadRow, records: Sequence[RequestRecord]) -> None:
    field = "ttft_seconds" if row.source == "engine" else "ttft_client_seconds"
    values = [value for record in records if (value := getattr(record, field)) is not None]
    assert row.requests == len(values)
    for rank, found in ((0.5, row.p50), (0.95, row.p95)):
        exact = float(np.quantile(values, rank, method="lower"))
        assert found == pytest.approx(exact, rel=ACCURACY * 1.0001, abs=1e-300)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS, keys=KEYS, windows=st.lists(WINDOWS, min_size=1, max_size=2))
def test_answers_are_those_of_the_requests(
    steps: list[Any], keys: list[Grouping], windows: list[tuple[float | None, float | None]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = empty_store(folder)
        for step in steps:
            if isinstance(step, Batch):
                store.batches.write([step])
            elif step[0] == "roll up":
                store.rollups.refresh(step[1])
            else:
                store.retention.prune(step[1])
        for window in [(None, None), *windows]:
            assert_answers_are_those_of_the_records(store, keys, window)
        store.rollups.refresh(1e10)
        for window in [(None, None), *windows]:
            assert_answers_are_those_of_the_records(store, keys, window)
        store.close()
