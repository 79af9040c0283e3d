"""``kvscope entropy``: where a clock breaks a route, the document, what is left out."""

import json
import math
from pathlib import Path

import pytest

from kvscope.cli.main import main

TOKENIZER = Path(__file__).parents[2] / "data" / "tokenizer"
MINUTES = 8


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["entropy", *arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Eight requests of one route: a line that never changes, a minute that does, a question in two forms."""
    lines = [
        {
            "route": "support",
            "messages": [
                {"role": "system", "content": f"You answer in one word.\nMinute: {minute}"},
                {"role": "user", "content": ("Where is it?", "When will it come?")[minute % 2]},
            ],
        }
        for minute in range(MINUTES)
    ]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(map(json.dumps, [*lines, {"no": "body"}])))
    return str(file)


@pytest.mark.parametrize("tokenizer", [(), ("--tokenizer", str(TOKENIZER))], ids=["estimated", "exact"])
def test_the_document(log: str, tokenizer: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(log, *tokenizer, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exactness"] == ("exact" if tokenizer else "estimated")
    (texts,), (route,) = found["prompts"], found["positions"]
    assert (texts["route"], texts["prompts"]) == ("support", MINUTES)
    assert 3 < texts["character_entropy"] < 5
    # all is known once the minute is: the question's two forms go with it
    bits = math.log2(MINUTES)
    assert route["entropy_bits"] == pytest.approx(bits)
    system, user = route["segments"]
    assert (system["role"], system["variants"]) == ("system", MINUTES)
    assert (system["entropy_bits"], user["entropy_bits"], user["own_entropy_bits"]) == (bits, 0, 1)
    assert [position["branches"] for position in route["positions"]] == [MINUTES]
    assert route["positions"][0]["position"] == route["shared_tokens_median"]
    assert found["skipped"][0]["line"] == MINUTES + 1


def test_the_page_has_no_text(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(log) == 0
    page = capsys.readouterr().out
    assert "Positions with the most entropy" in page
    assert "estimated" in page
    assert "one word" not in page
    assert run(log, "--route", "other") == 0
    assert "no prompts" in capsys.readouterr().out


def test_one_request_and_no_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps({"prompt": "a" * 1_000_000}))
    assert run(str(file), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompts"][0]["window_entropy"] == 0
    assert found["positions"][0]["shared_tokens_mean"] is None
    file.write_text("{}")
    assert run(str(file)) == 2
    assert "no request in" in capsys.readouterr().err
