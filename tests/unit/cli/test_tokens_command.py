"""``kvscope tokens``: the document, the page for people, standard input, one line for each mistake."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main

TOKENIZER = Path(__file__).parents[2] / "data" / "tokenizer"
CHINESE = "你好，世界"  # noqa: RUF001 - a comma of Chinese text


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["tokens", *arguments])
    return int(ended.value.code or 0)


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path / "text.txt", CHINESE)
    arguments = ("--tokenizer", str(TOKENIZER), "--tokenizer", f"again={TOKENIZER}", "--context", "40")
    assert run(file, *arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "text"
    assert [row["tokenizer"] for row in found["rows"]] == ["tokenizer", "again"]
    first = found["rows"][0]
    assert (first["tokens"], first["characters"], first["tokens_per_char"]) == (15, 5, 3.0)
    assert first["context"]["copies"] == 2


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    typed: Any = io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + CHINESE.encode()))  # with a byte-order mark
    monkeypatch.setattr(sys, "stdin", typed)
    assert run("-", "--tokenizer", str(TOKENIZER), "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["tokens"] == 15


def test_the_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    body = {"messages": [{"role": "system", "content": "secret words"}, {"role": "user", "content": "Hi"}]}
    file = written(tmp_path / "body.json", json.dumps(body))
    assert run(file, "--tokenizer", str(TOKENIZER), "--context", "100") == 0
    page = capsys.readouterr().out
    assert "a chat body" in page
    assert "what costs most" in page
    assert "copies that fit" in page
    assert "secret" not in page
    lines = written(tmp_path / "lines.jsonl", '{"a": 1}\n{"a": 2}\n')
    assert run(lines, "--tokenizer", str(TOKENIZER), "--context", "100") == 0
    page = capsys.readouterr().out
    assert "2 examples" in page
    assert "examples that fit" in page


def test_mistakes_take_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path / "text.txt", "x")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    for arguments, message in (
        ((str(tmp_path / "absent"), "--tokenizer", str(TOKENIZER)), "cannot be read as text"),
        ((str(tmp_path / "bytes"), "--tokenizer", str(TOKENIZER)), "cannot be read as text: it is not UTF-8"),
        ((file,), "Missing option '--tokenizer'"),
        ((file, "--tokenizer", str(tmp_path / "none")), "no tokenizer at"),
        ((file, "--tokenizer", str(TOKENIZER), "--context", "0"), "--context"),
    ):
        assert run(*arguments) == 2
        said = capsys.readouterr()
        assert message in said.err
        assert said.err.count("\n") == 1
        assert said.out == ""


def test_a_server_that_does_not_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path / "text.txt", "x")
    assert run(file, "--tokenizer", "http://127.0.0.1:1") == 3
    assert capsys.readouterr().err.count("\n") == 1
