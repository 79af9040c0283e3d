"""Each format is told by its content; a bad line is counted with its place and the rest is read."""

import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvscope.analysis.formats.detect import read
from kvscope.analysis.formats.records import BadLine, BlockIds, Body, LoggedRequest, TokenIds
from kvscope.errors import UsageError

TRACES = Path(__file__).parents[2] / "data" / "traces"
RECORDING = Path(__file__).parents[2] / "data" / "cache" / "vllm-0.32.0-sequential.jsonl.gz"
MOONCAKE = {"timestamp": 1500, "input_length": 1000, "output_length": 7, "hash_ids": [4, 5]}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def written(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def requests(*paths: Path, **options: Any) -> list[LoggedRequest]:
    found = list(read(paths, **options))
    assert [each for each in found if isinstance(each, BadLine)] == []
    return [each for each in found if isinstance(each, LoggedRequest)]


def bad(*paths: Path, **options: Any) -> list[tuple[int, str]]:
    return [(each.line, each.reason) for each in read(paths, **options) if isinstance(each, BadLine)]


def test_mooncake_lines_hold_blocks_of_512_and_milliseconds() -> None:
    found = requests(TRACES / "mooncake-conversation-300.jsonl")
    assert len(found) == 300
    first = found[0]
    assert isinstance(first.prompt, BlockIds)
    assert (list(first.prompt.ids), first.prompt.block_size) == (list(range(14)), 512)
    assert (first.prompt_tokens, first.output, first.at) == (6758, 500, 0.0)
    assert found[0].request_id == "mooncake-conversation-300.jsonl:1"
    assert found[-1].at == pytest.approx(json.loads(_last_line())["timestamp"] / 1000)


def _last_line() -> str:
    return (TRACES / "mooncake-conversation-300.jsonl").read_text().splitlines()[-1]


def test_bailian_lines_hold_blocks_of_16_and_seconds(tmp_path: Path) -> None:
    turn = {
        "chat_id": 159,
        "parent_chat_id": -1,
        "timestamp": 61.114,
        "input_length": 33,
        "output_length": 132,
        "type": "text",
        "turn": 1,
        "hash_ids": [9, 8, 7],
    }
    (found,) = requests(written(tmp_path / "qwen.jsonl", turn))
    assert isinstance(found.prompt, BlockIds)
    assert (found.prompt.block_size, found.at, found.request_id) == (16, 61.114, "chat-159")


def test_sessions_hold_their_sub_agents_requests_at_their_times() -> None:
    found = requests(TRACES / "weka-subagents.json")
    assert len(found) == 13
    by_id = {each.request_id: each for each in found}
    assert by_id["trace_0282/2/1"].at == pytest.approx(272.112 + 4.0)
    prompts = [each.prompt for each in found]
    assert all(isinstance(each, BlockIds) and each.block_size == 64 for each in prompts)
    assert len({each.scope for each in prompts if isinstance(each, BlockIds)}) == 1
    assert {each.session for each in found} == {"trace_0282"}


def test_ids_that_are_local_to_a_file_have_its_scope() -> None:
    scopes = {
        each.prompt.scope
        for each in requests(TRACES / "weka-session.json", TRACES / "weka-subagents.json")
        if isinstance(each.prompt, BlockIds)
    }
    assert len(scopes) == 2


def test_a_session_over_many_lines(tmp_path: Path) -> None:
    document = json.loads((TRACES / "weka-session.json").read_text())
    file = tmp_path / "session.json"
    file.write_text(json.dumps(document, indent=1))
    assert len(requests(file)) == 3


def test_recordings_hold_the_engines_tokens_and_counts() -> None:
    found = requests(RECORDING)
    assert len(found) == 160
    assert all(isinstance(each.prompt, TokenIds) and each.finished_at for each in found)
    assert sum(each.cached_tokens or 0 for each in found) == 45_728
    assert sum(each.prompt_tokens or 0 for each in found) == 101_894
    assert any(each.salt for each in found)


def test_wrapped_bodies_tell_what_stands_beside_them(tmp_path: Path) -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    file = written(
        tmp_path / "log",
        CHAT,
        {"body": CHAT, "sent_at": "2025-11-29T12:00:00Z", "request_id": "a", "usage": usage},
        {"request": CHAT | {"prompt_logprobs": 1}, "response": {"usage": usage}, "t_start": 5, "e2e": 2.5},
        {"prompt": "once", "prompt_tokens_details": None},
    )
    plain, wrapped, answered, completion = requests(file)
    assert (plain.at, plain.cached_tokens, plain.output, plain.model) == (None, None, None, "m")
    assert (wrapped.at, wrapped.prompt_tokens, wrapped.output) == (1_764_417_600.0, 9, 4)
    assert wrapped.cached_tokens == 0
    assert (answered.finished_at, answered.prompt_tokens, answered.lookup) == (7.5, 9, False)
    assert isinstance(completion.prompt, Body)
    assert completion.prompt.api == "completion"


def test_agent_traces_and_plain_text(tmp_path: Path) -> None:
    trace = {"timestamp": 1_760_428_436_442_742, "input": "long text", "output": "x", "session_id": "s"}
    (found,) = requests(written(tmp_path / "trace.jsonl", trace))
    assert found.session == "s"
    assert found.at == pytest.approx(1_760_428_436.442742)
    assert isinstance(found.prompt, Body)
    assert found.prompt.body == {"prompt": "long text", "add_special_tokens": False}
    first, second = requests(written(tmp_path / "lines.txt", "first prompt", "", "[second] prompt"))
    assert isinstance(second.prompt, Body)
    assert (first.request_id, second.request_id) == ("lines.txt:1", "lines.txt:3")
    assert second.prompt.body["prompt"] == "[second] prompt"


def test_conversations_of_sharegpt_are_a_request_for_each_answer(tmp_path: Path) -> None:
    turns = [
        {"from": "system", "value": "s"},
        {"from": "human", "value": "q1"},
        {"from": "gpt", "value": "a1"},
        {"from": "human", "value": "q2"},
        {"from": "gpt", "value": "a2"},
    ]
    good = {"id": "c", "conversations": turns}
    file = tmp_path / "sharegpt.json"
    for text in (json.dumps([good]), json.dumps([good], indent=1), json.dumps(good)):
        file.write_text(text)
        first, second = requests(file)
        assert (first.request_id, second.request_id, second.session) == ("c/2", "c/4", "c")
        assert isinstance(second.prompt, Body)
        assert [each["content"] for each in second.prompt.body["messages"]] == ["s", "q1", "a1", "q2"]
        assert second.prompt.body["messages"][2]["role"] == "assistant"
    file.write_text(json.dumps([{"conversations": [{"from": "nobody", "value": "x"}]}, 7, good]))
    assert [line for line, _ in bad(file)] == [1, 1]
    assert sum(isinstance(each, LoggedRequest) for each in read([file])) == 2


def test_anthropic_bodies_become_chat_bodies(tmp_path: Path) -> None:
    body = {
        "model": "m",
        "system": [{"type": "text", "text": "be brief"}],
        "tools": [{"name": "now", "description": "time", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "when?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "let me look"},
                    {"type": "tool_use", "id": "t1", "name": "now", "input": {"zone": "é"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "12:00"}],
                    },
                    {"type": "text", "text": "well?"},
                ],
            },
        ],
    }
    (found,) = requests(written(tmp_path / "log", {"request": body, "sent_at": 5}))
    assert isinstance(found.prompt, Body)
    converted = found.prompt.body
    call = {"id": "t1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "é"}'}}
    assert converted["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "when?"},
        {"role": "assistant", "content": "let me look", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "12:00"},
        {"role": "user", "content": "well?"},
    ]
    function = {"name": "now", "description": "time", "parameters": {"type": "object"}}
    assert converted["tools"] == [{"type": "function", "function": function}]
    assert "system" not in converted
    (plain,) = requests(written(tmp_path / "log", CHAT))
    assert isinstance(plain.prompt, Body)
    assert plain.prompt.body == CHAT


def test_bad_lines_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    file = written(
        tmp_path / "trace",
        MOONCAKE,
        "{",
        "7",
        {"a": 1},
        MOONCAKE | {"hash_ids": [4, None]},
        MOONCAKE | {"hash_ids": [4, -1]},
        MOONCAKE | {"hash_ids": [4]} | {"input_length": 1025},
        MOONCAKE | {"hash_ids": [1, 2, 3]},
        MOONCAKE | {"input_length": "many"},
        MOONCAKE | {"timestamp": "noon"},
        MOONCAKE | {"hash_ids": "4 5"},
        {"body": CHAT, "sent_at": "yesterday"},
        {"prompt": "x", "prompt_token_ids": [1, "2"]},
        MOONCAKE,
    )
    found = list(read([file]))
    assert sum(isinstance(each, LoggedRequest) for each in found) == 2
    told = bad(file)
    assert [line for line, _ in told] == list(range(2, 14))
    for (_, reason), words in zip(
        told,
        [
            "not JSON",
            "no JSON object",
            "no known form, with the keys a",
            "gap",
            "gap",
            "1 block ids do not fit 1,025 tokens in blocks of 512",
            "3 block ids do not fit 1,000",
            "`input_length` must be a whole number of tokens, not 'many'",
            "`timestamp` must be a number",
            "must be a list",
            "no number and no date of ISO 8601",
            "list of token ids",
        ],
        strict=True,
    ):
        assert words in reason


def test_another_block_size_than_usual(tmp_path: Path) -> None:
    file = written(tmp_path / "trace", MOONCAKE | {"hash_ids": [1, 2, 3, 4]})
    assert "name it with --block-size" in bad(file)[0][1]
    (found,) = requests(file, block_size=256)
    assert isinstance(found.prompt, BlockIds)
    assert found.prompt.block_size == 256
    assert "hold 64 tokens, not 32" in bad(TRACES / "weka-session.json", block_size=32)[0][1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_size": 0}, "at least 1"),
        ({"requests": [7]}, "must be an object"),
        ({"requests": [{"type": "subagent", "t": 0, "requests": None}]}, "must be a list"),
        ({"requests": [{"t": 0, "in": -1, "hash_ids": []}]}, "`in` must be"),
    ],
)
def test_bad_sessions(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    document = {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": []} | change
    ((_, reason),) = bad(written(tmp_path / "s.json", document))
    assert words in reason


def test_gzip_and_one_that_breaks_off(tmp_path: Path) -> None:
    whole = gzip.compress((TRACES / "mooncake-conversation-300.jsonl").read_bytes())
    (tmp_path / "whole.gz").write_bytes(whole)
    assert len(requests(tmp_path / "whole.gz")) == 300
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    found = list(read([tmp_path / "cut"]))
    assert isinstance(found[-1], BadLine)
    assert "the gzip stream breaks off here" in found[-1].reason
    assert 100 < len(found) - 1 < 200
    assert found[-1].line == len(found)


def test_zstd_of_several_frames_and_one_that_breaks_off(tmp_path: Path) -> None:
    lines = (TRACES / "mooncake-conversation-300.jsonl").read_bytes().splitlines(keepends=True)
    packer = zstandard.ZstdCompressor()
    frames = [packer.compress(b"".join(lines[:100])), packer.compress(b"".join(lines[100:]))]
    (tmp_path / "whole.zst").write_bytes(b"".join(frames))
    assert len(requests(tmp_path / "whole.zst")) == 300
    (tmp_path / "cut").write_bytes(frames[0] + frames[1][:-9])
    found = list(read([tmp_path / "cut"]))
    assert isinstance(found[-1], BadLine)
    assert "the zstd stream breaks off here: the last frame has no end" in found[-1].reason
    assert 100 <= len(found) - 1 < 300
    assert found[-1].line == len(found)
    (tmp_path / "damaged").write_bytes(frames[0][:8] + b"no frame")
    assert "the zstd stream breaks off here" in bad(tmp_path / "damaged")[0][1]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]) -> None:
    lines = io.BytesIO(pack(json.dumps(MOONCAKE).encode()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(lines)))
    (found,) = requests(Path("-"))
    assert found.request_id == "stdin:1"


def test_folders(tmp_path: Path) -> None:
    written(tmp_path / "b.jsonl", MOONCAKE)
    written(tmp_path / "a.json", MOONCAKE)
    written(tmp_path / "LICENSE", "no log")
    assert [each.request_id for each in requests(tmp_path)] == ["a.json:1", "b.jsonl:1"]
    written(tmp_path / "requests.jsonl", MOONCAKE)
    assert [each.request_id for each in requests(tmp_path)] == ["requests.jsonl:1"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no"):
        requests(tmp_path / "empty")


def test_what_has_no_known_format(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        list(read([tmp_path / "none"]))
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    assert bad(tmp_path / "binary") == [(1, "neither JSON nor text")]
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "odd").write_text('{"a": 1}\n"a text among objects"\nmore\n')
    assert [line for line, _ in bad(tmp_path / "odd")] == [1, 2, 3]
    assert bad(tmp_path / "empty") == [(0, "the file is empty")]
    (tmp_path / "latin").write_bytes(b"good\nna\xefve\n")
    assert bad(tmp_path / "latin")[0][0] == 2
    with pytest.raises(UsageError, match="token counts without prompts"):
        list(read([written(tmp_path / "azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens")]))
    with pytest.raises(UsageError, match="no known format; line 1001"):
        list(read([written(tmp_path / "long", *({"a": 1} for _ in range(1200)))]))
