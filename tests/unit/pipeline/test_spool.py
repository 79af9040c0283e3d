"""While the store is away what was accepted waits on disk: answered, in order, once, through a kill."""

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kvscope.errors import ConfigError, RetryableIngestError, UnreachableError
from kvscope.model.request import RequestPart, Source
from kvscope.pipeline import disklog
from kvscope.pipeline.contracts import Batch
from kvscope.pipeline.spool import Spool, SpoolSettings
from kvscope.pipeline.writer import Writer, WriterSettings

DEADLINE = 10.0


class Store:
    """A store that is away or hangs as long as a test says."""

    def __init__(self, *, away: bool = False) -> None:
        self.written: list[str] = []
        self.away = away
        self.open = threading.Event()
        self.open.set()

    def write(self, batches: Sequence[Batch]) -> int:
        assert self.open.wait(DEADLINE)
        if self.away:
            raise UnreachableError("the store is away")
        self.written += [part.request_id for batch in batches for part in batch.parts]
        return 0


def batch(name: str, *, only_copy: bool = False) -> Batch:
    part = RequestPart(request_id=name, source=Source.SPAN, values={"route": "a" * 200})
    return Batch(parts=[part], only_copy=only_copy)


class Agent:
    """A writer with its spool; ``kill`` leaves both as a killed process does."""

    def __init__(self, store: Store, folder: Path, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        self.store = store
        chosen = SpoolSettings.model_validate({"after_seconds": 0.1, "sync": False, **settings})
        self.spool = Spool(folder, chosen, self.registry)
        self.writer = Writer(
            store, WriterSettings(queue_items=50, drain_seconds=1.0), self.registry, spool=self.spool
        )
        self.heard: list[str] = []
        self.writer.subscribe(lambda batch: self.heard.extend(part.request_id for part in batch.parts))

    def offer(self, *names: str, **more: Any) -> list[Future[int]]:
        return [self.writer.offer(batch(name, **more)) for name in names]

    def kill(self) -> None:
        self.spool.close()

    def metric(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


Run = Callable[..., Agent]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    agents: list[Agent] = []

    def start(store: Store, **settings: Any) -> Agent:
        agent = Agent(store, tmp_path / "spool", **settings)
        agents.append(agent)
        agent.writer.start()
        return agent

    yield start
    for agent in agents:
        agent.store.open.set()
        agent.store.away = False
        agent.writer.stop()


NAMES = [str(number) for number in range(20)]


def test_senders_are_answered_from_the_disk_and_the_store_gets_it_in_order(run: Run) -> None:
    store = Store(away=True)
    agent = run(store)
    for receipt in agent.offer(*NAMES):
        assert receipt.result(DEADLINE) == 0
    assert store.written == []
    assert agent.heard == NAMES
    assert agent.spool.items == agent.metric("kvscope_spool_items") == len(NAMES)
    ok, line = agent.writer.health()
    assert (ok, line) == (False, "0 items wait for the store, 20 more on disk: the store is away")
    store.away = False
    until(lambda: len(store.written) == len(NAMES))
    assert agent.offer("last")[0].result(DEADLINE) == 0
    assert store.written == [*NAMES, "last"]
    assert agent.heard == [*NAMES, "last"], "each once"
    until(lambda: agent.spool.items == 0)
    assert agent.writer.health() == (True, "0 items wait for the store")


def test_a_store_that_hangs_holds_nobody_up(run: Run) -> None:
    store = Store()
    store.open.clear()
    agent = run(store)
    for receipt in agent.offer(*NAMES):
        assert receipt.result(DEADLINE) == 0
    store.open.set()
    until(lambda: agent.spool.items == 0)
    # the write that hung may have gone through as well: both are the same rows
    assert list(dict.fromkeys(store.written)) == NAMES


def test_what_a_killed_agent_had_answered_is_written_by_the_next(run: Run) -> None:
    killed = run(Store(away=True))
    for receipt in killed.offer(*NAMES):
        assert receipt.result(DEADLINE) == 0
    killed.kill()
    store = Store()
    agent = run(store)
    until(lambda: len(store.written) == len(NAMES))
    assert store.written == agent.heard == NAMES
    until(lambda: agent.spool.items == 0)


def test_what_its_sender_keeps_no_copy_of_outlives_a_kill_before_its_commit(run: Run) -> None:
    store = Store()
    killed = run(store, after_seconds=60.0)
    killed.offer("committed", only_copy=True)[0].result(DEADLINE)
    store.open.clear()
    killed.offer("waits", only_copy=True)
    killed.offer("its sender sends it again")
    killed.kill()
    after = Store()
    agent = run(after)
    until(lambda: after.written == ["waits"])
    until(lambda: agent.spool.items == 0)
    assert agent.metric("kvscope_spool_records_unreadable_total") == 0


def test_copies_leave_no_files_behind(run: Run, tmp_path: Path) -> None:
    agent = run(Store())
    for name in NAMES:
        agent.offer(name, only_copy=True)[0].result(DEADLINE)
    assert agent.writer.stop() == 0
    agent.spool.close()
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["lock"]


def test_a_full_spool_refuses_and_counts(run: Run) -> None:
    store = Store(away=True)
    agent = run(store, max_bytes=1_000)
    taken = agent.offer(*NAMES)
    until(lambda: not agent.spool.health()[0])
    with pytest.raises(RetryableIngestError, match="the queue is full"):
        taken += [agent.writer.offer(batch(str(number))) for number in range(20, 1_000)]
    assert agent.metric("kvscope_items_refused_total") == 1
    assert "1 were refused since the start" in agent.writer.health()[1]
    ok, line = agent.spool.health()
    assert not ok
    assert "it is full" in line
    assert "raise spool.max_bytes" in line
    store.away = False
    for receipt in taken:
        assert receipt.result(DEADLINE) == 0
    until(lambda: len(store.written) == agent.metric("kvscope_items_accepted_total"))
    assert store.written == [str(number) for number in range(len(store.written))]


def test_a_disk_that_takes_nothing_is_told_once_and_waited_out(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(away=True)
    agent = run(store)
    real = disklog.write_all

    def full(handle: int, data: bytes) -> None:
        real(handle, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disklog, "write_all", full)
    receipts = agent.offer(*NAMES)
    until(lambda: agent.metric("kvscope_spool_failures_total") >= 2)
    assert not any(receipt.done() for receipt in receipts)
    ok, line = agent.spool.health()
    assert not ok
    assert line.endswith("it cannot be written: No space left on device")
    monkeypatch.setattr(disklog, "write_all", real)
    for receipt in receipts:
        assert receipt.result(DEADLINE) == 0
    assert agent.spool.health()[0]
    store.away = False
    until(lambda: len(store.written) == len(NAMES))
    assert store.written == NAMES
    assert caplog.text.count("No space left on device") == 1


def test_stopping_with_the_store_away_leaves_all_on_disk(run: Run) -> None:
    agent = run(Store(away=True), after_seconds=60.0)
    receipts = agent.offer(*NAMES)
    assert agent.writer.stop() == 0
    assert [receipt.result(0) for receipt in receipts] == [0] * len(NAMES)
    assert agent.spool.items == len(NAMES)
    agent.spool.close()
    after = Store()
    run(after)
    until(lambda: after.written == NAMES)


def test_agents_do_not_share_a_place_and_adopt_what_nobody_holds(run: Run) -> None:
    first, second = run(Store(away=True)), run(Store(away=True))
    for agent, name in ((first, "a"), (second, "b")):
        assert agent.offer(name)[0].result(DEADLINE) == 0
    second.kill()
    third = Store()
    run(third)
    until(lambda: third.written == ["b"])
    assert first.spool.items == 1
    first.store.away = False
    until(lambda: first.store.written == ["a"])


def test_damaged_records_are_left_out_and_told(run: Run, tmp_path: Path) -> None:
    killed = run(Store(away=True))
    assert killed.offer("a")[0].result(DEADLINE) == 0
    assert killed.offer("b")[0].result(DEADLINE) == 0
    killed.kill()
    (file,) = (tmp_path / "spool").rglob("*.log")
    file.write_bytes(file.read_bytes()[:-1])
    store = Store()
    agent = run(store)
    until(lambda: agent.metric("kvscope_spool_records_unreadable_total") == 1)
    assert store.written == ["a"]
    assert "1 unreadable records were left out" in agent.spool.health()[1]


def test_a_folder_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the spool .*file/spool cannot be used: Not a directory; name a"):
        Spool(tmp_path / "file" / "spool", SpoolSettings(), CollectorRegistry())
