"""The part of a person in the demo: approves a suggestion, starts its experiment, promotes it."""

import time

from kvscope.clock import system_clock
from kvscope.errors import UnreachableError, UsageError
from kvscope.experiments.design import from_suggestion
from kvscope.model.advice import (
    Experiment,
    ExperimentState,
    Intent,
    IntentAction,
    Look,
    Suggestion,
)
from kvscope.store.database import Store

ACTOR = "demo script, in a person's place"
_POLL_SECONDS = 0.2


def wait_for_suggestion(
    store: Store, route: str, *, requests: int, patience_seconds: float = 60.0
) -> Suggestion:
    """Return the best suggestion for ``route`` that rests on at least ``requests`` requests.

    A suggestion from a smaller window is taken when the patience ends; raises ``UsageError`` for none.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        found = store.advice.suggestions(route=route)
        best = next((item for item in found if item.transforms), None)
        if best is not None and best.evidence.get("requests", 0) >= requests:
            return best
        if time.monotonic() >= deadline:
            if best is None:
                raise UsageError(f"the agent found nothing to suggest for route {route}; see its log")
            return best
        time.sleep(_POLL_SECONDS)


def begin(store: Store, suggestion: Suggestion, *, name: str, min_units: int) -> Experiment:
    """Create the experiment, approve it and have the agent start it; returns it as it runs."""
    experiment = from_suggestion(
        suggestion, name=name, now=system_clock(), approved=True, min_units=min_units
    )
    store.experiments.create(experiment)
    ask(store, experiment, IntentAction.START)
    return store.experiments.get(experiment.id)


def ask(
    store: Store, experiment: Experiment, action: IntentAction, *, patience_seconds: float = 30.0
) -> None:
    """Write the wish that ``action`` be done and wait until the agent has; raises when it does not."""
    wish = Intent(id=None, experiment=experiment.id, action=action, actor=ACTOR, at=system_clock())
    number = store.experiments.add_intent(wish)
    deadline = time.monotonic() + patience_seconds
    while (outcome := store.experiments.intent(number).outcome) is None:
        if time.monotonic() >= deadline:
            raise UnreachableError(f"the agent did not {action.value} {experiment.name} in time")
        time.sleep(_POLL_SECONDS)
    if not outcome.startswith("done"):
        raise UsageError(f"the agent would not {action.value} {experiment.name}: {outcome}")


def is_open(store: Store, experiment: Experiment) -> bool:
    """Return whether the experiment still runs."""
    return store.experiments.get(experiment.id).state is ExperimentState.RUNNING


def last_look(store: Store, experiment: Experiment) -> Look | None:
    """Return the newest look at the experiment."""
    return next(iter(store.experiments.looks(experiment.id, last=1)), None)
