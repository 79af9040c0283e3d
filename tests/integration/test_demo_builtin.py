"""The demo's whole loop on the built-in engine, and how it ends when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvscope.demo.loop import DemoOptions, run_demo
from kvscope.demo.model import build_model
from kvscope.store.database import open_store


def _processes_with(text: str) -> list[int]:
    """Return the ids of running processes whose command line holds ``text``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text in (folder / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(folder.name))
        except OSError:
            continue
    return [number for number in found if number != os.getpid()]


def _eventually(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def test_the_loop_comes_true(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "demo"
    (output / "kvscope.db.spool" / "0").mkdir(parents=True)  # as an earlier run left it
    (output / "kvscope.db").write_text("an earlier run")
    options = DemoOptions(
        engine="builtin", output=output, as_json=True, rounds=3, time_scale=0.1, pause_seconds=0.0
    )
    result = run_demo(options)
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document == result.document
    assert (document["engine"], document["engine_is_real"], document["route"]) == (
        "builtin",
        False,
        "support",
    )

    before, predicted, after = (document[part] for part in ("before", "predicted", "after"))
    assert result.succeeded
    assert document["sums_agree"] is True
    assert document["verdict"] == "keep"
    assert before["hit_rate"] < 0.1
    assert after["hit_rate"] - before["hit_rate"] >= 0.3
    assert abs(after["hit_rate"] - predicted["hit_rate"]) <= 0.03
    assert predicted["change"] == "move_volatile"
    assert set(after["ttft_seconds"]) == {"mean", "p50", "p95"}
    assert {"support", "agent", "chat"} < set(before["routes"])
    found = [route for route in before["routes"] if route.startswith("auto-")]
    assert len(found) == 1, "`search` names no route: kvscope finds one"

    difference = document["experiment"]["results"]["difference"]
    assert difference["high"] < 0, "the interval of the uncached tokens lies below no change"
    report = (output / "report.md").read_text()
    assert "built-in" in report
    assert (output / "report.html").stat().st_size > 1_000
    for word in (
        "Why prompt tokens missed",
        "timestamp",
        "tool_order",
        "in a person's place",
        "verdict: keep",
    ):
        assert word in printed.err

    store = open_store(document["store"])
    try:
        history = store.experiments.history(store.experiments.list()[0].id)
        assert [row.state.value for row in history][-3:] == ["running", "decided", "decided"]
        assert history[-1].reason.startswith("promoted: ")
        assert [policy.route for policy in store.advice.policies()] == ["support"]
    finally:
        store.close()
    assert not _processes_with(str(output)), "nothing that it started is left"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_what_it_started_and_nothing_else(
    tiny_tokenizer: Path, tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "demo"
    build_model(output / "model", weights=False)
    code = "from kvscope.cli.main import main; main()"
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"beside {output}"])
    demo = subprocess.Popen(
        [sys.executable, "-c", code, "demo", "--engine", "builtin", "-o", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        log = output / "agent.log"
        # on a busy machine a part may begin to work a little later than the agent looks
        up = ("the agent is ready", "the agent runs")
        assert _eventually(lambda: log.exists() and any(line in log.read_text() for line in up), 120)
        demo.send_signal(number)
        said, _ = demo.communicate(timeout=90)
        assert demo.returncode == 130, said
        assert said.splitlines()[-1] == "interrupted"
        assert _eventually(lambda: _processes_with(str(output)) == [bystander.pid], 30)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        demo.kill()
        demo.wait()


def test_an_engine_that_does_not_start_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no memory left' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("kvscope.demo.engines.sys.executable", str(broken))
    with pytest.raises(Exception, match=r"(?s)built-in engine stopped while starting.*no memory left"):
        run_demo(DemoOptions(engine="builtin", output=tmp_path / "demo"))
    assert not _processes_with(str(tmp_path / "demo"))
