"""Suggestions, experiments and records that the tests of this room share."""

from collections.abc import Callable
from typing import Any

import pytest

from kvscope.experiments.design import from_suggestion
from kvscope.model.advice import Experiment, Suggestion
from kvscope.model.prompt import Risk
from kvscope.model.request import RequestRecord, Status

MOVE = {"kind": "move_volatile", "params": {"role": "system", "line_keys": ["0123456789abcdef"]}}
SORT = {"kind": "sort_tools", "params": {}}


def suggestion(*transforms: dict[str, Any], risk: Risk = Risk.SAFE) -> Suggestion:
    return Suggestion(
        id="sort_tools-agent-1",
        kind="sort_tools",
        route="agent",
        risk=risk,
        evidence={},
        hit_rate_before=0.1,
        hit_rate_after=0.9,
        ttft_change_seconds=-0.2,
        tokens_saved_per_day=1e6,
        change={"transforms": list(transforms)} if transforms else {},
        created_at=1.0,
    )


@pytest.fixture
def make_suggestion() -> Callable[..., Suggestion]:
    return suggestion


@pytest.fixture
def make_experiment() -> Callable[..., Experiment]:
    def make(**choices: Any) -> Experiment:
        return from_suggestion(suggestion(SORT), **{"name": "sorted", "now": 100.0, **choices})

    return make


@pytest.fixture
def make_record() -> Callable[..., RequestRecord]:
    def make(number: int, experiment: Experiment, arm: str, **values: Any) -> RequestRecord:
        told = {
            "session": f"{arm}-s{number}",
            "route": experiment.route,
            "arrived_at": 1000.0 + number,
            "status": Status.OK,
            "prompt_tokens": 1000,
            "cached_tokens": 100,
            "output_tokens": 16,
            "ttft_seconds": 0.2,
            "warmup": False,
        }
        return RequestRecord(
            request_id=f"{arm}-{number}", experiment=experiment.id, arm=arm, **{**told, **values}
        )

    return make
