"""Whatever a crash or a bad disk leaves in the spool's files, what is whole is read, once, in order."""

import contextlib
import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.model.request import REQUEST_FIELDS, Miss, MissCause, RequestPart, Source, Status
from kvscope.model.telemetry import MetricSample, Span
from kvscope.pipeline.codec import UnreadableError, decode, encode
from kvscope.pipeline.contracts import Batch
from kvscope.pipeline.disklog import DiskLog

RECORDS = st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 9)), max_size=12)
TEXTS = st.text(st.characters(), max_size=12)  # lone surrogates among them
NUMBERS = st.integers() | st.floats(allow_nan=False)
VALUES = st.none() | st.booleans() | NUMBERS | TEXTS
PARTS = st.builds(
    RequestPart,
    request_id=TEXTS,
    source=st.sampled_from(Source),
    values=st.dictionaries(st.sampled_from(sorted(REQUEST_FIELDS - {"status"})), VALUES, max_size=4)
    | st.builds(lambda status: {"status": status}, st.sampled_from(Status)),
    piece=TEXTS,
)
ATTRIBUTES = st.dictionaries(TEXTS, VALUES | st.lists(VALUES, max_size=3), max_size=3)
SPANS = st.builds(
    Span,
    trace_id=TEXTS,
    span_id=TEXTS,
    parent_span_id=st.none() | TEXTS,
    name=TEXTS,
    service=st.none() | TEXTS,
    start_at=st.floats(0, 1e10),
    end_at=st.floats(0, 1e10),
    attributes=ATTRIBUTES,
    resource=ATTRIBUTES,
)
SAMPLES = st.builds(
    MetricSample,
    engine=TEXTS,
    replica=TEXTS,
    name=TEXTS,
    labels=st.dictionaries(TEXTS, TEXTS, max_size=2),
    at=st.floats(0, 1e10),
    value=st.floats(allow_nan=False),
)
MISSES = st.builds(
    Miss, request_id=TEXTS, cause=st.sampled_from(MissCause), tokens=st.integers(0, 2**40), role=TEXTS
)
BATCHES = st.builds(
    Batch,
    parts=st.lists(PARTS, max_size=3),
    spans=st.lists(SPANS, max_size=2),
    samples=st.lists(SAMPLES, max_size=2),
    misses=st.lists(MISSES, max_size=2),
    only_copy=st.booleans(),
)


@given(BATCHES)
def test_a_batch_comes_back_as_it_was(batch: Batch) -> None:
    again = decode(encode(batch))
    assert again == batch
    assert all(isinstance(part.values.get("status", Status.OK), Status) for part in again.parts)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_batch_or_unreadable(data: bytes) -> None:
    with contextlib.suppress(UnreadableError):
        batch = decode(data)
        assert decode(encode(batch)) == batch


def _drained(log: DiskLog, max_items: int = 4) -> tuple[list[tuple[bytes, int]], int]:
    found: list[Any] = []
    damaged = 0
    while (chunk := log.read(max_items=max_items)) is not None:
        found += chunk.records
        damaged += chunk.damaged
        log.done(chunk)
    return found, damaged


@given(records=RECORDS, file_bytes=st.integers(1, 200), split=st.integers(1, 5), again=st.booleans())
def test_records_come_back_once_and_in_order(
    records: list[tuple[bytes, int]], file_bytes: int, split: int, again: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = DiskLog(Path(folder), file_bytes=file_bytes)
        for start in range(0, len(records), split):
            log.append(records[start : start + split], sync=False)
        if again:
            log.close()
            log = DiskLog(Path(folder), file_bytes=file_bytes)
        assert log.items == sum(items for _, items in records)
        assert _drained(log) == (records, 0)
        assert (log.items, log.bytes, list(Path(folder).iterdir())) == (0, 0, [])


@given(records=RECORDS.filter(bool), data=st.data())
def test_a_torn_end_costs_what_was_cut_and_nothing_else(records: list[tuple[bytes, int]], data: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = DiskLog(Path(folder), file_bytes=10_000)
        ends = [0]
        for record in records:
            log.append([record], sync=False)
            ends.append(log.bytes)
        log.close()
        (file,) = Path(folder).iterdir()
        cut = data.draw(st.integers(0, ends[-1]))
        file.write_bytes(file.read_bytes()[:cut])
        whole = sum(end <= cut for end in ends[1:])
        log = DiskLog(Path(folder), file_bytes=10_000)
        log.append([(b"the next", 1)], sync=True)
        found, damaged = _drained(log)
        assert found == [*records[:whole], (b"the next", 1)]
        assert damaged == cut - ends[whole]


@settings(max_examples=200)
@given(records=RECORDS.filter(bool), data=st.data())
def test_a_changed_byte_is_never_taken_for_data(records: list[tuple[bytes, int]], data: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = DiskLog(Path(folder), file_bytes=10_000)
        log.append(records, sync=False)
        log.close()
        (file,) = Path(folder).iterdir()
        raw = bytearray(file.read_bytes())
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
        file.write_bytes(raw)
        found, damaged = _drained(DiskLog(Path(folder), file_bytes=10_000), max_items=math.inf)  # type: ignore[arg-type]
        assert damaged > 0
        remaining = iter(records)
        assert all(record in remaining for record in found), "in order, none of them changed"
