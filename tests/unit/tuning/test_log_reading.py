"""Request logs become prompts; bad lines are counted and the rest is read."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvscope.errors import UsageError
from kvscope.tuning.logs import read_log, read_prompts

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RECORDING = Path(__file__).parents[2] / "data" / "cache" / "vllm-0.32.0-sequential.jsonl.gz"


def written(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_plain_and_wrapped_bodies(tmp_path: Path) -> None:
    file = written(
        tmp_path / "log.jsonl",
        CHAT,
        {"model": "m", "prompt": "once upon"},
        {"body": CHAT, "sent_at": 50.5, "request_id": "a", "session_id": "s", "tenant": "t", "route": "r"},
        {"request": CHAT, "t_start": 40, "x_request_id": "b", "usage": {"prompt_tokens": 3}},
    )
    read = read_prompts([file])
    assert read.skipped == ()
    first, second, b, a = read.prompts
    assert (first.api, first.request_id, first.arrived_at, first.engine) == ("chat", "log.jsonl:1", 0.0, "m")
    assert (second.api, second.body["prompt"]) == ("completion", "once upon")
    assert (b.request_id, b.arrived_at, b.body) == ("b", 40.0, CHAT)
    assert (a.request_id, a.arrived_at, a.session, a.tenant, a.route) == ("a", 50.5, "s", "t", "r")
    assert first.route.startswith("auto-")
    assert first.sent_body is first.body


@pytest.mark.parametrize(
    "told",
    [
        1_764_417_600,
        "1764417600",
        1_764_417_600_000,
        1_764_417_600_000_000,
        1_764_417_600_000_000_000,
        "2025-11-29T12:00:00Z",
        "2025-11-29T13:00:00+01:00",
        "2025-11-29 12:00:00",
        "20251129T120000Z",
        "2025-11-29T12:00:00.000000000Z",
        "2025-11-29T12:00:00,000+00:00",
        "2025/11/29 12:00:00",
        "Sat, 29 Nov 2025 12:00:00 GMT",
        "Sat, 29 Nov 2025 13:00:00 +0100",
        "29/Nov/2025:12:00:00 +0000",
        "[29/Nov/2025:12:00:00 +0000]",
    ],
)
@pytest.mark.parametrize("key", ["sent_at", "timestamp", "created_at"])
def test_times_in_many_forms(told: Any, key: str, tmp_path: Path) -> None:
    (prompt,) = read_prompts([written(tmp_path / "log", {"body": CHAT, key: told})]).prompts
    assert prompt.arrived_at == 1_764_417_600.0


def test_a_line_without_time_keeps_its_place(tmp_path: Path) -> None:
    lines = [
        {"body": CHAT, "ts": 9, "id": "1"},
        {"body": CHAT, "id": "2"},
        {"body": CHAT, "ts": 10, "id": "3"},
    ]
    read = read_prompts([written(tmp_path / "log", *lines)])
    assert [(each.request_id, each.arrived_at) for each in read.prompts] == [("1", 9), ("2", 9), ("3", 10)]


def test_bad_lines_are_counted_with_number_and_reason(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(
        b"\n".join(
            [
                json.dumps(CHAT).encode(),
                b"not json",
                b"",
                b"[1, 2]",
                b'{"messages": []}',
                b'{"messages": ["hi"]}',
                b'{"prompt": 3}',
                b'\xff\xfe{"prompt": "x"}',
                b"[" * 100_000,
                json.dumps({"body": CHAT, "timestamp": "yesterday"}).encode(),
                json.dumps({"body": CHAT, "timestamp": [1]}).encode(),
                b'{"prompt": "x", "ts": 1' + b"0" * 400 + b"}",
                json.dumps(CHAT).encode(),
            ]
        )
    )
    read = read_prompts([file])
    assert len(read.prompts) == 2
    reasons = {each.line: each.reason for each in read.skipped}
    assert list(reasons) == [2, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert reasons[2].startswith("not JSON")
    assert reasons[4] == "a int and no JSON object"
    assert "of no known form, with the keys messages" in reasons[5]
    assert "ISO 8601" in reasons[10]
    assert all("\n" not in reason for reason in reasons.values())


def test_several_files_name_themselves_and_are_ordered_by_time(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"body": CHAT, "ts": 20}, "oops")
    two = written(tmp_path / "two", {"body": CHAT, "ts": 10})
    empty = written(tmp_path / "empty")
    read = read_prompts([one, two, empty])
    assert [each.request_id for each in read.prompts] == ["two:1", "one:1"]
    assert [(each.origin, each.reason[:8]) for each in read.skipped] == [
        ("one:2", "not JSON"), ("empty:0", "the file"),
    ]  # fmt: skip


def test_a_recording_of_a_real_server(tmp_path: Path) -> None:
    read = read_prompts([RECORDING])
    assert (len(read.prompts), read.skipped) == (160, ())
    assert [each.arrived_at for each in read.prompts] == sorted(each.arrived_at for each in read.prompts)
    assert Counter(each.salt for each in read.prompts)[None] == 153
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(gzip.decompress(RECORDING.read_bytes()))
    assert [each.body for each in read_prompts([plain]).prompts] == [each.body for each in read.prompts]


def test_a_gzip_stream_that_breaks_off_is_read_to_there(tmp_path: Path) -> None:
    whole = RECORDING.read_bytes()
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(whole[: len(whole) // 2])
    read = read_prompts([broken])
    assert 10 < len(read.prompts) < 160
    assert "breaks off" in read.skipped[-1].reason


def test_files_without_requests_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no-such-file cannot be read: No such file") as missing:
        read_prompts([tmp_path / "no-such-file"])
    assert "\n" not in str(missing.value)
    with pytest.raises(UsageError, match="the file is empty"):
        read_prompts([written(tmp_path / "empty")])
    with pytest.raises(UsageError, match=r"no request in .*; broken:1: not JSON"):
        read_prompts([written(tmp_path / "broken", "{", "world")])
    with pytest.raises(UsageError, match=r"holds no \.jsonl"):
        read_prompts([empty_folder(tmp_path)])


def empty_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def test_all_formats_with_text_are_prompts(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    file = written(
        tmp_path / "log.jsonl",
        {"conversations": turns},
        {"system": "be kind", "messages": CHAT["messages"], "max_tokens": 5},
        {"input": "a whole prompt", "output": "an answer"},
        {"body": CHAT, "prompt_token_ids": [1, 2, 3], "usage": {"prompt_tokens": 3}},
        {"timestamp": 0, "hash_ids": [1], "input_length": 512, "output_length": 1},
    )
    read = read_prompts([file])
    texts = [each.body.get("messages", each.body.get("prompt")) for each in read.prompts]
    assert texts[0] == [{"role": "user", "content": "hi"}]
    assert texts[1][0] == {"role": "system", "content": "be kind"}
    assert texts[2] == "a whole prompt"
    assert texts[3] == CHAT["messages"]
    (hashes,) = read.skipped
    assert (hashes.line, hashes.reason.startswith("hashes of blocks")) == (5, True)


def test_zstandard_and_plain_text(tmp_path: Path) -> None:
    file = tmp_path / "log.zst"
    file.write_bytes(zstandard.compress(b"first prompt\nsecond prompt\n"))
    assert [each.body["prompt"] for each in read_prompts([file]).prompts] == ["first prompt", "second prompt"]


def test_hashes_alone_have_no_text(tmp_path: Path) -> None:
    trace = {"timestamp": 0, "hash_ids": [1], "input_length": 512, "output_length": 1}
    with pytest.raises(UsageError, match=r"no text in .*hashes of blocks"):
        read_prompts([written(tmp_path / "trace.jsonl", trace)])


def test_the_block_size_of_a_trace_can_be_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]}\n')
    assert len(read_log([trace], block_size=16).requests) == 1
    with pytest.raises(UsageError, match="block size"):
        read_log([trace])
