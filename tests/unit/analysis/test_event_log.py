"""Recorded KV events as JSON lines: decoded, or the frames as a subscriber had them."""

import base64
import gzip
import json
from pathlib import Path

import msgspec
import pytest

from kvscope.analysis.event_log import read_event_log
from kvscope.errors import UsageError
from kvscope.model.telemetry import AllBlocksCleared, BlockRemoved, BlockStored

STORED = {
    "type": "BlockStored",
    "block_hashes": [1],
    "parent_block_hash": None,
    "token_ids": [5, 6],
    "block_size": 2,
    "extra_keys": [["salt", ["image", 0]]],
    "group_idx": 0,
    "medium": "GPU",
}


def frames(payload: object, sequence: int) -> str:
    message = (b"kv", sequence.to_bytes(8, "big"), msgspec.msgpack.encode(payload))
    return json.dumps({"frames": [base64.b64encode(frame).decode() for frame in message]})


def test_decoded_batches_and_frames_of_old_and_new_engines(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl.gz"
    lines = [
        json.dumps({"sequence": 0, "at": 1.5, "events": [STORED, {"type": "AllBlocksCleared"}]}),
        "",
        frames([2.5, [STORED, {"type": "BlockRemoved", "block_hashes": [1]}], 3], 1),
        frames([3.5, [["BlockStored", [1], None, [5, 6], 2, None, "GPU"], ["BlockRemoved", [1]]]], 2),
    ]
    log.write_bytes(gzip.compress("\n".join(lines).encode()))
    first, second, third = read_event_log(log)
    stored = BlockStored(
        block_hashes=(1,),
        parent_block_hash=None,
        token_ids=(5, 6),
        block_size=2,
        extra_keys=(("salt", ("image", 0)),),
        group_idx=0,
        medium="GPU",
    )
    assert (first.sequence, first.at, first.events) == (0, 1.5, (stored, AllBlocksCleared()))
    assert (second.sequence, second.at, second.replica) == (1, 2.5, "3")
    assert second.events == (stored, BlockRemoved(block_hashes=(1,)))
    old = BlockStored(block_hashes=(1,), parent_block_hash=None, token_ids=(5, 6), block_size=2, medium="GPU")
    assert third.events == (old, BlockRemoved(block_hashes=(1,)))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"sequence": 0}',
        '{"frames": ["!"]}',
        '{"sequence": 0, "at": 1, "events": [{"type": "X"}]}',
    ],
)
def test_what_is_no_batch_is_named(tmp_path: Path, line: str) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text("\n" + line)
    with pytest.raises(UsageError, match=r"events\.jsonl:2 is no batch of KV events"):
        read_event_log(log)


def test_an_empty_log(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text("")
    with pytest.raises(UsageError, match="holds no batches"):
        read_event_log(log)
