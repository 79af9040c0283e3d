"""``kvscope batch plan``: requests and tables reordered, the map back, what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main

TOKENIZER = Path(__file__).parents[2] / "data" / "tokenizer"
LONG = "You read one review and say whether it is friendly. Answer with one word. "


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["batch", "plan", *arguments])
    return int(ended.value.code or 0)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(*arguments, "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_requests_of_two_prompts_that_take_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        json.dumps(
            {
                "custom_id": f"r{number}",
                "body": {"model": "m", "prompt": f"{'AB'[number % 2]}: {LONG * 8}{number}"},
            }
        )
        for number in range(12)
    ]
    file, output = tmp_path / "batch.jsonl", tmp_path / "out.jsonl"
    file.write_text("\n".join([*lines[:5], "not json", *lines[5:]]))
    # a cache of one prompt and a little: taking turns, each throws most of the other out
    arguments = (str(file), "--tokenizer", str(TOKENIZER), "--blocks", "16", "-o", str(output))
    found = planned(capsys, *arguments)
    assert (found["kind"], found["method"], found["exactness"]) == ("requests", "sorted", "exact")
    assert found["hit_rate_before"] < 0.3
    assert found["hit_rate_after"] > 0.75
    assert found["skipped"] == [{"line": 6, "reason": found["skipped"][0]["reason"]}]
    written = output.read_text().splitlines()
    assert sorted(written) == sorted(lines)
    assert [json.loads(line)["body"]["prompt"][0] for line in written] == ["A"] * 6 + ["B"] * 6
    given = file.read_text().splitlines()
    mapped = [json.loads(line) for line in Path(found["map"]).read_text().splitlines()]
    assert [given[each["original_line"] - 1] for each in mapped] == written
    assert [each["line"] for each in mapped] == list(range(1, 13))
    # what was planned is what replay of the written file gives
    assert planned(capsys, str(output), *arguments[1:5])["hit_rate_before"] == found["hit_rate_after"]


def rows() -> list[dict[str, str]]:
    return [
        {"id": f"{number:05}", "product": f"p{number % 3}", "text": f"{number % 3}: {LONG * 2}"}
        for number in range(9)
    ]


def test_a_table_as_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = tmp_path / "table.csv", tmp_path / "out.jsonl"
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, ["id", "product", "text"])
        writer.writeheader()
        writer.writerows(rows())
        opened.write("one,cell,too,many\n")
    template = f"{LONG}\n{{row}}\nAnswer:"
    found = planned(capsys, str(file), "-o", str(output), "--template", template)
    assert (found["kind"], found["requests"], found["exactness"]) == ("rows", 9, "estimated")
    assert found["hit_rate_before"] < 0.4
    assert found["hit_rate_after"] > 0.6
    assert found["hit_rate_after"] == max(found["hit_rates"].values())
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(written, key=lambda row: row["id"]) == rows()
    assert all(list(row)[-1] == "id" for row in written)
    mapped = [json.loads(line)["original_line"] for line in Path(found["map"]).read_text().splitlines()]
    assert [rows()[line - 2] for line in mapped] == written  # line 1 is the header
    assert found["skipped"] == [{"line": 11, "reason": "4 cells, the header has 3"}]


def test_only_the_named_fields_move(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = tmp_path / "table.jsonl", tmp_path / "out.jsonl"
    file.write_text("\n".join(map(json.dumps, rows())))
    planned(capsys, str(file), "-o", str(output), "--fields", "text")
    assert {tuple(json.loads(line)) for line in output.read_text().splitlines()} == {
        ("text", "id", "product")
    }


def test_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "table.jsonl"
    file.write_text("\n".join(map(json.dumps, rows())))
    assert run(str(file)) == 0
    page = capsys.readouterr().out
    assert "chosen" in page
    assert "nothing was written" in page


@pytest.mark.parametrize(
    ("text", "arguments", "line"),
    [
        ("", (), "is empty"),
        ("hello\nworld", (), "neither JSON lines nor CSV"),
        ('{"a": 1}\n{"prompt": "x"}', (), "plan them as two files"),
        ('{"a": 1}', ("--fields", "b"), "no field 'b'; the fields are a"),
        ('{"a": 1}', ("--template", "x"), "the template has no {row}"),
        ('{"prompt": "x"}', ("--fields", "a"), "--fields is for tables"),
        ('{"prompt": "' + "x" * 400 + '"}', ("--blocks", "2"), "blocks"),
        ("{}\n[]", (), "neither request bodies nor rows; line 1"),
        ('a,b\n"1,2', (), "is not CSV"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, text: str, arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "batch"
    file.write_text(text)
    assert run(str(file), *arguments) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
