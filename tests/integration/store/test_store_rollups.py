"""Rollups: late and repeated parts, several agents, stops; the answers stay those of the requests."""

import dataclasses
import random
import threading
from typing import Any

import pytest
from sqlalchemy import func, select, text

from kvscope.model.request import RequestPart, Source
from kvscope.model.views import SpreadRow
from kvscope.pipeline.contracts import Batch
from kvscope.store import migrate, schema, sketches
from kvscope.store.database import Store, open_store
from kvscope.store.engines import connect
from kvscope.store.rollups import Rollups
from kvscope.store.urls import locate

LATER = 1e9


def part(number: int, source: Source = Source.SPAN, **values: Any) -> RequestPart:
    return RequestPart(request_id=f"r{number}", source=source, values=values)


def minutes(store: Store) -> tuple[list[int], list[int]]:
    """The minutes that are rolled up and those that are marked."""
    with store.engines.reading() as connection:
        rolled = connection.execute(select(schema.rollups.c.minute).distinct()).scalars().all()
        marked = connection.execute(select(schema.rollup_changes.c.minute)).scalars().all()
    return sorted(rolled), sorted(marked)


def answers(store: Store) -> list[Any]:
    windows: list[dict[str, float]] = [{}, {"since_at": 61.5}, {"until_at": 200.0}]
    windows.append({"since_at": 30.0, "until_at": 250.0})
    found: list[Any] = [
        store.reader.hits(by, **window)
        for by in ("route", "tenant", "model", "arm", "total")
        for window in windows
    ]
    return [
        *found,
        *(store.reader.timeline(bucket_seconds=bucket) for bucket in (60.0, 3_600.0)),
        *(store.reader.ttft("tenant", **window) for window in windows),
    ]


def plain(found: Any) -> Any:
    if isinstance(found, list):
        return [plain(one) for one in found]
    return dataclasses.asdict(found)


def near(found: Any) -> Any:
    """Sums of seconds depend on their order in the last digit."""
    if isinstance(found, list):
        return [near(one) for one in found]
    values = dataclasses.asdict(found)
    return {name: pytest.approx(one) if isinstance(one, float) else one for name, one in values.items()}


@pytest.fixture
def traffic(store: Store) -> Store:
    """Ten minutes of 60 requests, of two routes, two tenants and two arms."""
    chance = random.Random(3)
    parts = [
        part(
            number,
            arrived_at=number * 10.0,
            route=chance.choice(["a", "b"]),
            tenant=chance.choice(["t", "é\U0001f600", None]),
            model="m",
            experiment=chance.choice(["e", None]),
            arm=chance.choice(["x", "y"]),
            prompt_tokens=chance.randrange(2**31),
            cached_tokens=chance.choice([None, chance.randrange(1_000)]),
            ttft_seconds=chance.lognormvariate(-2, 1),
            ttft_client_seconds=chance.choice([None, chance.random()]),
            tpot_seconds=chance.random(),
            causes={"cold": chance.randrange(100), "granularity": 3},
        )
        for number in range(60)
    ]
    store.batches.write([Batch(parts=parts)])
    return store


def test_rolled_up_minutes_answer_as_their_requests_do(traffic: Store) -> None:
    before = answers(traffic)
    assert minutes(traffic) == ([], list(range(10)))
    assert traffic.rollups.refresh(400.0) == 6  # of the seventh not all has come yet
    assert minutes(traffic) == (list(range(6)), [6, 7, 8, 9])
    assert plain(answers(traffic)) == near(before)
    assert traffic.rollups.refresh(LATER) == 4
    assert minutes(traffic) == (list(range(10)), [])
    assert plain(answers(traffic)) == near(before)


def test_pages_read_no_request_of_a_minute_that_is_rolled_up(traffic: Store) -> None:
    traffic.rollups.refresh(LATER)
    before = answers(traffic)
    with traffic.engines.writing() as connection:
        connection.execute(text("DELETE FROM requests WHERE arrived_at >= 60 AND arrived_at < 180"))
    assert traffic.reader.hits("total", since_at=60.0, until_at=180.0)[0].requests == 12
    assert traffic.reader.hits("total") == before[16]


def test_late_parts_and_repeated_ones_are_rolled_up_again(traffic: Store) -> None:
    traffic.rollups.refresh(LATER)
    late = [
        part(0, Source.PLUGIN, cached_tokens=77, route="z"),
        part(1, Source.GATEWAY, arrived_at=599.0),  # moves to another minute
        part(100, arrived_at=61.0, route="new"),
    ]
    traffic.batches.write([Batch(parts=late)])
    assert minutes(traffic)[1] == [0, 1, 9]
    before = answers(traffic)
    assert traffic.rollups.refresh(LATER) == 3
    assert plain(answers(traffic)) == near(before)
    traffic.batches.write([Batch(parts=late)])
    assert minutes(traffic)[1] == []  # what adds nothing changes nothing
    assert traffic.rollups.refresh(LATER) == 0


def test_what_is_pruned_leaves_the_rollups(traffic: Store) -> None:
    traffic.rollups.refresh(LATER)
    traffic.retention.prune(130.0)
    before = answers(traffic)
    assert traffic.reader.hits("total")[0].requests == 47
    assert traffic.rollups.refresh(LATER) == 3
    assert minutes(traffic) == (list(range(2, 10)), [])
    assert plain(answers(traffic)) == near(before)


def test_a_stop_leaves_the_rest_for_the_next_time(traffic: Store) -> None:
    before = answers(traffic)
    asked = iter([False, False, True])
    assert traffic.rollups.refresh(LATER, stop=lambda: next(asked, True)) == 2
    assert plain(answers(traffic)) == near(before)
    assert traffic.rollups.refresh(LATER) == 8


def test_a_minute_that_changes_while_it_is_rolled_up_stays_marked(
    traffic: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Rollups._replace

    def changed_first(self: Rollups, minute: int, marked: int, rolled: Any) -> bool:
        traffic.batches.write([Batch(parts=[part(200 + minute, arrived_at=minute * 60.0 + 1, route="a")])])
        return replace(self, minute, marked, rolled)

    with monkeypatch.context() as patched:
        patched.setattr(Rollups, "_replace", changed_first)
        assert traffic.rollups.refresh(LATER) == 0
    assert minutes(traffic) == ([], list(range(10)))
    assert traffic.reader.hits("total")[0].requests == 70


def test_agents_that_write_and_roll_up_at_once_agree(database_url: str) -> None:
    """Two writers and two that roll up, on the same few minutes."""
    stores = [open_store(database_url, upgrade=True) for _ in range(2)]
    ended = threading.Event()

    def write(store: Store, source: Source) -> None:
        for number in range(80):
            values = {"arrived_at": number % 7 * 30.0, "cached_tokens": 1, "prompt_tokens": 2}
            assert store.batches.write([Batch(parts=[part(number, source, **values)])]) == 0

    def roll_up(store: Store) -> None:
        while not ended.is_set():
            store.rollups.refresh(LATER)

    writers = [
        threading.Thread(target=write, args=(store, source))
        for store, source in zip(stores, (Source.SPAN, Source.PLUGIN), strict=True)
    ]
    others = [threading.Thread(target=roll_up, args=(store,)) for store in stores]
    for thread in [*writers, *others]:
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    for thread in others:
        thread.join()
    stores[0].rollups.refresh(LATER)
    assert minutes(stores[0]) == ([0, 1, 2, 3], [])
    (total,) = stores[1].reader.hits("total")
    assert (total.requests, total.known_requests, total.cached_tokens, total.prompt_tokens) == (
        80,
        80,
        80,
        160,
    )
    for store in stores:
        store.close()


def test_requests_of_the_first_versions_are_rolled_up_after_the_upgrade(database_url: str) -> None:
    migrate.upgrade(database_url)
    migrate.downgrade(database_url, "0002")
    engines = connect(locate(database_url))
    with engines.writing() as connection:
        for number, at in enumerate(["0", "59.9", "60", "1764000119.99", "NULL", "-5", "1e15"]):
            values = f"'{number}', {at}, '{{}}'"
            connection.execute(
                text(f"INSERT INTO requests (request_id, arrived_at, sources) VALUES ({values})")
            )
    engines.close()
    store = open_store(database_url, upgrade=True)
    assert minutes(store)[1] == [0, 1, 29_400_001]
    assert store.rollups.refresh(2e9) == 3
    assert store.reader.hits("total")[0].requests == 7
    with store.engines.reading() as connection:
        assert connection.execute(select(func.sum(schema.rollups.c.requests))).scalar() == 4
    store.close()


def test_sketches_merge_without_loss_and_stay_within_their_error() -> None:
    chance = random.Random(5)
    values = sorted(chance.lognormvariate(-1, 2) for _ in range(5_001))
    halves: list[sketches.Bins] = [{}, {}]
    for number, value in enumerate(values):
        sketches.add(halves[number % 2], value)
    both: sketches.Bins = {}
    for half in halves:
        sketches.merge(both, half)
    for rank in (0.0, 0.5, 0.95, 0.999, 1.0):
        (found,) = sketches.quantiles(both, [rank])
        assert found == pytest.approx(values[int(rank * 5_000)], rel=sketches.ACCURACY)
    with pytest.raises(ValueError, match="empty"):
        sketches.quantiles({}, [0.5])


def test_spread_says_who_measured(store: Store) -> None:
    parts = [
        part(1, arrived_at=1.0, route="a", ttft_seconds=0.1, ttft_client_seconds=0.2),
        part(2, arrived_at=2.0, route="a", ttft_seconds=0.3),
        part(3, arrived_at=3.0, route="b", ttft_client_seconds=0.0),
        part(4, arrived_at=4.0, route="c"),
    ]
    store.batches.write([Batch(parts=parts)])

    def row(key: str, source: str, requests: int, p50: float, p95: float) -> SpreadRow:
        near_50: Any = pytest.approx(p50, rel=0.01)
        near_95: Any = pytest.approx(p95, rel=0.01)
        return SpreadRow(key=key, source=source, requests=requests, p50=near_50, p95=near_95)

    expected = [row("a", "client", 1, 0.2, 0.2), row("a", "engine", 2, 0.1, 0.1), row("b", "client", 1, 0, 0)]
    assert store.reader.ttft("route") == expected
    store.rollups.refresh(LATER)
    assert store.reader.ttft("route") == expected
