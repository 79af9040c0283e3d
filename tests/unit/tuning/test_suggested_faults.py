"""The benchmark of planted faults, made small: faults are found, clean logs stay clean, figures come true."""

import sys
from pathlib import Path

import pytest

from kvscope.prompts.tokenizing import LocalTokenizer

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
WORDS = ("parcel", "order", "client", "refund", "ticket", "answer", "question", "garden", "window", "letter")
PLANTED = ("early_clock", "tool_order", "whitespace", "document_order", "history_cut")


def _sentences(count: int) -> tuple[str, ...]:
    names = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS if len({a, b, c}) == 3]
    return tuple(f"The {name} belongs together, as all of us have agreed before." for name in names[:count])


def _tool(name: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {name: {"type": "string", "description": f"The {name}."}}}
    return {"type": "function", "function": {"name": f"get_{name}", "parameters": parameters}}


def test_planted_faults_are_found_and_clean_logs_stay_clean(
    tool_tokenizer: LocalTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [name for name in sys.modules if name.startswith("_faults_")]:
        monkeypatch.delitem(sys.modules, name)
    import _faults_logs  # type: ignore[import-not-found, unused-ignore]
    import _faults_measure  # type: ignore[import-not-found, unused-ignore]
    from _faults_kinds import FAULTS  # type: ignore[import-not-found, unused-ignore]
    from _faults_texts import Texts  # type: ignore[import-not-found, unused-ignore]

    texts = Texts(
        sentences=_sentences(90),
        documents=_sentences(100)[90:],
        questions=("Where is it, please?", "Can you help me today?"),
        tools=tuple(map(_tool, WORDS)),
        held_out=False,
    )
    planted = [fault for fault in FAULTS if fault.name in PLANTED]
    logs = [
        *(_faults_logs.single(each, each.families[-1], seed="t", texts=texts, count=24) for each in planted),
        *_faults_logs.clean_logs(seeds=["t"], texts=texts, count=24),
    ]
    found = [_faults_measure.measured(log, tool_tokenizer) for log in logs]
    assert {name: hit for each in found for name, hit in each.hits.items()} == dict.fromkeys(PLANTED, True)
    assert all(all(each.segments.values()) for each in found)
    assert [(each.log.name, each.false) for each in found if each.false] == []
    errors = [error for each in found for error in each.errors]
    assert errors
    assert max(map(abs, errors)) < 1e-9
