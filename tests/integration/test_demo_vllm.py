"""`kvscope demo` as a user runs it: the real vLLM, the real agent, the promise kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

_CODE = "from kvscope.cli.main import main; main()"


@pytest.mark.timeout(1500)
def test_what_was_predicted_comes_true_on_a_real_vllm(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-c", _CODE, "demo", "--json", "-o", str(output)],
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    before, predicted, after = (document[part]["hit_rate"] for part in ("before", "predicted", "after"))
    assert document["engine"] == "vllm"
    assert document["engine_is_real"] is True
    assert document["verdict"] == "keep"
    assert document["sums_agree"] is True
    assert after - before >= 0.3
    assert abs(after - predicted) <= 0.03
    # side by side in the experiment, for between the phases the machine may have become busier
    assert document["experiment"]["results"]["differences"]["ttft_seconds"]["estimate"] < 0
    assert document["before"]["requests"] == document["after"]["requests"] >= 100
    assert all(Path(report).stat().st_size > 1_000 for report in document["reports"])
    assert "built-in" not in (output / "report.md").read_text()
