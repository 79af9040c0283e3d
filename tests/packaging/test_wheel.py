"""The wheel: what is in it, and that it works where the source tree is not."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(command: Sequence[str | Path], cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT], folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts folder of an environment with the wheel in it; its requirements are those of ours."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "bin" / "python",
        "install",
        "--quiet",
    ]
    _run([*pip, "--no-deps", "--no-index", wheel], folder)
    # a path in a .pth file is searched, but its own .pth files are not read: the source tree stays out
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version / "site-packages" / "requirements.pth").write_text(
        sysconfig.get_path("purelib")
    )
    return folder / "bin"


def test_it_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "kvscope",
        "collectors",
        "dashboards",
    }
    assert {f"{package}/py.typed" for package in ("kvscope", "collectors", "dashboards")} <= set(names)
    sources = {
        f"{path.relative_to(ROOT)}"
        for package in ("kvscope", "collectors", "dashboards")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources <= set(names)
    versions = [path.name for path in (ROOT / "migrations" / "versions").glob("*.py")]
    assert versions
    assert {f"kvscope/store/migrations/versions/{name}" for name in versions} <= set(names)


def test_it_runs_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    code = "import kvscope, collectors, dashboards; print(kvscope.__file__, collectors.__file__, sep='\\n')"
    places = _run([installed / "python", "-c", code], tmp_path).split()
    assert all(Path(place).is_relative_to(installed.parent) for place in places)
    assert "agent" in _run([installed / "kvscope", "--help"], tmp_path)


def test_the_store_can_be_made_and_checked(installed: Path, tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'kvscope.db'}"
    _run([installed / "kvscope", "db", "upgrade", "--db", db], tmp_path)
    assert (tmp_path / "kvscope.db").exists()
    assert _run([installed / "kvscope", "db", "check", "--db", db], tmp_path)


def test_the_dashboard_can_start(installed: Path, tmp_path: Path) -> None:
    assert "can start" in _run([installed / "kvscope", "dashboard", "--check"], tmp_path)
