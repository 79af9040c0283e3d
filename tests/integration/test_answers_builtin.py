"""From a log to suggestions to compared answers, on the built-in engine: answers follow from the prompt."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main
from kvscope.demo.engines import Engine
from tests.support import faults


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    told = capsys.readouterr()
    assert not ended.value.code, told.err
    return json.loads(told.out)


def test_a_suggestion_of_a_log_and_what_it_does_to_answers(
    builtin_engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    lines = [{"route": each.route, "body": each.body} for each in faults.window("clock_first", requests=12)]
    log.write_text("\n".join(map(json.dumps, lines)))
    found = run(capsys, "suggest", str(log), "--tokenizer", str(builtin_engine.options.model))
    told = tmp_path / "suggestions.json"
    told.write_text(json.dumps(found))
    asked = (
        "--server",
        builtin_engine.url,
        "--model",
        builtin_engine.model,
        "--last",
        "3",
        "--max-tokens",
        "8",
    )
    compared = run(capsys, "answers", str(log), "--from", str(told), *asked)
    assert compared["suggestion"] == found["suggestions"][0]["id"]
    assert (compared["prompts"], compared["refused"]) == (3, [])
    # the same prompt has the same answer there, another prompt another one: no noise, and nothing alike
    assert (compared["noise"]["share"], compared["same"]["share"]) == (1.0, 0.0)
    assert compared["answers"] is None
