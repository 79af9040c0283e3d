"""However a stream is cut, observing it changes no byte, and taking usage out changes only that."""

from collections.abc import Iterator, Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from collectors.gateway.dialects import DIALECTS
from collectors.gateway.observe import AnswerObserver, StreamObserver
from collectors.gateway.sse import EventSplitter, event_data
from collectors.gateway.usage import UsageStripper
from kvscope.prompts.segments import CHAT
from tests.support.gateway import recording

FRAGMENTS = st.sampled_from(
    [
        b"data: ",
        b"data:",
        b'{"choices":[{"delta":{"content":"x"},"finish_reason":null}]}',
        b'{"choices":[{"delta":{},"finish_reason":"stop"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":3}}',
        b'{"error":{}}',
        b'{"choices":[{"delta":[],"finish_reason":{}}],"usage":{"prompt_tokens":-1}}',
        b"[DONE]",
        b"\n",
        b"\n\n",
        b"\r",
        b"\r\n",
        b"\r\n\r\n",
        b": ping",
        b"event: x",
        b"\xff\x00",
        b"[" * 2000,
    ]
)
STREAMS = st.lists(FRAGMENTS, max_size=25).map(b"".join) | st.binary(max_size=200)
CUTS = st.lists(st.integers(0, 400), max_size=12)


def cut(stream: bytes, places: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for place in sorted(places):
        yield stream[start:place]
        start = max(start, place)
    yield stream[start:]


@given(STREAMS, CUTS, st.sampled_from([5, 50, 2**20]))
def test_pieces_joined_are_the_stream(stream: bytes, places: list[int], limit: int) -> None:
    splitter = EventSplitter(limit)
    pieces = [piece for data in cut(stream, places) for piece in splitter.feed(data)]
    assert b"".join(piece.raw for piece in pieces) + splitter.rest() == stream
    for piece in pieces:
        assert piece.raw
        assert isinstance(event_data(piece.raw), bytes)


@given(STREAMS, CUTS)
def test_cuts_do_not_matter(stream: bytes, places: list[int]) -> None:
    def events(parts: Iterator[bytes]) -> list[bytes]:
        splitter = EventSplitter()
        pieces = [piece.raw for data in parts for piece in splitter.feed(data)]
        return [*pieces, splitter.rest()]

    assert events(cut(stream, places)) == events(iter([stream]))


@given(STREAMS, CUTS, st.booleans())
def test_any_bytes_pass_an_observer_unchanged(stream: bytes, places: list[int], single: bool) -> None:
    observer = StreamObserver(DIALECTS[CHAT], single=single, stripper=None)
    passed = [observer.feed(data, float(at)) for at, data in enumerate(cut(stream, places))]
    assert b"".join(passed) + observer.end() == stream
    assert observer.observed().unread == 0
    document = AnswerObserver(DIALECTS[CHAT], 100)
    assert b"".join(document.feed(data, 0.0) for data in cut(stream, places)) + document.end() == stream
    assert document.observed().first_content_at is None


@given(STREAMS, CUTS, st.booleans(), st.none() | st.text(max_size=3))
def test_only_usage_is_taken_out(
    stream: bytes, places: list[int], may_wait: bool, fingerprint: str | None
) -> None:
    stripper = UsageStripper(may_wait=may_wait, fingerprint=fingerprint)
    observer = StreamObserver(DIALECTS[CHAT], single=may_wait, stripper=stripper)
    passed = b"".join([observer.feed(data, 0.0) for data in cut(stream, places)]) + observer.end()
    if fingerprint is not None:
        passed = passed.replace(b',"system_fingerprint":' + msgspec.json.encode(fingerprint), b"")
    splitter = EventSplitter()
    pieces = [piece.raw for piece in splitter.feed(stream)]
    usage = [raw for raw in pieces if b'"choices":[],"usage"' in raw]
    assert len(passed) <= len(stream)
    kept = [raw for raw in pieces if raw not in usage]
    assert all(raw in passed for raw in kept)
    assert observer.observed().unread == 0


@given(st.lists(st.integers(0, 2000), max_size=10))
def test_a_recorded_stream_is_what_it_is_without_usage_however_it_is_cut(places: list[int]) -> None:
    stripper = UsageStripper(may_wait=True, fingerprint=None)
    observer = StreamObserver(DIALECTS[CHAT], single=True, stripper=stripper)
    bodies = [_dechunked(recording(name)) for name in ("chat_stream", "chat_stream_usage")]
    passed = b"".join([observer.feed(data, 0.0) for data in cut(bodies[1], places)]) + observer.end()
    assert passed == bodies[0]
    assert observer.observed().prompt_tokens == 24


def _dechunked(raw: bytes) -> bytes:
    rest = raw.partition(b"\r\n\r\n")[2]
    parts: list[bytes] = []
    while size := int(rest.partition(b"\r\n")[0], 16):
        start = rest.index(b"\r\n") + 2
        parts.append(rest[start : start + size])
        rest = rest[start + size + 2 :]
    return b"".join(parts)
