"""``kvscope suggest FILES``: the document, the bar for CI, cost, hashes alone, and odd logs through it."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main

TOKENIZER = str(Path(__file__).parents[2] / "data" / "tokenizer")
RULES = "You answer questions about orders in one short sentence and never guess. " * 20


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def written(path: Path, lines: list[Any]) -> str:
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


@pytest.fixture
def clocks(tmp_path: Path) -> str:
    """A request a second, a clock before all that never changes."""
    return written(
        tmp_path / "log.jsonl",
        [
            {
                "route": "support",
                "timestamp": 1_764_417_600 + second,
                "messages": [
                    {"role": "system", "content": f"Time: 2025-11-29T12:00:{second:02}Z\n{RULES}"},
                    {"role": "user", "content": f"Where is order {second}?"},
                ],
            }
            for second in range(12)
        ],
    )


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_what_is_saved_and_what_it_costs(clocks: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--tokenizer", TOKENIZER, "--prefill-rate", "1000", "--gpu-hour", "3.6", "--gpus", "2")
    assert run("suggest", clocks, *arguments, "--json") == 0
    found = document(capsys)
    (item,) = found["suggestions"]
    assert (item["kind"], item["route"], found["exactness"]) == ("move_volatile", "support", "exact")
    # 1,000 tokens a second and 3.6 a GPU-hour: a token costs 0.001 s x 0.001 a second, twice for two GPUs
    assert item["cost_saved_per_day"] == pytest.approx(item["tokens_saved_per_day"] * 1e-6 * 2, rel=1e-6)
    low, high = (item["evidence"][f"ttft_change_{end}_seconds"] for end in ("low", "high"))
    assert low <= item["ttft_change_seconds"] <= high < 0
    assert run("suggest", clocks, *arguments) == 0
    page = capsys.readouterr().out
    assert "cost saved a day" in page
    assert "kvscope answers" in page  # moving a line is of risk `review`
    assert "order 3" not in page


def test_the_bar_for_ci(clocks: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("suggest", clocks, "--tokenizer", TOKENIZER, "--json") == 0
    rate = document(capsys)["hit_rate"]
    assert run("replay", clocks, "--tokenizer", TOKENIZER, "--json") == 0
    assert rate == document(capsys)["hit_rate"]
    assert run("suggest", clocks, "--tokenizer", TOKENIZER, "--fail-under", str(rate), "--json") == 0
    assert document(capsys)["holds"] is True
    assert run("suggest", clocks, "--tokenizer", TOKENIZER, "--fail-under", "0.6", "--json") == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["holds"] is False
    assert "is under 60.0%" in told.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fail-under", "0.5"), "name the model's tokenizer"),
        (("--fail-under", "1.5"), "--fail-under"),
        (("--dismiss", "x"), "leave out FILES"),
    ],
)
def test_what_cannot_be(
    clocks: str, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("suggest", clocks, *arguments) == 2
    assert said in capsys.readouterr().err
    assert run("suggest", "--fail-under", "0.5") == 2


def test_without_a_tokenizer_it_is_estimated(clocks: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("suggest", clocks, "--json") == 0
    found = document(capsys)
    assert found["exactness"] == "estimated"
    assert [item["kind"] for item in found["suggestions"]] == ["move_volatile"]


def test_hashes_tell_of_memory_and_routing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # two prompts of three blocks in turn: three blocks hold nothing for long, six hold both
    lines = [
        {
            "timestamp": 1000 * number,
            "hash_ids": [3 * (number % 2) + block for block in range(3)],
            "input_length": 3 * 512,
            "output_length": 1,
        }
        for number in range(8)
    ]
    log = written(tmp_path / "trace.jsonl", lines)
    assert run("suggest", log, "--blocks", "3", "--json") == 0
    found = document(capsys)
    assert (found["suggestions"], "no text" in found["none_because"]) == ([], True)
    assert found["hit_rate"] == 0
    rates = {point["blocks"]: point["hit_rate"] for point in found["without_text"]["capacity"]}
    assert (rates[3], rates[6]) == (0, 6 / 8)
    assert {row["routing"] for row in found["without_text"]["routing"]} >= {"session", "prefix"}
    assert run("suggest", log, "--block-size", "256", "--json") == 2  # three ids do not fit 1,536 tokens so
    assert "--block-size" in capsys.readouterr().err
    assert run("suggest", log, "--blocks", "3", "--fail-under", "0.1") == 1
    assert "Memory" in capsys.readouterr().out


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


ODD: dict[str, list[Any]] = {
    "one request": [chat("hello")],
    "all identical": [chat(RULES)] * 12,
    "all different": [chat(f"{number} " * 40) for number in range(12)],
    "a megabyte": [chat(f"{number}" + "ab c" * 250_000) for number in range(3)],
    "control characters": [chat("\0\x01\x1b[31m\u202e\ufeff\r\n\t" + chr(number)) for number in range(12)],
    "mixed scripts": [chat(f"你好 привет مرحبا שלום नमस्ते 👩‍👩‍👧 \u0301 é {number}") for number in range(12)],
    "half a surrogate": [chat("\ud800 half"), chat("\ud800 half"), chat("whole")],
    "empty texts": [chat("")] * 10,
}
COMMANDS = ("suggest", "entropy", "causes", "replay")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ODD)
def test_odd_logs(kind: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path / "log.jsonl", ODD[kind])
    assert run(command, log, "--tokenizer", TOKENIZER, "--json") == 0
    found = document(capsys)
    if kind == "all identical" and command in {"suggest", "replay"}:
        assert found["hit_rate"] > 0.8
    if command == "suggest":
        assert (found["suggestions"], bool(found["none_because"])) == ([], True)
    assert run(command, log, "--tokenizer", TOKENIZER) == 0
    page = capsys.readouterr().out
    assert "\x1b" not in page
    assert "\0" not in page


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("content", [b"", b"{}\n", b"{\n", b"\x00\x01\x02\xff", b'{"no": "text"}\n[1]\n'])
def test_neither_text_nor_hashes(
    content: bytes, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(content)
    assert run(command, str(log)) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "no " in line
