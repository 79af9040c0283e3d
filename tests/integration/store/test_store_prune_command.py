"""`kvscope db prune` and the agent's own pruning."""

import asyncio
import json
import time

import pytest

from kvscope.agent.upkeep import Upkeep
from kvscope.cli.main import main
from kvscope.model.request import RequestPart, Source
from kvscope.pipeline.contracts import Batch
from kvscope.store.database import Store, open_store

DAY = 86_400.0


def fill(store: Store, now: float) -> None:
    """Requests of today, a week ago and 40 days ago."""
    parts = [
        RequestPart(request_id=f"{days} days", source=Source.SPAN, values={"arrived_at": now - days * DAY})
        for days in (0, 7, 40)
    ]
    store.batches.write([Batch(parts=parts)])


def ids(store: Store) -> list[str]:
    return [record.request_id for record in store.reader.requests()]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["db", "prune", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_command_removes_what_is_older(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(database_url, upgrade=True)
    fill(store, time.time())
    code, out, err = run(capsys, "--db", database_url)
    assert (code, err) == (0, "")
    assert out.startswith("removed 1 requests, 0 misses, 0 spans and 0 samples from before 20")
    assert ids(store) == ["7 days", "0 days"]
    code, out, _ = run(capsys, "--db", database_url, "--older-than", "3d", "--json")
    assert code == 0
    assert json.loads(out)["requests"] == 1
    assert ids(store) == ["0 days"]
    store.close()


@pytest.mark.parametrize("age", ["", "30", "-1d", "x", "3 d", "1y"])
def test_an_age_that_is_none_is_refused(
    sqlite_url: str, age: str, capsys: pytest.CaptureFixture[str]
) -> None:
    open_store(sqlite_url, upgrade=True).close()
    code, out, err = run(capsys, "--db", sqlite_url, "--older-than", age)
    assert (code, out) == (2, "")
    assert err.startswith(f"kvscope: --older-than {age!r}: write a number and a unit")
    assert err.count("\n") == 1


def test_an_age_before_all_time_removes_nothing(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    open_store(sqlite_url, upgrade=True).close()
    code, out, _ = run(capsys, "--db", sqlite_url, "--older-than", "999999999w")
    assert (code, out.splitlines()[0]) == (
        0,
        "removed 0 requests, 0 misses, 0 spans and 0 samples from before 1970-01-01T00:00:00.000Z",
    )


def test_the_agent_prunes_by_its_clock_and_stops_when_closed(sqlite_store: Store) -> None:
    fill(sqlite_store, 100 * DAY)
    upkeep = Upkeep(sqlite_store, keep_days=30.0, clock=lambda: 100 * DAY)
    asyncio.run(upkeep.prune())
    assert ids(sqlite_store) == ["7 days", "0 days"]
    asyncio.run(upkeep.roll_up())
    assert sqlite_store.rollups.refresh(100 * DAY) == 0  # done already
    closed = Upkeep(sqlite_store, keep_days=1.0, clock=lambda: 100 * DAY)
    closed.close()
    asyncio.run(closed.prune())
    assert ids(sqlite_store) == ["7 days", "0 days"]
