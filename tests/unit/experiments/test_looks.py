import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from kvscope.experiments.assignment import arm_for
from kvscope.experiments.looks import breaches, make_look
from kvscope.model.advice import Experiment, Guardrail, Look, Unit, Verdict
from kvscope.model.request import RequestRecord, Status

MakeExperiment = Callable[..., Experiment]
MakeRecord = Callable[..., RequestRecord]


@pytest.fixture
def look_at(make_experiment: MakeExperiment, make_record: MakeRecord) -> Callable[..., Look]:
    """Look at `units` sessions of two requests in each arm; `baseline` and `treatment` give their values."""

    def look(
        units: int = 30,
        baseline: Callable[[int], dict[str, Any]] = lambda _: {},
        treatment: Callable[[int], dict[str, Any]] = lambda _: {},
        **choices: Any,
    ) -> Look:
        experiment = make_experiment(**choices)
        records = [
            make_record(n, experiment, arm, **{"session": f"{arm}-{n // 2}", **values(n)})
            for arm, values in (("baseline", baseline), ("treatment", treatment))
            for n in range(2 * units)
        ]
        return make_look(experiment, records, now=2000.0)

    return look


def _noise(n: int) -> float:
    return random.Random(n).lognormvariate(0, 0.3)


def _cached(tokens: int) -> Callable[[int], dict[str, Any]]:
    return lambda n: {"cached_tokens": tokens + n % 32}


def test_fewer_computed_tokens_are_kept(look_at: Callable[..., Look]) -> None:
    look = look_at(30, _cached(100), _cached(900))
    assert look.verdict is Verdict.KEEP
    difference = look.results["difference"]
    assert difference["estimate"] == pytest.approx(-800.0)
    assert difference["low"] < -800 < difference["high"] < -780
    assert difference["relative"] == pytest.approx(-0.9035, abs=1e-3)
    low, high = difference["low"], difference["high"]
    told = "prompt tokens computed a request: treatment - baseline = -800 tokens (95% interval"
    assert look.reasons == (f"{told} {low:.4g} to {high:.4g}); better",)


def test_more_computed_tokens_are_dropped(look_at: Callable[..., Look]) -> None:
    look = look_at(30, _cached(900), _cached(100))
    assert look.verdict is Verdict.DROP
    assert look.reasons[0].endswith("; worse")
    assert breaches(look) == ()


def test_a_higher_hit_rate_is_kept(look_at: Callable[..., Look]) -> None:
    assert look_at(30, _cached(100), _cached(900), metric="hit_rate").verdict is Verdict.KEEP
    assert look_at(30, _cached(900), _cached(100), metric="hit_rate").verdict is Verdict.DROP


def test_equal_arms_stay_undecided(look_at: Callable[..., Look]) -> None:
    look = look_at(
        30,
        lambda n: {"cached_tokens": int(500 * _noise(n)) % 999},
        lambda n: {"cached_tokens": int(500 * _noise(n + 77)) % 999},
    )
    assert look.verdict is Verdict.UNDECIDED
    assert look.reasons[0].endswith("; not told from no change")


def test_the_figures_of_an_arm(look_at: Callable[..., Look]) -> None:
    look = look_at(30, _cached(100), lambda n: {"cached_tokens": 900, "ttft_seconds": 0.1 + n / 1000})
    arm = look.results["arms"]["treatment"]
    assert (arm["requests"], arm["units"], arm["warmup_requests"], arm["share"]) == (60, 30, 0, 0.5)
    assert (arm["prompt_tokens"], arm["cached_tokens"], arm["hit_rate"]) == (60_000, 54_000, 0.9)
    assert arm["ttft_seconds"]["mean"] == pytest.approx(0.1295)
    assert arm["ttft_seconds"]["p50"] == pytest.approx(0.1295)
    assert arm["ttft_seconds"]["p95"] == pytest.approx(0.15605)
    assert arm["means"]["uncached_tokens"] == 100.0
    assert arm["means"]["tpot_seconds"] is None
    assert look.results["requests"] == 120


def test_results_are_strict_json(look_at: Callable[..., Look]) -> None:
    for look in (look_at(30, _cached(100), _cached(900)), look_at(1), look_at(0)):
        assert json.loads(json.dumps(dict(look.results), allow_nan=False)) == look.results


def test_too_few_units_give_no_verdict(look_at: Callable[..., Look]) -> None:
    look = look_at(12, _cached(100), _cached(900))
    assert look.verdict is Verdict.UNDECIDED
    assert look.reasons[1] == "12 units in an arm are too few for a verdict (at least 20)"


def test_requests_of_one_session_are_not_independent(look_at: Callable[..., Look]) -> None:
    """Sessions that differ and repeat themselves: more requests of them tell nothing new."""

    def level(arm: str) -> Callable[[int], dict[str, Any]]:
        return lambda n: {"cached_tokens": random.Random(f"{arm}{n // 2}").randrange(1000)}

    look = look_at(20, level("a"), level("b"))
    width = look.results["difference"]["high"] - look.results["difference"]["low"]
    # 20 units a side, uniform on 1000: sd 289; 3.36 sd/sqrt(10) either way is 614 in all
    assert 450 < width < 800


def test_warmup_requests_are_left_out(make_experiment: MakeExperiment, make_record: MakeRecord) -> None:
    experiment = make_experiment()
    records = [
        make_record(n, experiment, arm, cached_tokens=0 if n < 2 else 900, warmup=n < 2)
        for arm in ("baseline", "treatment")
        for n in range(30)
    ]
    arm = make_look(experiment, records, now=2000.0).results["arms"]["baseline"]
    assert (arm["requests"], arm["units"], arm["warmup_requests"]) == (28, 28, 2)
    assert arm["hit_rate"] == 0.9


def test_unknown_tokens_are_not_zero(look_at: Callable[..., Look]) -> None:
    look = look_at(30, lambda _: {"cached_tokens": None}, _cached(900))
    assert look.verdict is Verdict.UNDECIDED
    assert look.results["arms"]["baseline"]["hit_rate"] is None
    assert look.results["difference"] == {
        "metric": "uncached_tokens",
        "cannot_tell": "the metric is known of 30 units of the treatment and 0 of the baseline:"
        " at least 2 of each are needed",
    }


def test_a_wrong_ratio_withholds_the_verdict(
    make_experiment: MakeExperiment, make_record: MakeRecord
) -> None:
    experiment = make_experiment()
    records = [make_record(n, experiment, "baseline", cached_tokens=100 + n) for n in range(100)]
    records += [make_record(1000 + n, experiment, "treatment", cached_tokens=900 + n % 9) for n in range(40)]
    look = make_look(experiment, records, now=2000.0)
    assert look.verdict is Verdict.UNDECIDED
    assert look.results["sample_ratio"]["ok"] is False
    assert look.results["sample_ratio"]["p_value"] == pytest.approx(4e-7, rel=0.02)
    assert look.reasons[0].startswith(
        "the arms did not get their shares: units assigned: baseline 100, treatment 40"
    )


def test_an_arm_that_loses_its_figures_is_a_wrong_ratio_too(
    make_experiment: MakeExperiment, make_record: MakeRecord
) -> None:
    experiment = make_experiment()
    records = [make_record(n, experiment, "baseline") for n in range(100)]
    records += [make_record(1000 + n, experiment, "treatment", warmup=n < 60) for n in range(100)]
    assert make_look(experiment, records, now=2000.0).results["sample_ratio"]["ok"] is False


def test_failures_breach_the_guardrail(look_at: Callable[..., Look]) -> None:
    look = look_at(
        30, _cached(100), lambda n: {"cached_tokens": 900, "status": Status.ERROR if n % 2 else Status.OK}
    )
    assert look.verdict is Verdict.DROP
    assert breaches(look) == ("guardrail error: worse than the baseline by more than the 0.01 rate allowed",)
    row = next(row for row in look.results["guardrails"] if row["metric"] == "error")
    assert row["excess"] == pytest.approx(0.49)
    assert row["low"] > 0


def test_a_slower_treatment_breaches_a_relative_margin(look_at: Callable[..., Look]) -> None:
    def slow(factor: float) -> Callable[[int], dict[str, Any]]:
        return lambda n: {"cached_tokens": 900 + n % 9, "ttft_seconds": factor * _noise(n)}

    assert breaches(look_at(60, slow(0.2), slow(0.4))) == (
        "guardrail ttft_seconds: worse than the baseline by more than the 10% allowed",
    )
    assert breaches(look_at(60, slow(0.2), slow(0.215))) == ()


def test_a_guardrail_of_a_metric_where_higher_is_better(look_at: Callable[..., Look]) -> None:
    def look(treatment: int) -> Look:
        guardrails = [Guardrail(metric="hit_rate", margin=0.05)]
        return look_at(30, _cached(900), _cached(treatment), metric="log_ttft", guardrails=guardrails)

    assert len(breaches(look(500))) == 1
    assert breaches(look(870)) == ()


def test_noise_of_a_few_units_breaches_nothing(look_at: Callable[..., Look]) -> None:
    look = look_at(4, _cached(900), lambda n: {"status": Status.ERROR, "ttft_seconds": 5.0 + n})
    assert breaches(look) == ()
    assert {row["state"] for row in look.results["guardrails"]} == {"cannot_tell"}


def test_requests_without_a_session_are_units_of_their_own(
    make_experiment: MakeExperiment, make_record: MakeRecord
) -> None:
    experiment = make_experiment()
    records = [
        make_record(n, experiment, arm, session=None) for arm in ("baseline", "treatment") for n in range(25)
    ]
    look = make_look(experiment, records, now=2000.0)
    assert look.results["arms"]["baseline"]["units"] == 25
    assert look.reasons[-1] == "50 of 50 requests told no session: each was assigned on its own"


def test_a_session_in_both_arms_belongs_to_neither(
    make_experiment: MakeExperiment, make_record: MakeRecord
) -> None:
    experiment = make_experiment()
    records = [
        make_record(n, experiment, arm, session=f"{arm}{n}" if n else "both")
        for arm in ("baseline", "treatment")
        for n in range(25)
    ]
    look = make_look(experiment, records, now=2000.0)
    assert look.results["arms"]["treatment"]["units"] == 24
    assert look.reasons[-1] == "1 sessions were served by both arms and are left out"


def test_a_ramp_starts_the_comparison_anew(make_experiment: MakeExperiment, make_record: MakeRecord) -> None:
    experiment = make_experiment()
    records = [make_record(n, experiment, arm) for arm in ("baseline", "treatment") for n in range(40)]
    look = make_look(experiment, records, now=2000.0, since_at=1010.0)
    assert look.results["arms"]["baseline"]["requests"] == 30
    assert look.reasons[-1] == "20 requests from before the shares were last set are left out"


def _switchback(
    experiment: Experiment, make_record: MakeRecord, cached: dict[str, int], *, seconds: int
) -> list[RequestRecord]:
    """One request a second on a server whose cache fares better and better as time goes on."""
    records = []
    for n in range(seconds):
        at = 1000.0 + n
        arm = arm_for(experiment, session=None, request_id="r", at=at).name
        tokens = min(1000, cached[arm] + n // 8 + n % 7)
        records.append(make_record(n, experiment, arm, arrived_at=at, cached_tokens=tokens, session=None))
    return records


def test_time_slices_are_compared_in_pairs(make_experiment: MakeExperiment, make_record: MakeRecord) -> None:
    experiment = dataclasses.replace(
        make_experiment(unit=Unit.TIME_SLICE, slice_seconds=10.0), started_at=1000.0
    )
    better = _switchback(experiment, make_record, {"baseline": 100, "treatment": 160}, seconds=515)
    look = make_look(experiment, better, now=1515.0)
    assert look.verdict is Verdict.KEEP
    # 25 whole pairs of two slices of ten seconds; the 26th is still running
    assert look.results["arms"]["treatment"]["units"] == 25
    assert look.results["difference"]["estimate"] == pytest.approx(-60.0, abs=3.0)
    assert look.results["sample_ratio"]["ok"] is None
    same = _switchback(experiment, make_record, {"baseline": 100, "treatment": 100}, seconds=515)
    assert make_look(experiment, same, now=1515.0).verdict is Verdict.UNDECIDED


def test_other_experiments_and_unknown_arms_are_passed_over(
    make_experiment: MakeExperiment, make_record: MakeRecord
) -> None:
    experiment = make_experiment()
    other = dataclasses.replace(experiment, id="exp-other")
    records = [make_record(1, other, "treatment"), make_record(2, experiment, "nobody")]
    assert make_look(experiment, records, now=2000.0).results["requests"] == 0


def test_equal_arms_over_forty_looks_get_a_false_verdict_no_more_often_than_alpha(
    make_experiment: MakeExperiment, make_record: MakeRecord
) -> None:
    """The whole way from records: sessions that grow, and whose requests resemble each other."""
    experiment = make_experiment()
    runs = false = 0
    for seed in range(30):
        rng = random.Random(seed)
        level = {n: rng.lognormvariate(0, 0.5) for n in range(160)}
        records: list[RequestRecord] = []
        runs += 1
        for step in range(40):
            for _ in range(8):
                n = rng.randrange(4 * step + 4)
                arm = arm_for(experiment, session=f"{seed}-{n}", request_id="r", at=0.0).name
                cached = min(999, int(400 * level[n] * rng.lognormvariate(0, 0.5)))
                seconds = 0.2 * level[n] * rng.lognormvariate(0, 0.8)
                records.append(
                    make_record(
                        len(records),
                        experiment,
                        arm,
                        session=f"{seed}-{n}",
                        cached_tokens=cached,
                        ttft_seconds=seconds,
                    )
                )
            look = make_look(experiment, records, now=2000.0)
            if look.verdict is not Verdict.UNDECIDED:
                false += 1
                break
    assert false / runs <= 0.05
