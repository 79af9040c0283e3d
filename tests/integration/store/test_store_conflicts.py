"""Where sources contradict each other: said in the record, counted once, summed up, told by the doctor."""

from pathlib import Path

from kvscope.agent.checks import run_checks
from kvscope.clock import system_clock
from kvscope.model.request import RequestPart, Source
from kvscope.model.views import ConflictRow
from kvscope.pipeline.contracts import Batch
from kvscope.store.database import Store, open_store
from kvscope.store.writer import Conflict

NOBODY = "http://127.0.0.1:1"


def part(source: Source, request_id: str = "r1", piece: str = "", **values: object) -> RequestPart:
    return RequestPart(request_id=request_id, source=source, values=values, piece=piece)


def write(store: Store, *parts: RequestPart) -> None:
    for one in parts:
        assert store.batches.write([Batch(parts=[one])]) == 0


def test_the_record_names_the_most_trusted_of_those_that_were_not_believed(store: Store) -> None:
    write(
        store,
        part(Source.PLUGIN, finish_reason="stop", model="m", prompt_tokens=10, piece="p"),
        part(Source.SPAN, finish_reason="length", model="m", prompt_tokens=11, piece="s"),
        part(Source.GATEWAY, finish_reason="abort", model="m", arrived_at=60.0, e2e_seconds=2.0),
        part(Source.SPAN, arrived_at=61.0, e2e_seconds=1.0),
    )
    (record,) = store.reader.requests()
    assert (record.finish_reason, record.prompt_tokens, record.e2e_seconds) == ("abort", 11, 1.0)
    assert record.conflicts == {"finish_reason": "span", "prompt_tokens": "plugin"}
    expected = [
        ConflictRow(field="finish_reason", source="gateway", other="span", requests=1),
        ConflictRow(field="prompt_tokens", source="span", other="plugin", requests=1),
    ]
    assert store.reader.conflicts() == expected
    assert store.rollups.refresh(1e9) == 1
    assert store.reader.conflicts() == expected
    assert store.reader.conflicts(since_at=100.0) == []


def test_several_sequences_of_one_source_are_no_conflict(store: Store) -> None:
    write(
        store,
        part(Source.SPAN, piece="a", span_id="a", finish_reason="stop", output_tokens=3),
        part(Source.SPAN, piece="b", span_id="b", finish_reason="length", output_tokens=9),
    )
    assert store.reader.conflicts() == []
    assert store.reader.requests()[0].output_tokens == 12


def test_a_conflict_is_counted_once_also_over_a_restart(database_url: str) -> None:
    heard: list[tuple[Conflict, int]] = []
    told = [part(Source.GATEWAY, status="ok"), part(Source.SPAN, status="error")]
    for _ in range(2):
        opened = open_store(database_url, upgrade=True, on_conflict=lambda one, n: heard.append((one, n)))
        write(opened, *told, *told)
        opened.close()
    assert heard == [(("status", "gateway", "span"), 1)]


def test_the_doctor_fails_for_differing_counts_alone(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'kvscope.db'}", upgrade=True)
    now = system_clock()

    def check() -> tuple[bool, str]:
        checks = run_checks(store, vllm=NOBODY, agent=NOBODY, patience_seconds=0)
        ((ok, detail),) = [(one.ok, one.detail) for one in checks if one.name == "sources agree"]
        return ok, detail

    assert check() == (True, "no source contradicts another in the last day")
    write(store, part(Source.GATEWAY, arrived_at=now, status="aborted"), part(Source.SPAN, status="ok"))
    assert check() == (True, "status: span contradicts gateway in 1 requests")
    write(store, part(Source.SPAN, cached_tokens=16), part(Source.GATEWAY, cached_tokens=32))
    ok, detail = check()
    assert not ok
    assert "cached_tokens: gateway contradicts span in 1 requests" in detail
    store.close()
