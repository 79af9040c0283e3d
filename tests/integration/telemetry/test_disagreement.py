"""Counters and records that differ, and the reason that is named; each scene is one engine's life."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from collectors.prometheus.page import parse_page
from kvscope.agent.checks import run_checks
from kvscope.agent.comparing import Comparing
from kvscope.model.request import RequestPart, Source, Status
from kvscope.model.telemetry import MetricSample
from kvscope.pipeline.contracts import Batch
from kvscope.reports.disagreement import Why, counts_lookups_again, reasons
from kvscope.reports.sums import engine_sums
from kvscope.store.database import Store, open_store
from tests.support.telemetry import metrics_page

ENGINE = "http://127.0.0.1:1"  # where nobody is asked for a version


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'kvscope.db'}", upgrade=True)
    yield opened
    opened.close()


def scrape(at: float, started_at: float, **totals: float) -> list[MetricSample]:
    names = {
        "hits": "vllm:prefix_cache_hits_total",
        "queries": "vllm:prefix_cache_queries_total",
        "prompt": "vllm:prompt_tokens_total",
    }
    samples = {names[name]: value for name, value in totals.items()} | {
        "process_start_time_seconds": started_at
    }
    return [
        MetricSample(engine=ENGINE, replica="0", name=name, labels={}, at=at, value=value)
        for name, value in samples.items()
    ]


def request(number: int, status: Status = Status.OK, **values: Any) -> RequestPart:
    told = {"engine": ENGINE, "arrived_at": 100.0 + number, "status": status, **values}
    return RequestPart(request_id=f"r{number}", source=Source.GATEWAY, values=told)


def known(number: int) -> RequestPart:
    return request(number, prompt_tokens=100, cached_tokens=60)


NOTHING = scrape(90.0, 50.0, hits=0, queries=0, prompt=0)
ABORTED = request(8, Status.ABORTED, ttft_client_seconds=0.1)

# name: scrapes, requests, counted minus recorded, requests whose tokens nobody told, reasons in order
SCENES: dict[str, tuple[list[MetricSample], list[RequestPart], int, int, list[Why]]] = {
    "they agree": (scrape(200.0, 50.0, hits=120, queries=200, prompt=200), [known(0), known(1)], 0, 0, []),
    "one went past the gateway": (
        scrape(200.0, 50.0, hits=180, queries=300, prompt=300), [known(0), known(1)], 60, 0, [Why.BYPASS],
    ),
    "looked up again, as before 0.27": (
        scrape(200.0, 50.0, hits=240, queries=400, prompt=200),
        [known(0), known(1)], 120, 0, [Why.REPEATED_LOOKUPS],
    ),
    "one was aborted": (
        scrape(200.0, 50.0, hits=180, queries=300, prompt=300), [known(0), known(1), ABORTED], 60, 1,
        [Why.ABORTED],
    ),
    "one does not tell": (
        scrape(200.0, 50.0, hits=180, queries=300, prompt=300),
        [known(0), known(1), request(2, prompt_tokens=100)], 60, 1, [Why.UNTOLD],
    ),
    "one failed midway": (
        scrape(200.0, 50.0, hits=180, queries=300, prompt=300),
        [known(0), known(1), request(2, Status.ERROR, ttft_client_seconds=0.1)], 60, 1, [Why.FAILED],
    ),
    "no server took one, another was refused": (
        scrape(200.0, 50.0, hits=120, queries=200, prompt=200),
        [known(0), known(1), request(2, Status.ERROR), request(3, Status.REJECTED)], 0, 0, [],
    ),
    "two servers with one name": (
        [
            *scrape(95.0, 60.0, hits=7, queries=30, prompt=30),
            *scrape(150.0, 50.0, hits=60, queries=100, prompt=100),
            *scrape(160.0, 60.0, hits=7, queries=30, prompt=30),
            *scrape(200.0, 50.0, hits=70, queries=130, prompt=130),
        ],
        [known(0), known(1)], 63 - 120, 0, [Why.SEVERAL_ENGINES],
    ),
    "more was recorded than counted": (
        scrape(200.0, 50.0, hits=60, queries=200, prompt=200), [known(0), known(1)], -60, 0, [Why.NOT_FOUND],
    ),
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_the_difference_is_a_number_with_its_reason(
    scene: tuple[Sequence[MetricSample], list[RequestPart], int, int, list[Why]], store: Store
) -> None:
    samples, parts, difference, unknown, expected = scene
    store.batches.write([Batch(samples=[*NOTHING, *samples], parts=parts)])
    (line,) = engine_sums(store)
    if expected != [Why.SEVERAL_ENGINES]:  # there what counts as their beginning is arbitrary
        assert (line.difference_tokens, line.unknown_requests) == (difference, unknown)
    assert [reason.why for reason in reasons(store, line)] == expected

    (check,) = (
        check
        for check in run_checks(store, vllm=ENGINE, agent=ENGINE, patience_seconds=0)
        if check.name == "sums agree"
    )
    assert check.ok is (not expected)
    assert (check.difference_tokens, [reason.why for reason in check.reasons]) == (
        line.difference_tokens,
        expected,
    )

    registry = CollectorRegistry()
    asyncio.run(Comparing(store, registry).compare())
    shown = registry.get_sample_value("kvscope_sums_difference_tokens", {"engine": ENGINE})
    assert shown == line.difference_tokens
    named = [
        why
        for why in Why
        if registry.get_sample_value("kvscope_sums_likely_reason", {"engine": ENGINE, "reason": why.value})
    ]
    assert sorted(named) == sorted(expected)


def test_after_a_restart_only_the_new_life_is_compared(store: Store) -> None:
    samples = [
        *scrape(150.0, 50.0, hits=60, queries=100, prompt=100),
        *scrape(180.0, 170.0, hits=0, queries=0, prompt=0),
        *scrape(200.0, 170.0, hits=60, queries=100, prompt=100),
    ]
    store.batches.write([Batch(samples=[*NOTHING, *samples], parts=[known(0), known(75)])])
    (line,) = engine_sums(store)
    assert (line.agree, line.difference_tokens, line.first_at) == (True, 0, 170.0)
    # one that was on its way when the engine died is in the records alone
    store.batches.write([Batch(parts=[known(71)])])
    (line,) = engine_sums(store)
    assert line.difference_tokens == -60
    assert [reason.why for reason in reasons(store, line)] == [Why.RESTART]


@pytest.mark.parametrize(("version", "expected"), [("0.32.0", False), ("0.23.0", True)])
def test_the_recorded_pages_tell_whether_lookups_are_repeated(
    version: str, expected: bool, store: Store
) -> None:
    store.batches.write([Batch(samples=parse_page(metrics_page(version), ENGINE, 100.0))])
    assert counts_lookups_again(store, ENGINE) is expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.26.1", [Why.REPEATED_LOOKUPS]),
        ("0.27.0", [Why.NOT_FOUND]),
        ("0.33.0", [Why.NOT_FOUND]),
        ("v0.11.2", [Why.REPEATED_LOOKUPS]),
        ("1.0", [Why.NOT_FOUND]),
        ("dev", [Why.REPEATED_LOOKUPS]),
    ],
)
def test_the_engines_own_version_is_believed(version: str, expected: list[Why], store: Store) -> None:
    samples = scrape(200.0, 50.0, hits=120, queries=200, prompt=100)
    store.batches.write([Batch(samples=[*NOTHING, *samples], parts=[known(0)])])
    (line,) = engine_sums(store)
    assert [reason.why for reason in reasons(store, line, version=version)] == expected


@pytest.mark.parametrize(
    ("transferred", "outputs", "told"),
    [(50.0, (1, 20), True), (0.0, (1, 20), False), (50.0, (20, 20), False), (50.0, (1, 1), False)],
)
def test_prompts_that_two_servers_report_are_told(
    transferred: float, outputs: tuple[int, int], told: bool, store: Store
) -> None:
    """The spans of a prefill and a decode server of one request; no other pair of spans is taken for it."""
    by_source = MetricSample(
        engine=ENGINE,
        replica="0",
        name="vllm:prompt_tokens_by_source_total",
        labels={"source": "external_kv_transfer"},
        at=200.0,
        value=transferred,
    )
    parts = [
        RequestPart(
            request_id="r",
            source=Source.SPAN,
            values={"prompt_tokens": 100, "output_tokens": output, "arrived_at": 100.0},
            piece=f"span-{number}",
        )
        for number, output in enumerate(outputs)
    ]
    store.batches.write([Batch(samples=[by_source], parts=parts)])
    found = [
        check
        for check in run_checks(store, vllm=ENGINE, agent=ENGINE, patience_seconds=0)
        if check.name == "prefill and decode servers"
    ]
    assert [check.ok for check in found] == ([False] if told else [])
