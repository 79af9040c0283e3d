"""The shape of the code: sizes, words, light imports."""

import ast
import dataclasses
import importlib
import pkgutil
import re
import subprocess
import sys
from enum import EnumMeta
from pathlib import Path

import pytest

import kvscope.model

ROOT = Path(__file__).parents[2]
PRODUCT = [
    path
    for package in ("kvscope", "collectors", "dashboards")
    for path in sorted((ROOT / package).rglob("*.py"))
]


def test_there_is_product_code_to_look_at() -> None:
    assert len(PRODUCT) > 50


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_is_small(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines: split it along its seams"


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(ROOT)))
def test_classes_have_few_public_methods(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            public = [
                item.name
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_")
            ]
            assert len(public) <= 15, f"{node.name} has {len(public)} public methods"


def _model_words() -> set[str]:
    words = set()
    for info in pkgutil.iter_modules(kvscope.model.__path__, "kvscope.model."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
                continue
            if dataclasses.is_dataclass(value) or isinstance(value, EnumMeta):
                words.add(name)
    return words


# names made of glossary words and what they hold: a row, a kind, a state
_PLAIN = {
    "Record", "Part", "Row", "Config", "Counters", "Action", "State", "Stored", "Removed", "All", "Cleared",
    "Event", "Cache", "Fitted", "Model", "Timeline", "Metric", "Spec", "Blocks",
}  # fmt: skip


def test_every_word_of_the_model_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").lower()
    defined = set(re.findall(r"\*\*([a-z ]+)\*\*", glossary))
    parts = {part for words in defined for part in words.split()} | defined
    for name in _model_words():
        for part in re.findall(r"[A-Z][a-z]+", name):
            assert part in _PLAIN or part.lower() in parts, f"{part} of {name} is not in docs/glossary.md"


def test_help_is_light() -> None:
    code = (
        "import sys\n"
        "from kvscope.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'sklearn', 'streamlit', 'grpc', 'sqlalchemy', 'numpy', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "experiment" in done.stdout


def test_layers_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
