"""Traces read many requests at a time are those read line by line, whatever stands in them."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.analysis.formats.columns import BlockColumns
from kvscope.analysis.formats.detect import read, read_columns
from kvscope.analysis.formats.records import BadLine, BlockIds, LoggedRequest

BLOCK_SIZE = 4
IDS = st.one_of(
    st.integers(0, 9),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([10**8 - 1, 10**8, 10**16 - 1, 10**16, 10**19, (1 << 64) - 1]),
)
ODD: st.SearchStrategy[Any] = st.sampled_from([-1, 1 << 64, 1.0, 2.5, None, True, "7", [1], {}])


@st.composite
def lines(draw: st.DrawFn) -> str:
    ids: list[Any] = draw(st.lists(IDS, max_size=5))
    tokens: Any = max(len(ids) * BLOCK_SIZE - draw(st.integers(0, 5)), 0)
    line: dict[str, Any] = {
        "timestamp": draw(st.one_of(st.integers(0, 5000), st.floats(0, 5000))),
        "input_length": tokens,
        "output_length": 3,
        "hash_ids": ids,
    }
    match draw(st.sampled_from(["good"] * 6 + ["id", "field", "missing", "chat", "size", "text"])):
        case "id":
            ids.append(draw(ODD))
            line["input_length"] = len(ids) * BLOCK_SIZE
        case "field":
            line[draw(st.sampled_from(sorted(line)))] = draw(ODD)
        case "missing":
            del line[draw(st.sampled_from(sorted(line)))]
        case "chat":
            line["chat_id"] = 7
        case "size":
            line["block_size"] = draw(st.sampled_from([BLOCK_SIZE, 8, 0, "4"]))
        case "text":
            return draw(st.sampled_from(["", "{", "no JSON", '{"hash_ids": [1, 2', "[]"]))
        case _:
            pass
    return json.dumps(line, separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", ":")])))


def one_by_one(found: Iterable[LoggedRequest | BadLine | BlockColumns]) -> tuple[list[Any], list[BadLine]]:
    """Requests as ids, tokens, time, block size, scope and file, and bad lines."""
    requests: list[Any] = []
    bad = []
    for each in found:
        if isinstance(each, BadLine):
            bad.append(each)
        elif isinstance(each, BlockColumns):
            ids, start = each.ids.tolist(), 0
            columns = (each.lengths.tolist(), each.prompt_tokens.tolist(), each.at.tolist())
            for length, tokens, at in zip(*columns, strict=True):
                own = ids[start : start + length]
                requests.append((own, tokens, at, each.block_size, each.scope, each.origin))
                start += length
        else:
            assert isinstance(each.prompt, BlockIds)
            file = each.origin.rpartition(":")[0]
            prompt = each.prompt
            own = list(prompt.ids)
            requests.append((own, each.prompt_tokens, each.at, prompt.block_size, prompt.scope, file))
    return requests, bad


@given(st.lists(lines(), max_size=12))
def test_block_traces(tmp_path_factory: pytest.TempPathFactory, written: list[str]) -> None:
    file = tmp_path_factory.getbasetemp() / "lines.jsonl"
    file.write_text("\n".join(['{"timestamp":0,"input_length":4,"hash_ids":[1]}', *written]))
    for block_size in (BLOCK_SIZE, None):
        expected = one_by_one(read([file], block_size=block_size))
        assert one_by_one(read_columns([file], block_size=block_size)) == expected


@st.composite
def sessions(draw: st.DrawFn) -> dict[str, Any]:
    def entry(deep: int) -> dict[str, Any]:
        if deep and draw(st.booleans()):
            return {"type": "subagent", "t": draw(st.integers(0, 9)), "requests": entries(deep - 1)}
        ids: list[Any] = draw(st.lists(IDS, max_size=3))
        made = {"t": 0.5, "type": "n", "in": len(ids) * BLOCK_SIZE, "out": 1, "hash_ids": ids}
        if not draw(st.integers(0, 9)):
            made[draw(st.sampled_from(sorted(made)))] = draw(ODD)
        return made

    def entries(deep: int) -> list[dict[str, Any]]:
        return [entry(deep) for _ in range(draw(st.integers(0, 3)))]

    scope = draw(st.sampled_from(["local", "global"]))
    return {"id": "s", "block_size": BLOCK_SIZE, "hash_id_scope": scope, "requests": entries(2)}


@given(sessions(), st.sampled_from([None, 2]))
def test_sessions(
    tmp_path_factory: pytest.TempPathFactory, session: dict[str, Any], indent: int | None
) -> None:
    file = tmp_path_factory.getbasetemp() / "session.json"
    file.write_text(json.dumps(session, indent=indent))
    assert one_by_one(read_columns([file])) == one_by_one(read([file]))


def test_what_comes_before_a_broken_end_is_kept(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 4, "hash_ids": [1234567]}\n'
    whole = gzip.compress("".join(line.replace("0", str(at), 1) for at in range(50_000)).encode())
    file = tmp_path / "cut.jsonl.gz"
    file.write_bytes(whole[: len(whole) // 2])
    requests, bad = one_by_one(read_columns([file], block_size=BLOCK_SIZE))
    assert (requests, bad) == one_by_one(read([file], block_size=BLOCK_SIZE))
    assert len(requests) > 10_000
    assert len(bad) == 1
