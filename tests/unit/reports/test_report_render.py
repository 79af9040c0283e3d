"""Markdown, HTML and JSON of a report."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from typing import Literal

import pytest
from typing_extensions import override

from kvscope.errors import UsageError
from kvscope.pipeline.contracts import Batch
from kvscope.reports.tuning import build_report, render
from kvscope.store.database import Store
from tests.support import seed
from tests.unit.reports.conftest import NOW, request

_VOID = {"meta", "link", "br", "img", "input", "hr"}
_OPTIONAL_END = {"th", "td", "tr"}


class _Tags(HTMLParser):
    """Collects tags and what would load something from elsewhere; fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.loads: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in _VOID | _OPTIONAL_END:
            self.open.append(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        if tag not in _OPTIONAL_END:
            assert self.open.pop() == tag


def test_markdown_shows_the_figures(four_requests: Store) -> None:
    text = render(build_report(four_requests, now=NOW), "md")
    assert "| 4 | 250 | 80 | 32.0 % | 200 ms | 200 ms | 290 ms |" in text
    assert "| a | 3 | 200 | 40.0 % | 200 ms | 200 ms | 290 ms |" in text
    assert "| diverged | 100 | 58.8 % |" in text
    assert "| a | system message 0 | timestamp | diverged | 2 | 100 | characters 12 to 31 in r2 |" in text
    assert "The tokens of 1 request are unknown and not in the sums." in text
    assert "| 80 | 80 | agree; not known of 1 request |" in text


def test_what_is_unknown_is_written_unknown(small_store: Store) -> None:
    small_store.batches.write([Batch(parts=[request("r1", NOW)])])
    text = render(build_report(small_store, now=NOW), "md")
    assert "| 1 | unknown | unknown | unknown | unknown | unknown | unknown |" in text
    assert "Cannot be told: no engine's counters were scraped." in text


def test_an_empty_store_makes_a_report_in_all_formats(small_store: Store) -> None:
    report = build_report(small_store, now=NOW)
    assert "No requests in this window." in render(report, "md")
    assert "No requests in this window." in render(report, "html")
    assert json.loads(render(report, "json"))["totals"]["hit_rate"] is None


@pytest.mark.parametrize("form", ["md", "html"])
def test_every_section_is_there(small_store: Store, form: str) -> None:
    _seed(small_store)
    text = render(build_report(small_store, now=seed.NOW), form)  # type: ignore[arg-type]  # of the two
    for heading in (
        "In short",
        "Routes",
        "Why tokens missed",
        "Places that break prefixes",
        "Suggestions",
        "Experiments",
        "In force",
        "Latency models",
        "Do the sums agree",
    ):
        assert re.search(rf"^(#+ |<h[23]>){heading}", text, re.MULTILINE), heading
    assert "Moves 1 changing line of system messages" in text
    assert "verdict keep" in text or "decided: keep" in text
    assert "support-clock-last" in text


@pytest.mark.parametrize("form", ["md", "html"])
def test_a_suggestion_is_told_with_its_interval_gpu_time_and_what_could_go_wrong(
    small_store: Store, form: Literal["md", "html"]
) -> None:
    moved, _, memory = seed.suggestions()
    told = {"ttft_change_low_seconds": -0.14, "ttft_change_high_seconds": -0.122}
    told["gpu_seconds_saved_per_day"] = 3456.0
    small_store.advice.save_suggestions([dataclasses.replace(moved, evidence=told), memory])
    text = render(build_report(small_store, now=NOW), form)
    assert "−131 ms (−140 to −122 ms)" in text
    assert "3,460 GPU s" in text
    assert text.count("What could go wrong: ") == 2
    assert text.count("A person must act") == 1
    assert "Give the engine 900 blocks" in text


def test_html_is_well_formed_and_loads_nothing(small_store: Store) -> None:
    _seed(small_store)
    tags = _Tags()
    tags.feed(render(build_report(small_store, now=seed.NOW), "html"))
    assert tags.open == []
    assert tags.loads == []
    assert "script" not in tags.seen
    assert {"style", "table", "main"} <= tags.seen


def test_a_routes_name_is_text_in_html(small_store: Store) -> None:
    name = "<script>alert(1)</script>"
    small_store.batches.write([Batch(parts=[request("r1", NOW, route=name)])])
    text = render(build_report(small_store, now=NOW), "html")
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_a_routes_name_is_text_in_markdown(small_store: Store) -> None:
    small_store.batches.write([Batch(parts=[request("r1", NOW, route="a|b\n# c <i>`x`")])])
    text = render(build_report(small_store, now=NOW), "md")
    (row,) = [line for line in text.splitlines() if line.startswith("| a")]
    assert row.startswith("| a\\|b # c &lt;i>\\`x\\` | 1 |")


def test_the_built_in_engine_is_said_to_be_no_vllm(small_store: Store) -> None:
    small_store.batches.write([Batch(parts=[request("r1", NOW, model="tiny-builtin")])])
    report = build_report(small_store, now=NOW)
    assert "it is not vLLM" in render(report, "md")
    assert "it is not vLLM" in render(report, "html")


def test_json_has_moments_as_text_and_all_else_as_it_is(four_requests: Store) -> None:
    document = json.loads(render(build_report(four_requests, now=NOW), "json"))
    assert document["generated_at"] == "1970-01-12T13:55:00.000Z"
    assert document["totals"]["hit_rate"] == pytest.approx(0.32)
    assert document["routes"][1]["ttft"]["source"] == "client"


def test_an_unknown_format_names_the_known_ones(small_store: Store) -> None:
    with pytest.raises(UsageError, match="known are md, html, json"):
        render(build_report(small_store, now=NOW), "pdf")  # type: ignore[arg-type]  # what a caller may get wrong


def _seed(store: Store) -> None:
    seed.seed_traffic(store)
    seed.seed_advice(store)
    seed.seed_experiments(store)
