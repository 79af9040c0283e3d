"""Any payload gives a batch of hashable events or a permanent error."""

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.kv_events.decode import DecodedBatch, decode_payload, decode_reply
from kvscope.errors import PermanentIngestError

# a busy machine is no failure
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

names = st.sampled_from(
    ["type", "BlockStored", "BlockRemoved", "AllBlocksCleared", "block_hashes", "token_ids", "block_size"]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=4)
    | names,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


def _decoded(payload: bytes) -> DecodedBatch | None:
    try:
        return decode_payload(payload)
    except PermanentIngestError:
        return None


@calm
@given(st.binary(max_size=200) | values.map(msgspec.msgpack.encode))
def test_any_payload_is_decoded_or_refused(payload: bytes) -> None:
    batch = _decoded(payload)
    assert batch is None or isinstance(hash(batch), int)


@calm
@given(st.lists(values, max_size=4), st.floats(allow_nan=False, allow_infinity=False))
def test_every_event_of_a_batch_is_accounted_for(events: list[Any], at: float) -> None:
    batch = decode_payload(msgspec.msgpack.encode([at, events]))
    assert batch.taken + batch.skipped + batch.malformed == len(events)


@calm
@given(st.lists(st.binary(max_size=9), max_size=5))
def test_any_reply_is_read_or_refused(frames: list[bytes]) -> None:
    try:
        reply = decode_reply(frames)
    except PermanentIngestError:
        reply = None
    assert reply is None or reply[1] == frames[-1]
