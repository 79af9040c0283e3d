"""What the terminal says of suggestions and experiments."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvscope.agent.asking import LastLook
from kvscope.cli.experiment import experiment
from kvscope.cli.suggest import suggest
from kvscope.experiments.design import from_suggestion
from kvscope.experiments.looks import make_look
from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Risk
from kvscope.model.request import RequestRecord
from kvscope.store.database import open_store

NOW = 1_795_966_295.0
MOVES = (
    "Moves 1 changing line of system messages to the end of the last user message,"
    " after a blank line, in their order."
)
SUGGESTION = Suggestion(
    id="d64aa5a0c1d2e3f4", kind="move_volatile", route="auto-0123abcd", risk=Risk.REVIEW, evidence={},
    hit_rate_before=0.0, hit_rate_after=0.92, ttft_change_seconds=-0.012, tokens_saved_per_day=556_987_654.3,
    change={"transforms": [
        {"kind": "move_volatile", "params": {"role": "system", "line_keys": ["0123456789abcdef"]}},
    ]},
    created_at=NOW,
)  # fmt: skip


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A store with a suggestion, an experiment on it, and a look at 30 sessions an arm."""
    url = f"sqlite:///{tmp_path / 'k.db'}"
    store = open_store(url, upgrade=True)
    store.advice.save_suggestions([SUGGESTION])
    planned = from_suggestion(SUGGESTION, name="first", approved=True, now=NOW)
    store.experiments.create(planned)
    cached = {arm.name: 0 if arm.baseline else 80 for arm in planned.arms}
    records = [
        RequestRecord(
            request_id=f"{name}-{number}", session=f"{name}-{number}", route=planned.route,
            experiment=planned.id, arm=name, arrived_at=NOW + number, prompt_tokens=100,
            cached_tokens=cached[name], ttft_seconds=0.25,
        )
        for name in cached
        for number in range(30)
    ]  # fmt: skip
    store.experiments.add_look(make_look(planned, records, now=NOW + 60, since_at=NOW))
    store.close()
    return url


def said(command: click.Command, *arguments: str) -> str:
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_status_tells_arms_guardrails_and_the_change(db: str) -> None:
    text = said(experiment, "status", "first", "--db", db)
    assert f"treatment: {MOVES}" in text
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line
    ]
    assert ["baseline", "50.0%", "30", "30", "0.0%", "250 ms"] in rows
    assert ["treatment", "50.0%", "30", "30", "80.0%", "250 ms"] in rows
    assert "Guardrails" in text
    assert any(row[2:3] == ["ok"] for row in rows)
    assert any("(decides)" in row[0] and row[1] == "−80" for row in rows)


def test_create_tells_the_change(db: str) -> None:
    text = said(experiment, "create", "second", "--approve", "--db", db)
    assert MOVES in text


def test_a_layouts_variant_can_be_the_treatment_and_arms_isolated(db: str) -> None:
    variant = ("--route", "support", "--layout-variant", "short", "--unit", "tenant", "--isolate")
    made = json.loads(said(experiment, "create", "third", *variant, "--approve", "--db", db, "--json"))
    assert (made["route"], made["unit"], made["suggestion_id"]) == ("support", "tenant", None)
    baseline, treatment = made["arms"]
    assert treatment["transforms"] == [{"kind": "use_variant", "params": {"variant": "short"}}]
    assert (baseline["isolated"], treatment["isolated"]) == (True, True)
    store = open_store(db)
    assert [arm.isolated for arm in store.experiments.get("third").arms] == [True, True]
    store.close()


def test_suggest_tells_the_change_of_each_below_the_table(db: str) -> None:
    text = said(suggest, "--db", db)
    assert "│ 557,000,000 " in text
    assert f"d64aa5a0c1d2e3f4: {MOVES}" in text.splitlines()


def test_one_suggestion_is_told_in_full(db: str) -> None:
    lines = said(suggest, "--db", db, "--id", SUGGESTION.id).splitlines()
    told = {line[2:21].strip(): line[24:] for line in lines[1:]}
    assert lines[0] == "Move changing lines behind stable ones, route auto-0123abcd"
    assert (told["To do"], told["TTFT change"]) == (MOVES, "−12 ms")
    assert (told["GPU time saved a day"[:19]], told["Risk"]) == ("unknown", "review")
    assert "system message's authority" in told["What could go wrong"]
    unknown = CliRunner().invoke(suggest, ["--db", db, "--id", "none"], standalone_mode=False)
    assert "no suggestion 'none'" in str(unknown.exception)


def test_an_empty_list_says_why_by_route(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look = LastLook(
        looked_at=NOW, none_because="no change gains", unchanged={"a": "at its ceiling", "b": "few"}
    )
    monkeypatch.setattr("kvscope.cli.suggested.last_look", lambda _: look)
    text = said(suggest, "--db", db, "--route", "a")
    assert ("no suggestion: no change gains" in text, "a: at its ceiling" in text) == (True, True)
    assert "b: few" not in text
