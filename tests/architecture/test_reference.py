"""docs/reference says what the code says, and every command and setting is in it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_fresh(reference: ModuleType) -> None:
    for name, text in (
        ("settings.md", reference.settings_page()),
        ("commands.md", reference.commands_page()),
        ("metrics.md", reference.metrics_page()),
    ):
        path = ROOT / "docs" / "reference" / name
        assert path.read_text(encoding="utf-8") == text, f"{name} is stale: run `python scripts/reference.py`"


def test_every_setting_says_what_it_is(reference: ModuleType) -> None:
    rows = [line for line in reference.settings_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    for row in rows:
        assert "| None |" not in row, f"a setting without a description: {row}"


def test_the_readme_names_every_command(reference: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in (
        "agent",
        "doctor",
        "hits",
        "requests",
        "fit",
        "suggest",
        "experiment",
        "report",
        "dashboard",
    ):
        assert f"kvscope {name}" in readme
    assert "`kvscope predict`" in reference.commands_page()


def test_the_metrics_of_every_part_are_told(reference: ModuleType) -> None:
    page = reference.metrics_page()
    for name in (
        "kvscope_commit_seconds",
        "kvscope_gateway_requests",
        "kvscope_otlp_spans",
        "kvscope_scrapes",
        "kvscope_kv_events",
        "kvscope_analysed_requests",
        "kvscope_export_spans",
        "vllm:prompt_tokens_cached_by_source",
    ):
        assert f"| `{name}` |" in page
