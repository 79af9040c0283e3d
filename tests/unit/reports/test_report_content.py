"""What a report says of a store whose figures are known by hand."""

import pytest

from kvscope.model.advice import RoutePolicy
from kvscope.model.telemetry import MetricSample
from kvscope.pipeline.contracts import Batch
from kvscope.reports.tuning import build_report, render
from kvscope.store.database import Store
from tests.support import seed
from tests.unit.reports.conftest import ENGINE, NOW, request


def test_totals_are_sums_over_requests_whose_tokens_are_known(four_requests: Store) -> None:
    totals = build_report(four_requests, now=NOW).totals
    assert (totals.requests, totals.known_requests) == (4, 3)
    assert (totals.prompt_tokens, totals.cached_tokens) == (250, 80)
    assert totals.hit_rate == pytest.approx(0.32)


def test_ttft_is_the_engines_where_any_engine_told_it(four_requests: Store) -> None:
    report = build_report(four_requests, now=NOW)
    total = report.totals.ttft
    assert total is not None
    assert (total.source, total.requests) == ("engine", 2)
    assert (total.mean, total.p50, total.p95) == pytest.approx((0.2, 0.2, 0.29))
    by_route = {line.key: line.ttft for line in report.routes}
    assert by_route["b"] is not None
    assert by_route["b"].source == "client"
    assert by_route["b"].mean == pytest.approx(0.05)


def test_routes_come_with_most_prompt_tokens_first(four_requests: Store) -> None:
    lines = build_report(four_requests, now=NOW).routes
    assert [(line.key, line.requests, line.hit_rate) for line in lines] == [
        ("a", 3, pytest.approx(0.4)),
        ("b", 1, 0.0),
    ]


def test_causes_and_places_are_told_in_tokens(four_requests: Store) -> None:
    report = build_report(four_requests, now=NOW)
    assert report.missed_tokens == 170
    assert [(line.cause, line.tokens) for line in report.causes] == [
        ("diverged", 100),
        ("cold", 50),
        ("granularity", 20),
    ]
    assert sum(line.share for line in report.causes) == pytest.approx(1.0)
    # a cold prefix is new, not broken: only the timestamp is a place to change
    (place,) = report.places
    assert (place.route, place.role, place.message_index, place.value_kind) == ("a", "system", 0, "timestamp")
    assert (place.requests, place.tokens, place.example_request_id) == (2, 100, "r2")


def test_a_window_leaves_older_requests_out(four_requests: Store) -> None:
    report = build_report(four_requests, now=NOW, since_at=1_000_150.0)
    assert report.totals.requests == 3
    assert report.totals.cached_tokens == 20
    assert (report.first_at, report.last_at) == (1_000_200.0, 1_000_400.0)


def test_sums_agree_with_the_engines_counter(four_requests: Store) -> None:
    (line,) = build_report(four_requests, now=NOW).sums
    assert (line.engine, line.counter_tokens, line.record_tokens) == (ENGINE, 80, 80)
    # r3 does not tell its tokens, yet nothing is missing from the sum: it had none cached
    assert (line.unknown_requests, line.agree) == (1, True)


def test_a_difference_with_silent_requests_cannot_be_told(four_requests: Store) -> None:
    four_requests.batches.write([Batch(parts=[request("r5", 1_000_410.0, cached_tokens=7)])])
    (line,) = build_report(four_requests, now=NOW).sums
    assert (line.record_tokens, line.agree) == (87, None)


def test_a_difference_with_no_silent_request_is_a_disagreement(four_requests: Store) -> None:
    more = [request("r3", 1_000_300.0, cached_tokens=0), request("r5", 1_000_410.0, cached_tokens=7)]
    four_requests.batches.write([Batch(parts=more)])
    (line,) = build_report(four_requests, now=NOW).sums
    assert line.agree is False


def test_an_empty_store_tells_nothing_and_no_zero(small_store: Store) -> None:
    report = build_report(small_store, now=NOW)
    assert report.totals.hit_rate is None
    assert report.totals.ttft is None
    assert (report.first_at, report.last_at, report.routes, report.causes, report.sums) == (
        None,
        None,
        (),
        (),
        (),
    )


@pytest.mark.parametrize(("model", "built_in"), [("tiny-builtin", True), ("tiny-llama", False)])
def test_the_built_in_engine_is_named_as_such(small_store: Store, model: str, *, built_in: bool) -> None:
    small_store.batches.write([Batch(parts=[request("r1", NOW, model=model)])])
    (engine,) = build_report(small_store, now=NOW).engines
    assert (engine.url, engine.models, engine.built_in) == (ENGINE, (model,), built_in)


@pytest.mark.parametrize(("hash_algo", "built_in"), [("kvscope-builtin-engine", True), ("sha256", False)])
def test_an_engine_s_metrics_tell_what_it_is_whatever_its_model_is_called(
    small_store: Store, hash_algo: str, *, built_in: bool
) -> None:
    config = MetricSample(
        engine=ENGINE,
        replica="0",
        name="vllm:cache_config_info",
        labels={"prefix_caching_hash_algo": hash_algo},
        at=NOW,
        value=1.0,
    )
    model = "tiny" if built_in else "tiny-builtin"
    small_store.batches.write([Batch(parts=[request("r1", NOW, model=model)], samples=[config])])
    (engine,) = build_report(small_store, now=NOW).engines
    assert engine.built_in is built_in


def test_a_model_that_was_never_served_is_not_named(small_store: Store) -> None:
    asked = [request("r1", NOW), request("r2", NOW, model="nope", status="rejected")]
    small_store.batches.write([Batch(parts=asked)])
    (engine,) = build_report(small_store, now=NOW).engines
    assert engine.models == ("tiny",)


def test_a_promotion_shows_its_route_before_and_after(four_requests: Store) -> None:
    four_requests.advice.set_policy(
        RoutePolicy(
            route="a", transforms=(seed.SORT,), experiment=None, actor="dashboard", since_at=1_000_150.0
        )
    )
    (promotion,) = build_report(four_requests, now=NOW).promotions
    assert promotion.before is not None
    assert promotion.after is not None
    assert promotion.before.hit_rate == pytest.approx(0.6)
    assert promotion.after.hit_rate == pytest.approx(0.2)
    assert (promotion.before.requests, promotion.after.requests) == (1, 2)


def test_a_route_that_was_set_back_is_no_promotion(four_requests: Store) -> None:
    four_requests.advice.set_policy(
        RoutePolicy(route="a", transforms=(), experiment=None, actor="dashboard", since_at=NOW)
    )
    assert build_report(four_requests, now=NOW).promotions == ()


def test_a_suggestion_that_is_in_force_is_marked_so(small_store: Store) -> None:
    seed.seed_traffic(small_store)
    seed.seed_advice(small_store)
    seed.seed_experiments(small_store)
    report = build_report(small_store, now=seed.NOW)
    assert {line.kind: line.in_force for line in report.suggestions} == {
        "move_volatile": True,
        "sort_tools": False,
        "more_memory": False,
    }
    text = render(report, "md")
    assert text.count("- Already in force.") == 1
    assert "The best open suggestion, on route agent" in text


def test_an_experiment_is_told_by_its_last_look(small_store: Store) -> None:
    seed.seed_traffic(small_store)
    seed.seed_advice(small_store)
    seed.seed_experiments(small_store)
    done, draft = build_report(small_store, now=seed.NOW).experiments
    assert (done.name, done.state, done.verdict) == ("support-clock-last", "decided", "keep")
    look = small_store.experiments.looks("exp-support", last=1)[0].results
    assert [(arm.name, arm.requests, arm.hit_rate) for arm in done.arms] == [
        (name, look["arms"][name]["requests"], look["arms"][name]["hit_rate"])
        for name in ("baseline", "treatment")
    ]
    decides = done.intervals[0]
    assert (decides.metric, decides.decides) == ("uncached_tokens", True)
    assert decides.estimate == look["difference"]["estimate"]
    assert {line.metric for line in done.guardrails} == {"error", "ttft_seconds"}
    assert (draft.looks, draft.intervals) == (0, ())
    assert {line.state for line in draft.guardrails} == {"cannot_tell"}
