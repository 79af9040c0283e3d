"""The views as functions: rows in, frames and charts out."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from dashboards import theme, ui
from dashboards.views import advice, causes, charts, overview, records, tables, trials
from dashboards.views.windows import WINDOWS, bucket_seconds
from kvscope.agent.asking import LastLook
from kvscope.model.advice import (
    Experiment,
    ExperimentState,
    Intent,
    IntentAction,
    Look,
    RoutePolicy,
    Transition,
    Verdict,
)
from kvscope.model.request import RequestRecord, Status
from kvscope.model.views import HitRow, MissRow, TimelineRow
from kvscope.reports.content import IntervalLine, SumLine
from tests.support import seed


def hit_row(key: str, prompt: int = 100, cached: int = 25, **values: Any) -> HitRow:
    return HitRow(
        **{
            "key": key,
            "requests": 2,
            "known_requests": 2,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "ttft_seconds_mean": 0.2,
            "causes": {"diverged": prompt - cached},
            **values,
        }
    )


def timeline_row(at: float, route: str, **values: Any) -> TimelineRow:
    return TimelineRow(
        **{
            "at": at,
            "route": route,
            "requests": 1,
            "prompt_tokens": 100,
            "cached_tokens": 50,
            "ttft_seconds_mean": 0.1,
            "tpot_seconds_mean": None,
            **values,
        }
    )


def experiment(**values: Any) -> Experiment:
    return Experiment(
        **{
            "id": "e1",
            "name": "one",
            "route": "a",
            "arms": seed.arms(seed.SORT),
            "created_at": 50.0,
            **values,
        }
    )


def look(at: float, estimate: float, low: float, high: float, **values: Any) -> Look:
    difference = {
        "metric": "uncached_tokens",
        "lower_is_better": True,
        "level": 0.95,
        "estimate": estimate,
        "low": low,
        "high": high,
        "relative": -0.5,
    }
    return Look(
        experiment="e1",
        at=at,
        verdict=Verdict.UNDECIDED,
        reasons=("because",),
        results={"difference": difference, "differences": {}, "arms": {}, "guardrails": [], **values},
    )


# windows


def test_a_window_begins_at_a_round_moment_so_that_reads_are_shared() -> None:
    hour = next(window for window in WINDOWS if window.label == "1 hour")
    assert hour.since_at(10_003.2) == 6_400.0
    assert hour.since_at(10_004.9) == 6_400.0
    assert hour.before(10_003.2) == (2_800.0, 6_400.0)


def test_the_window_of_all_has_no_begin() -> None:
    everything = WINDOWS[-1]
    assert everything.since_at(10_000.0) is None
    assert everything.before(10_000.0) is None


@pytest.mark.parametrize(
    ("length", "requests", "expected"),
    [
        (90.0, 10_000, 1.0),
        (3_600.0, 100_000, 60.0),
        (3_600.0, 480, 120.0),  # a bucket of 15 requests, not an empty one
        (3_600.0, 5, 300.0),  # few requests still make a line
        (86_400.0 * 360, 10**9, 4 * 86_400.0),
        (0.0, 1, 1.0),
    ],
)
def test_buckets_are_round_and_neither_too_many_nor_too_empty(
    length: float, requests: int, expected: float
) -> None:
    assert bucket_seconds(length, requests) == expected


# overview


def test_routes_beyond_the_colours_share_one_name() -> None:
    rows = [hit_row(f"r{i}", prompt=1_000 - i) for i in range(9)]
    assert overview.shown_routes(rows) == ["r0", "r1", "r2", "r3", "r4", overview.OTHERS]
    assert overview.shown_routes(rows[:3]) == ["r0", "r1", "r2"]


def test_a_hit_rate_over_time_is_weighted_by_tokens() -> None:
    rows = [
        timeline_row(0.0, "x", prompt_tokens=100, cached_tokens=100),
        timeline_row(0.0, "y", prompt_tokens=300, cached_tokens=0),
        timeline_row(60.0, "x", prompt_tokens=0, cached_tokens=0),
    ]
    frame = overview.timeline_frame(rows, overview.HIT_RATE, ["only", overview.OTHERS], 10.0)
    assert list(frame["value"]) == [0.25]
    assert list(frame["requests"]) == [2]


def test_a_bucket_of_which_nothing_is_known_is_absent_not_zero() -> None:
    frame = overview.timeline_frame([timeline_row(0.0, "x")], overview.TPOT, ["x"], 10.0)
    assert frame.empty
    assert list(frame.columns) == ["at", "route", "value", "requests", "middle"]


def test_a_bucket_is_drawn_in_its_middle() -> None:
    frame = overview.timeline_frame([timeline_row(60.0, "x")], overview.TTFT, ["x"], 10.0)
    assert [frame["at"][0].timestamp(), frame["middle"][0].timestamp()] == [60.0, 65.0]


def test_times_over_time_are_in_milliseconds() -> None:
    frame = overview.timeline_frame([timeline_row(0.0, "x")], overview.TTFT, ["x"], 10.0)
    assert frame["value"][0] == pytest.approx(100.0)


def test_the_first_route_has_the_accent_and_events_are_marked() -> None:
    frame = overview.timeline_frame([timeline_row(0.0, "x")], overview.HIT_RATE, ["x"], 10.0)
    events = [charts.Event(at=0.0, label="a very long name of an experiment started")]
    chart = overview.timeline_chart(frame, overview.HIT_RATE, ["x"], events).to_dict()
    assert len(chart["layer"]) == 3
    assert chart["layer"][-1]["encoding"]["color"]["scale"]["range"] == [theme.CHART]
    assert chart["layer"][-1]["encoding"]["y"]["scale"]["domain"] == [0, 1]


def test_routes_with_unknown_tokens_show_no_zero() -> None:
    frame = overview.route_frame(
        [hit_row("x", prompt=0, cached=0, known_requests=0, ttft_seconds_mean=None, causes={})]
    )
    row = frame.iloc[0]
    assert row["label"] == "unknown"
    assert [row["prompt_tokens"], row["hit_rate"], row["ttft_ms"]] == [None, None, None]
    assert overview.route_bars(frame, ["x"]).to_dict()["layer"]


def test_events_are_starts_and_promotions_within_the_window() -> None:
    started = experiment(started_at=100.0)
    policy = RoutePolicy(
        route="a", transforms=(seed.SORT,), experiment="e1", actor="dashboard", since_at=200.0
    )
    found = overview.events([experiment(), started], [policy], None)
    assert [(event.at, event.label) for event in found] == [(100.0, "one started"), (200.0, "a promoted")]
    assert [event.at for event in overview.events([started], [policy], 150.0)] == [200.0]


def test_a_change_from_the_unknown_is_unknown() -> None:
    assert overview.change(0.5, 0.25) == 0.25
    assert overview.change(0.5, None) is None


def test_sums_are_told_in_a_sentence() -> None:
    line = SumLine(
        engine="http://e",
        first_at=0.0,
        last_at=1.0,
        counter_tokens=1_080,
        record_tokens=1_000,
        unknown_requests=1,
        agree=None,
    )
    assert overview.sums_line(line) == (
        "the engine counted 1,080 cached tokens, the records hold 1,000. It is not known of 1 request."
    )
    assert "so do the records" in overview.sums_line(replace(line, record_tokens=1_080, agree=True))


# causes


def test_a_routes_causes_and_hits_are_its_whole_prompts() -> None:
    rows = [hit_row("x", prompt=200, cached=50, causes={"cold": 100, "in_flight": 50})]
    frame = causes.cause_frame(rows)
    assert list(zip(frame["cause"], frame["tokens"], frame["share"], strict=True)) == [
        ("cached", 50, 0.25),
        ("cold", 100, 0.5),
        ("in flight", 50, 0.25),
    ]
    chart = causes.cause_chart(frame, share=True).to_dict()
    assert chart["encoding"]["color"]["scale"]["domain"] == ["cached", "cold", "in flight"]
    assert chart["encoding"]["x"]["field"] == "share"


def test_routes_with_unknown_tokens_have_no_causes() -> None:
    assert causes.cause_frame([hit_row("x", prompt=0, cached=0, causes={})]).empty


def test_every_cause_has_a_colour() -> None:
    from kvscope.model.request import MissCause

    assert {cause.value for cause in MissCause} | {theme.CACHED} == set(theme.CAUSE_COLOURS)


def test_missed_tokens_by_cause_add_up() -> None:
    frame = causes.totals_frame([hit_row("x", causes={"cold": 30}), hit_row("y", causes={"diverged": 90})])
    assert list(frame["cause"]) == ["diverged", "cold"]
    assert list(frame["share"]) == [0.75, 0.25]


def test_places_are_told_in_words() -> None:
    row = MissRow(
        route="a",
        cause="diverged",
        role="system",
        message_index=0,
        value_kind="timestamp",
        requests=3,
        tokens=900,
        example_request_id="r1",
        example_char_start=4,
        example_char_end=23,
    )
    frame = causes.place_frame([row, replace(row, cause="cold", value_kind=None)], ["diverged"])
    assert frame.to_dict("records") == [
        {
            "route": "a",
            "cause": "diverged",
            "place": "system message 0",
            "kind": "timestamp",
            "requests": 3,
            "tokens": 900,
            "where": "characters 4 to 23",
            "example": "r1",
        }
    ]
    assert len(causes.place_frame([row, replace(row, cause="cold")])) == 2


# records

RECORD = RequestRecord(
    request_id="req-1",
    session="s-7",
    route="a",
    arrived_at=1_000.0,
    status=Status.OK,
    prompt_tokens=100,
    cached_tokens=64,
    causes={"diverged": 32, "granularity": 4},
    ttft_seconds=0.12,
    queue_seconds=0.02,
    prefill_seconds=0.1,
    sources={"prompt_tokens": "span", "ttft_seconds": "span"},
)


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        (records.Filter(), True),
        (records.Filter(route="a", status="ok", cause="diverged"), True),
        (records.Filter(route="b"), False),
        (records.Filter(status="error"), False),
        (records.Filter(cause="evicted"), False),
        (records.Filter(text="s-7"), True),
        (records.Filter(text="nowhere"), False),
    ],
)
def test_filters_let_through_what_they_name(chosen: records.Filter, *, shown: bool) -> None:
    assert chosen.lets(RECORD) is shown


def test_requests_are_listed_newest_first_with_their_main_cause() -> None:
    frame = records.record_frame([RECORD, RequestRecord(request_id="req-2", arrived_at=2_000.0)])
    assert list(frame["request_id"]) == ["req-2", "req-1"]
    assert frame["hit_rate"][1] == 0.64
    assert frame["cause"][1] == "diverged"
    assert pd.isna(frame["hit_rate"][0])


def test_details_name_each_value_and_who_told_it() -> None:
    found = records.details(RECORD)
    assert ("prompt tokens", "100", "span") in found["Tokens"]
    assert ("ttft", "120 ms", "span") in found["Times"]
    assert "Treatment" not in found
    assert "tpot" in records.unknown_fields(RECORD)


def test_a_requests_bars_need_known_values() -> None:
    tokens = records.token_bar(RECORD)
    assert tokens is not None
    values = next(iter(tokens.to_dict()["datasets"].values()))
    assert [(row["part"], row["value"]) for row in values] == [
        ("cached", 64.0),
        ("diverged", 32.0),
        ("granularity", 4.0),
    ]
    phases = records.phase_bar(RECORD)
    assert phases is not None
    assert [row["value"] for row in next(iter(phases.to_dict()["datasets"].values()))] == [20.0, 100.0]
    nothing = RequestRecord(request_id="r")
    assert records.token_bar(nothing) is None
    assert records.phase_bar(nothing) is None


# suggestions


def test_names_of_new_experiments_are_free() -> None:
    suggestion = seed.suggestions()[0]
    assert advice.name_for(suggestion, set()) == "support-move-volatile"
    taken = {"support-move-volatile", "support-move-volatile-2"}
    assert advice.name_for(suggestion, taken) == "support-move-volatile-3"


def test_experiments_of_a_suggestion_are_found() -> None:
    suggestion = seed.suggestions()[0]
    own, other = experiment(suggestion_id=suggestion.id), experiment(suggestion_id="other")
    assert advice.tried_by(suggestion, [own, other]) == [own]


def test_the_bars_of_a_suggestion_are_labelled() -> None:
    chart = advice.hit_rate_bars(seed.suggestions()[0]).to_dict()
    rows = next(iter(chart["datasets"].values()))
    assert [row["label"] for row in rows] == ["1.2 %", "92.1 %"]


# experiments


@pytest.mark.parametrize(
    ("state", "verdict", "promoted", "expected"),
    [
        (ExperimentState.DRAFT, None, False, (True, "Discard", False, False)),
        (ExperimentState.RUNNING, None, False, (False, "Stop", False, False)),
        (ExperimentState.DECIDED, Verdict.KEEP, False, (False, "Close without promoting", True, False)),
        (ExperimentState.DECIDED, Verdict.DROP, False, (False, "Close without promoting", True, True)),
        (ExperimentState.DECIDED, Verdict.KEEP, True, (False, "Undo the promotion", False, False)),
        (ExperimentState.STOPPED, None, False, (False, None, True, True)),
    ],
)
def test_only_what_makes_sense_may_be_asked(
    state: ExperimentState, verdict: Verdict | None, *, promoted: bool, expected: tuple[Any, ...]
) -> None:
    policy = RoutePolicy(route="a", transforms=(seed.SORT,), experiment="e1", actor="x", since_at=1.0)
    may = trials.actions(experiment(state=state, verdict=verdict), [policy] if promoted else [])
    assert (may.start, may.stop_label if may.stop else None, may.promote, may.override) == expected


@pytest.mark.parametrize(
    ("outcome", "now", "kind", "part"),
    [
        (None, 105.0, "info", "the agent acts on it within seconds"),
        (None, 130.0, "warning", "is `kvscope agent` running"),
        ("done: started", 130.0, "success", "Start: started"),
        ("refused: it is stopped", 130.0, "error", "Start: it is stopped"),
    ],
)
def test_what_became_of_a_wish_is_told(outcome: str | None, now: float, kind: str, part: str) -> None:
    intent = Intent(
        id=1, experiment="e1", action=IntentAction.START, actor="dashboard", at=100.0, outcome=outcome
    )
    told = trials.asked(intent, now)
    assert told[0] == kind
    assert part in told[1]


def test_where_an_experiment_stands_is_one_sentence() -> None:
    running = experiment(state=ExperimentState.RUNNING, started_at=100.0)
    assert trials.standing(experiment(), None, 0.0).startswith("A draft")
    assert trials.standing(running, None, 160.0) == "Running for 1 min; no look yet."
    assert trials.standing(running, look(158.0, 0, 0, 0), 160.0) == "Running for 1 min; last look 2 s ago."
    ended = experiment(state=ExperimentState.STOPPED, started_at=0.0, ended_at=90.0)
    assert trials.standing(ended, None, 0.0) == "Stopped 1970-01-01 00:01:30 UTC after 1 min 30 s."


def test_looks_that_cannot_tell_are_left_out_of_the_chart() -> None:
    silent = look(1.0, 0, 0, 0, difference={"metric": "uncached_tokens", "cannot_tell": "too few"})
    frame = trials.look_frame([silent, look(2.0, -10.0, -15.0, -5.0)])
    assert frame[["estimate", "low", "high"]].to_numpy().tolist() == [[-10.0, -15.0, -5.0]]
    chart = trials.interval_chart(frame, "uncached_tokens").to_dict()
    low, high = chart["layer"][1]["encoding"]["y"]["scale"]["domain"]
    assert low < -15.0
    assert high > 0.0


def test_no_looks_are_an_empty_frame() -> None:
    assert trials.look_frame([]).empty


@pytest.mark.parametrize(
    ("low", "high", "lower_is_better", "expected"),
    [
        (-15.0, -5.0, True, "better"),
        (5.0, 15.0, True, "worse"),
        (5.0, 15.0, False, "better"),
        (-5.0, 15.0, True, "not told from no change"),
        (None, None, True, "cannot tell"),
    ],
)
def test_an_interval_is_read_for_people(
    low: float | None, high: float | None, *, lower_is_better: bool, expected: str
) -> None:
    line = IntervalLine(
        metric="uncached_tokens",
        decides=True,
        lower_is_better=lower_is_better,
        estimate=None if low is None else 0.0,
        low=low,
        high=high,
        relative=None,
    )
    assert trials.reading(line) == expected


def test_the_history_goes_back_to_the_creation() -> None:
    started = Transition(
        experiment="e1", at=100.0, state=ExperimentState.RUNNING, actor="dashboard", reason="start"
    )
    told = trials.history_lines(experiment(), [started])
    assert told[0] == "1970-01-01 00:01:40 UTC, dashboard: running, start"
    assert [line.rpartition(" ")[2] for line in told] == ["start", "created"]


# tables


def test_rates_in_tables_are_per_cent_and_every_column_has_a_title() -> None:
    frames = [
        overview.route_frame([hit_row("x")]).drop(columns="label"),
        causes.totals_frame([hit_row("x")]),
        causes.place_frame([]),
        records.record_frame([RECORD]),
        records.detail_frame([]),
        trials.experiment_frame([experiment()]),
        trials.difference_frame([]),
        trials.arm_frame([]).drop(columns="changes"),
    ]
    for frame in frames:
        assert set(tables.options(frame)["column_config"]) == set(frame.columns)
    assert list(tables.options(frames[0])["data"]["hit_rate"]) == [25.0]


def test_commands_in_a_sentence_are_shown_as_code_and_names_as_they_are() -> None:
    said = ui.prose("route a_b*: run `kvscope db upgrade --db sqlite:///a_b.db`")
    assert said == r"route a\_b\*\: run `kvscope db upgrade --db sqlite:///a_b.db`"


def test_an_empty_list_of_suggestions_says_what_the_agent_says() -> None:
    look = LastLook(
        looked_at=1_790_000_000.0, none_because="no change gains", unchanged={"b": "few", "a": "full"}
    )
    assert advice.nothing(look, "http://a")[1] == (
        "The agent says: no change gains. It looked last at 2026-09-21 14:13:20 UTC."
    )
    assert "none answers at `http://a`" in advice.nothing(None, "http://a")[1]
    (of_b,) = [replace(each, route="b") for each in seed.suggestions()[:1]]
    assert advice.left_alone(look, [of_b]) == {"a": "full"}
    assert advice.left_alone(None, []) == {}


def test_a_suggestion_has_an_interval_where_a_model_told_it() -> None:
    told = seed.suggestions()[0]
    assert told.ttft_change_seconds == -0.131
    ends = {"ttft_change_low_seconds": -0.14, "ttft_change_high_seconds": -0.122}
    assert advice.ttft_interval(replace(told, evidence=ends)) == "−140 to −122 ms"
    assert advice.ttft_interval(replace(told, evidence={})) is None
