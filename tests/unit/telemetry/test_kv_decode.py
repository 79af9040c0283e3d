"""Event payloads of both encodings, and payloads that are none."""

from typing import Any

import msgspec
import pytest

from collectors.kv_events.decode import decode_payload, decode_reply, decode_sequence
from kvscope.errors import PermanentIngestError
from kvscope.model.telemetry import AllBlocksCleared, BlockRemoved, BlockStored
from tests.support.telemetry import event_frames

END = b"\xff" * 8


def _payload(*events: Any, at: Any = 12.5, rest: tuple[Any, ...] = (0,)) -> bytes:
    return msgspec.msgpack.encode([at, list(events), *rest])


@pytest.mark.parametrize(
    ("version", "batches", "stored", "removed"), [("0.32.0", 217, 189, 1409), ("0.23.0", 160, 135, 949)]
)
def test_recorded_events_decode_without_a_rest(version: str, batches: int, stored: int, removed: int) -> None:
    frames = list(event_frames(version))
    decoded = [decode_payload(payload) for _, _, payload in frames]
    events = [event for batch in decoded for event in batch.events]
    assert [decode_sequence(sequence) for _, sequence, _ in frames] == list(range(batches))
    assert sum(isinstance(event, BlockStored) for event in events) == stored
    assert sum(len(event.block_hashes) for event in events if isinstance(event, BlockRemoved)) == removed
    assert sum(batch.taken for batch in decoded) == stored + removed  # each removal was of one block
    assert sum(batch.skipped + batch.malformed for batch in decoded) == 0
    assert {batch.replica for batch in decoded} == {"0"}


@pytest.mark.parametrize("version", ["0.32.0", "0.23.0"])
def test_recorded_blocks_are_whole_chained_and_never_more_than_the_pool_holds(version: str) -> None:
    cached: set[int | bytes] = set()
    most = 0
    for _, _, payload in event_frames(version):
        for event in decode_payload(payload).events:
            if isinstance(event, BlockStored):
                assert event.block_size == 32
                assert len(event.token_ids) == 32 * len(event.block_hashes)
                assert event.parent_block_hash is None or event.parent_block_hash in cached
                assert event.medium == "GPU"
                cached.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                cached.difference_update(event.block_hashes)
            most = max(most, len(cached))
    assert 250 < most <= 299  # of 300 blocks one is the null block


def test_both_encodings_of_one_event_decode_to_the_same() -> None:
    fields: dict[str, Any] = {
        "block_hashes": [2**64 - 1, b"\x01" * 32],
        "parent_block_hash": 5,
        "token_ids": [1, 2],
        "block_size": 1,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": "l",
        "extra_keys": [["salt", ["mm", 3]], None],
        "group_idx": 1,
    }
    later = {"kv_cache_spec_kind": "full_attention", "kv_cache_spec_sliding_window": None}
    as_map = decode_payload(_payload({"type": "BlockStored", **fields, **later}))
    as_array = decode_payload(_payload(["BlockStored", *fields.values(), *later.values()]))
    assert as_map == as_array
    assert as_map.events == (
        BlockStored(
            block_hashes=(2**64 - 1, b"\x01" * 32),
            parent_block_hash=5,
            token_ids=(1, 2),
            block_size=1,
            medium="CPU",
            lora_name="l",
            group_idx=1,
            extra_keys=(("salt", ("mm", 3)), None),
            kv_cache_spec_kind="full_attention",
        ),
    )


def test_trailing_fields_may_be_left_out() -> None:
    batch = decode_payload(_payload(["BlockStored", [1], None, [7], 1], ["BlockRemoved", [1]], rest=()))
    stored, removed = batch.events
    assert isinstance(stored, BlockStored)
    assert (stored.medium, stored.group_idx, stored.extra_keys) == (None, None, None)
    assert removed == BlockRemoved(block_hashes=(1,))
    assert batch.replica == ""


def test_sglangs_signed_hashes_are_kept_as_they_are() -> None:
    batch = decode_payload(
        _payload({"type": "BlockRemoved", "block_hashes": [-3], "medium": "GPU"}, rest=(2,))
    )
    assert batch.events == (BlockRemoved(block_hashes=(-3,), medium="GPU"),)
    assert batch.replica == "2"


def test_sglangs_maps_decode_with_salt_medium_and_rank() -> None:
    stored = {
        "type": "BlockStored",
        "block_hashes": [-9_000_000_000_000_000_001, 3],
        "parent_block_hash": -5,
        "token_ids": [1, 2],
        "block_size": 1,
        "lora_id": None,
        "medium": "CPU_PINNED",
        "cache_salt": "s",
        "session_id": "one",
    }
    batch = decode_payload(_payload(stored, ["BlockRemoved", [-1], "DISK"], rest=(3,)))
    assert batch.replica == "3"  # attn_dp_rank lies where vLLM's data_parallel_rank does
    assert batch.events == (
        BlockStored(
            block_hashes=(-9_000_000_000_000_000_001, 3),
            parent_block_hash=-5,
            token_ids=(1, 2),
            block_size=1,
            medium="CPU_PINNED",
            extra_keys=(("s",), None),
            session_id="one",
        ),
        BlockRemoved(block_hashes=(-1,), medium="DISK"),
    )


# the fields that each version added to BlockStored, as vllm-facts has them
_ADDED: dict[str, dict[str, Any]] = {
    "0.11": {"lora_id": 3, "medium": "GPU"},
    "0.14": {"lora_name": "l"},
    "0.17": {"extra_keys": [["s", ["image", 5]]]},
    "0.20": {"group_idx": 2},
    "0.22": {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 128},
    "0.26": {"locality": "REMOTE"},
    "0.29": {"ownership": "SHARED"},
    "0.30": {"session_id": "s"},
    "0.33": {"lookahead_token_ids": [8, 9]},
}
_AS_ARRAYS = ("0.11", "0.14", "0.17", "0.20", "0.22")  # and 0.23, which added nothing


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list) else value


@pytest.mark.parametrize("version", _ADDED)
def test_every_field_of_every_version_is_taken(version: str) -> None:
    needed = {"block_hashes": [1], "parent_block_hash": 4, "token_ids": [7], "block_size": 1}
    fields: dict[str, Any] = {}
    for name, added in _ADDED.items():
        fields |= added
        if name == version:
            break
    events = [{"type": "BlockStored", **needed, **fields}]
    if version in _AS_ARRAYS:
        events.append(["BlockStored", *needed.values(), *fields.values()])  # type: ignore[arg-type]
    expected = BlockStored(**{name: _plain(value) for name, value in (needed | fields).items()})
    for event in events:
        batch = decode_payload(_payload(event))
        assert (batch.events, batch.skipped, batch.malformed) == ((expected,), 0, 0)


def test_fields_of_removals_are_taken_and_those_of_one_place_joined() -> None:
    fields = {"medium": "GPU", "group_idx": 2, "locality": "REMOTE", "ownership": "SHARED"}
    removed = [{"type": "BlockRemoved", "block_hashes": [one], **fields} for one in (1, 2)]
    elsewhere = {"type": "BlockRemoved", "block_hashes": [3]}
    batch = decode_payload(_payload(*removed, elsewhere))
    assert batch.taken == 3
    assert batch.events == (
        BlockRemoved(block_hashes=(1, 2), medium="GPU", group_idx=2, locality="REMOTE", ownership="SHARED"),
        BlockRemoved(block_hashes=(3,)),
    )


def test_a_field_of_another_kind_is_taken_as_missing() -> None:
    """A later version may change an optional field; the block is there all the same."""
    fields = {"block_hashes": [1], "token_ids": [7], "block_size": 1, "medium": 5, "group_idx": True}
    batch = decode_payload(_payload({"type": "BlockStored", **fields, "extra_keys": "x"}, rest=(True,)))
    assert batch.events == (
        BlockStored(block_hashes=(1,), parent_block_hash=None, token_ids=(7,), block_size=1),
    )
    assert (batch.malformed, batch.replica) == (0, "")


def test_unknown_types_are_skipped_and_broken_events_left_out() -> None:
    batch = decode_payload(
        _payload(
            {"type": "BlockPromoted", "block_hashes": [1]},
            ["Later"],
            7,
            {"type": "BlockStored", "block_hashes": [1.5], "token_ids": [], "block_size": 1},
            {"type": "BlockStored", "block_hashes": [1], "token_ids": ["a"], "block_size": 1},
            {"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 0},
            {"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": True},
            {"type": "BlockRemoved"},
            {"type": "AllBlocksCleared"},
            ["AllBlocksCleared"],
        )
    )
    assert batch.events == (AllBlocksCleared(), AllBlocksCleared())
    assert (batch.taken, batch.skipped, batch.malformed) == (2, 3, 5)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode(None),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([float("nan"), []]),
        msgspec.msgpack.encode([1.0, {}]),
    ],
)
def test_other_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(PermanentIngestError):
        decode_payload(payload)


def test_replies_of_both_forms_are_read() -> None:
    number = (7).to_bytes(8, "big")
    assert decode_reply([b"", number, b"p"]) == (7, b"p")  # to 0.25
    assert decode_reply([b"", b"kv", number, b"p"]) == (7, b"p")  # from 0.26
    assert decode_reply([b"", b"", number, b"p"]) == (7, b"p")
    assert decode_reply([b"", END, b""]) is None
    assert decode_reply([b"", b"", END, b""]) is None


@pytest.mark.parametrize("frames", [[], [b""], [b"", b"a"], [b"", b"x", b"p"], [b"a", b"b", b"c", b"d"]])
def test_other_replies_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(PermanentIngestError):
        decode_reply(frames)


@pytest.mark.parametrize("frame", [b"", b"1", b"123456789", END])
def test_other_sequence_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(PermanentIngestError):
        decode_sequence(frame)
