import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.experiments.design import from_suggestion, validate, with_in_force, with_share
from kvscope.model.advice import Arm, Experiment, ExperimentState, Guardrail, Suggestion, Unit
from kvscope.model.prompt import Risk, TransformSpec

MakeExperiment = Callable[..., Experiment]
MakeSuggestion = Callable[..., Suggestion]
SORT = TransformSpec(kind="sort_tools")
SPACES = TransformSpec(kind="normalize_whitespace")
_MOVE = {"kind": "move_volatile", "params": {"role": "system", "line_keys": ["0123456789abcdef"]}}


def test_a_safe_suggestion_becomes_a_draft(make_suggestion: MakeSuggestion) -> None:
    draft = from_suggestion(make_suggestion(SORT.as_json()), name="sorted", now=5.0, share=0.2)
    assert draft.state is ExperimentState.DRAFT
    assert (draft.route, draft.suggestion_id, draft.created_at) == ("agent", "sort_tools-agent-1", 5.0)
    assert (draft.baseline.share, draft.treatment.share) == (0.8, 0.2)
    assert draft.baseline.transforms == ()
    assert draft.treatment.transforms == (SORT,)
    assert draft.predicted == {"hit_rate_before": 0.1, "hit_rate_after": 0.9, "ttft_change_seconds": -0.2}
    assert {guardrail.metric for guardrail in draft.guardrails} == {"error", "ttft_seconds", "output_tokens"}


def test_a_change_of_order_needs_a_persons_yes(make_suggestion: MakeSuggestion) -> None:
    risky = make_suggestion(_MOVE, risk=Risk.REVIEW)
    with pytest.raises(UsageError, match=r"risk `review` and needs a person's yes.*--approve"):
        from_suggestion(risky, name="moved", now=1.0)
    assert from_suggestion(risky, name="moved", now=1.0, approved=True).treatment.transforms


def test_the_transforms_own_risk_counts_whatever_the_suggestion_says(make_suggestion: MakeSuggestion) -> None:
    with pytest.raises(UsageError, match="risk `review`"):
        from_suggestion(make_suggestion(_MOVE, risk=Risk.SAFE), name="moved", now=1.0)


def test_a_suggestion_for_people_cannot_be_tried(make_suggestion: MakeSuggestion) -> None:
    with pytest.raises(UsageError, match="has no transform to try: a person must act"):
        from_suggestion(make_suggestion(), name="memory", now=1.0)


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({"name": "  "}, "needs a name"),
        ({"share": 1.0}, "must lie between 0 and 1"),
        ({"share": 0.0}, "must lie between 0 and 1"),
        ({"metric": "speed"}, "unknown metric 'speed'; known are e2e_seconds"),
        ({"guardrails": [Guardrail(metric="speed", margin=0.1)]}, "unknown metric 'speed'"),
        ({"guardrails": [Guardrail(metric="error", margin=-0.1)]}, "margin of guardrail error"),
        ({"alpha": 0.0}, "alpha must lie between 0 and 1, not 0"),
        ({"min_units": 1}, "min_units must be 2 or more"),
        ({"warmup_requests": -1}, "warmup_requests"),
        ({"max_seconds": 0.0}, "max_seconds"),
        ({"slice_seconds": 0.0}, "slice_seconds"),
        ({"unit": Unit.TIME_SLICE, "share": 0.2}, "the share must be 0.5"),
    ],
)
def test_what_is_wrong_is_said(make_experiment: MakeExperiment, choices: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make_experiment(**choices)


def _arms(*arms: tuple[str, bool, float]) -> tuple[Arm, ...]:
    return tuple(Arm(name=name, baseline=baseline, share=share) for name, baseline, share in arms)


@pytest.mark.parametrize(
    ("arms", "told"),
    [
        (_arms(("a", False, 0.5), ("b", False, 0.5)), "exactly one arm must be the baseline, not 0"),
        (_arms(("a", True, 0.5), ("b", True, 0.5)), "exactly one arm must be the baseline, not 2"),
        (_arms(("a", True, 0.4), ("b", False, 0.3), ("c", False, 0.3)), "one treatment, not 3 arms"),
        (_arms(("a", True, 0.5), ("a", False, 0.5)), "names that differ"),
        (_arms(("a", True, 0.5), ("b", False, 0.6)), "must add up to 1, not 1.1"),
        (
            (
                Arm(name="a", baseline=True, share=0.5, transforms=(SORT,)),
                Arm(name="b", baseline=False, share=0.5),
            ),
            "takes no transforms of its own",
        ),
        (
            (
                Arm(name="a", baseline=True, share=0.5),
                Arm(name="b", baseline=False, share=0.5, transforms=(TransformSpec(kind="shuffle"),)),
            ),
            "unknown transform 'shuffle'",
        ),
    ],
)
def test_arms_that_cannot_be_compared(
    make_experiment: MakeExperiment, arms: tuple[Arm, ...], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        validate(dataclasses.replace(make_experiment(), arms=arms), approved=True)


def test_a_ramp_changes_shares_alone(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(share=0.1)
    arms = with_share(experiment, 0.4)
    assert [(arm.name, arm.share, arm.transforms) for arm in arms] == [
        ("baseline", 0.6, ()),
        ("treatment", 0.4, (SORT,)),
    ]
    with pytest.raises(UsageError, match="between 0 and 1"):
        with_share(experiment, 1.0)
    with pytest.raises(UsageError, match="time slices"):
        with_share(make_experiment(unit=Unit.TIME_SLICE), 0.4)


def test_baseline_is_what_is_in_force_and_a_suggestion_adds_to_it(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    arms = with_in_force(experiment, [SPACES])
    assert [arm.transforms for arm in arms] == [(SPACES,), (SPACES, SORT)]
    again = with_in_force(dataclasses.replace(experiment, arms=arms), [SPACES])
    assert again == arms
    by_hand = with_in_force(dataclasses.replace(experiment, suggestion_id=None), [SPACES])
    assert [arm.transforms for arm in by_hand] == [(SPACES,), (SORT,)]
