"""``kvscope causes``: the examples of docs/miss-causes.md, real recordings, places and seconds, bad input."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvscope.analysis.attribution import attribute_counts
from kvscope.cli.main import main
from kvscope.model.request import MissCause

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"
EXAMPLE = re.compile(
    r"### `(?P<cause>\w+)`\n.*?```jsonl\n(?P<log>.*?)```\n\n```\nkvscope (?P<command>.*?)\n```\n\n"
    r"```json\n(?P<causes>.*?)\n```",
    re.DOTALL,
)
EXAMPLES = {
    match["cause"]: match for match in EXAMPLE.finditer((ROOT / "docs" / "miss-causes.md").read_text())
}


def ran(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, out, err


def document(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    code, out, err = ran(capsys, *arguments, "--json")
    assert code == 0, err
    value: dict[str, Any] = json.loads(out)
    missed = sum(row["tokens"] for row in value["rows"])
    assert value["cached_tokens"] + missed == value["prompt_tokens"]
    return value


def by_cause(found: dict[str, Any]) -> dict[str, int]:
    causes: Counter[str] = Counter()
    for row in found["rows"]:
        causes[row["cause"]] += row["tokens"]
    return dict(causes)


@pytest.mark.parametrize("cause", [each.value for each in MissCause if each is not MissCause.UNKNOWN])
def test_the_examples_of_the_documentation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cause: str
) -> None:
    example = EXAMPLES[cause]
    log = tmp_path / "log.jsonl"
    log.write_text(example["log"])
    command = [str(log) if word == "FILE" else word for word in example["command"].split()]
    found = document(capsys, *command)
    assert by_cause(found) == json.loads(example["causes"])
    assert cause in by_cause(found)
    if cause == "diverged":
        (row,) = [row for row in found["rows"] if row["cause"] == cause]
        place = {key: row["example"][key] for key in ("role", "message_index", "char_start", "char_end")}
        assert place == {"role": "system", "message_index": 0, "char_start": 14, "char_end": 22}
        assert row["example"]["value_kind"] == "time"


def test_the_example_of_what_is_unknown() -> None:
    assert attribute_counts("r", 100, 64, 32).causes == {"granularity": 4, "unknown": 32}


@pytest.mark.parametrize(
    "recording", ["vllm-0.32.0-sequential", "vllm-0.32.0-concurrent-4", "vllm-0.23.0-sequential"]
)
def test_what_the_engine_evicted_is_what_the_replay_does(
    capsys: pytest.CaptureFixture[str], recording: str
) -> None:
    file = DATA / "cache" / f"{recording}.jsonl.gz"
    command = ("causes", file, "--block-size", 32, "--blocks", 300)
    by_replay = document(capsys, *command)
    assert by_replay["recorded"] == by_replay["requests"]
    by_events = document(capsys, *command, "--kv-events", DATA / "cache" / f"{recording}-events.jsonl.gz")
    assert by_cause(by_events)["evicted"] == by_cause(by_replay)["evicted"] > 0


def test_places_and_seconds_of_real_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    file = DATA / "cache" / "vllm-0.32.0-real-prompts.jsonl.gz"
    command = ("causes", file, "--block-size", 32, "--blocks", 700, "--tokenizer", DATA / "tokenizer")
    found = document(capsys, *command, "--prefill-rate", 5_000)
    assert (found["prompt_tokens"], found["cached_tokens"]) == (490_789, 320_032)
    seconds = sum(row["prefill_seconds"] for row in found["rows"])
    assert seconds == pytest.approx((490_789 - 320_032) / 5_000)
    (diverged,) = [row for row in found["rows"] if row["cause"] == "diverged"]
    assert diverged["example"]["role"] == "user"
    code, out, _ = ran(capsys, *command)
    assert code == 0
    assert "evicted" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}',
            "hashes of blocks",
        ),
        ("", "no prompt in"),
    ],
)
def test_what_has_no_prompt_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(text)
    code, out, err = ran(capsys, "causes", log)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
