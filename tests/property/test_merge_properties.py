"""The parts of a request join into the same record in every order, repeated or not."""

import dataclasses
import tempfile
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvscope.model.merge import merge
from kvscope.model.request import MissCause, RequestPart, RequestRecord, Source, Status
from kvscope.pipeline.contracts import Batch
from kvscope.store import rows
from kvscope.store.database import Store
from tests.support.databases import empty_store

TRUST = (Source.GATEWAY, Source.SPAN, Source.PLUGIN, Source.LOG, Source.ANALYSIS)  # of most fields
_INTEGERS = frozenset(
    {
        "prompt_tokens",
        "output_tokens",
        "cached_tokens",
        "preemptions",
        "requests_in_flight",
        "prompt_chars",
    }
)
_TEXTS = frozenset(
    {
        "trace_id",
        "span_id",
        "session",
        "tenant",
        "route",
        "model",
        "engine",
        "replica",
        "finish_reason",
        "prompt_layout",
        "experiment",
        "arm",
    }
)


def _values_of(field: str) -> st.SearchStrategy[Any]:
    if field in _INTEGERS:
        return st.integers(0, 4)
    if field in _TEXTS:
        return st.text(max_size=3)
    if field == "status":
        return st.sampled_from(Status)
    if field == "causes":
        return st.dictionaries(st.sampled_from(list(MissCause)).map(str), st.integers(0, 9), max_size=3)
    if field == "warmup":
        return st.booleans()
    return st.sampled_from([0.0, 0.5, 1.0, float("nan"), float("inf")])


PARTS = st.builds(
    RequestPart,
    request_id=st.just("r"),
    source=st.sampled_from(Source),
    values=st.fixed_dictionaries(
        {}, optional={field: st.none() | _values_of(field) for field in rows.FIELDS}
    ),
    piece=st.sampled_from(["", "a", "b"]),
)


def joined(parts: list[RequestPart]) -> RequestRecord:
    record = RequestRecord(request_id="r")
    for part in parts:
        record = merge(record, part)
    return record


@given(parts=st.lists(PARTS, max_size=6), data=st.data())
def test_order_and_repetition_change_nothing(parts: list[RequestPart], data: st.DataObject) -> None:
    again = parts + [part for part in parts if data.draw(st.booleans())]
    assert joined(data.draw(st.permutations(again))) == joined(parts)


@given(parts=st.lists(PARTS, max_size=6))
def test_a_repeated_part_gives_back_the_same_object(parts: list[RequestPart]) -> None:
    record = joined(parts)
    assert all(merge(record, part) is record for part in parts)


@given(parts=st.lists(PARTS, max_size=4))
def test_each_value_has_a_source_and_none_other_does(parts: list[RequestPart]) -> None:
    record = joined(parts)
    known = {field for field in rows.FIELDS if getattr(record, field) is not None}
    assert record.sources.keys() == known


@given(parts=st.lists(PARTS, min_size=1, max_size=6), data=st.data())
@settings(
    max_examples=30,
    deadline=None,
    # each example has an id of its own
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_store_joins_as_memory_does(
    sqlite_store: Store, parts: list[RequestPart], data: st.DataObject
) -> None:
    number = sqlite_store.reader.span_count() + len(sqlite_store.reader.requests())
    request_id = f"r{number}"
    named = [dataclasses.replace(part, request_id=request_id) for part in parts]
    arrivals = data.draw(st.permutations(named + [part for part in named if data.draw(st.booleans())]))
    expected = RequestRecord(request_id=request_id)
    for part in named:
        expected = merge(expected, rows.clean_part(part)[0])
    while arrivals:
        taken = data.draw(st.integers(1, len(arrivals)))
        split = data.draw(st.integers(0, taken))
        write, arrivals = arrivals[:taken], arrivals[taken:]
        assert sqlite_store.batches.write([Batch(parts=write[:split]), Batch(parts=write[split:])]) == 0
    (stored,) = [one for one in sqlite_store.reader.requests() if one.request_id == request_id]
    assert stored == expected


@given(parts=st.lists(PARTS, max_size=6), other=st.lists(PARTS, max_size=3), data=st.data())
def test_what_differs_from_the_value_taken_is_named_by_its_most_trusted_source(
    parts: list[RequestPart], other: list[RequestPart], data: st.DataObject
) -> None:
    """Beside the definition, by brute force over all that was told of a field."""
    told = data.draw(st.permutations(parts + other))
    record = joined(told)
    for field in ("route", "preemptions", "status", "warmup"):
        values = [(part.source, value) for part in told if (value := part.values.get(field)) is not None]
        differing = {source for source, value in values if value != getattr(record, field)}
        expected = next((source.value for source in TRUST if source in differing), None)
        assert record.conflicts.get(field) == expected


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_any_delivery_leaves_the_same_records_in_the_store(data: st.DataObject) -> None:
    """Parts of several requests: some sources lost, some parts twice, in any order, in any batches."""
    lost = data.draw(st.sets(st.sampled_from(Source), max_size=2))
    ids = st.sampled_from(["r1", "r2", "r3"])
    told = [
        dataclasses.replace(part, request_id=data.draw(ids))
        for part in data.draw(st.lists(PARTS, min_size=1, max_size=8))
        if part.source not in lost
    ]
    expected: dict[str, RequestRecord] = {}
    for part in told:
        expected[part.request_id] = merge(expected.get(part.request_id), rows.clean_part(part)[0])
    with tempfile.TemporaryDirectory() as folder:
        store = empty_store(folder)
        rest = data.draw(st.permutations(told + [part for part in told if data.draw(st.booleans())]))
        while rest:
            cuts = sorted(data.draw(st.lists(st.integers(1, len(rest)), min_size=1, max_size=3)))
            batches = [Batch(parts=rest[begin:end]) for begin, end in zip([0, *cuts[:-1]], cuts, strict=True)]
            assert store.batches.write([batch for batch in batches if len(batch)]) == 0
            rest = rest[cuts[-1] :]
        found = {record.request_id: record for record in store.reader.requests()}
        store.close()
    assert found == expected
