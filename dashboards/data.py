"""The one module that opens the store: what the pages read of it, and the few things they write.

Pages never act on traffic. They write drafts, dismissals and intents; the agent's controller does the rest.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Literal

import streamlit as st

from kvscope.agent.asking import DEFAULT_AGENT, LastLook, last_look
from kvscope.clock import system_clock
from kvscope.config.load import default_db
from kvscope.errors import KvscopeError
from kvscope.experiments.design import from_suggestion
from kvscope.model.advice import (
    Experiment,
    Intent,
    IntentAction,
    Look,
    RoutePolicy,
    Suggestion,
    Transition,
    Unit,
)
from kvscope.model.cache_config import CACHE_CONFIG_METRIC
from kvscope.model.request import RequestRecord
from kvscope.model.views import HitRow, MissRow, SpreadRow, TimelineRow
from kvscope.reports.content import Engine, SumLine
from kvscope.reports.sums import engine_sums
from kvscope.reports.tuning import engines_of
from kvscope.store.database import Store, open_store

ACTOR = "dashboard"
_FRESH_SECONDS = 5.0  # aggregates are read again after this; what a person has just changed, at once
_LOOKS = 400


def database_url(arguments: Sequence[str] | None = None) -> str:
    """Return the store's URL: from ``--db``, else what every command of kvscope takes without it."""
    return _argument("--db", arguments) or default_db()


def agent_url(arguments: Sequence[str] | None = None) -> str:
    """Return the base URL of the agent's admin port: from ``--agent``, else an agent's default."""
    return _argument("--agent", arguments) or DEFAULT_AGENT


def _argument(name: str, arguments: Sequence[str] | None) -> str | None:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument(name, dest="value")
    known, _ = parser.parse_known_args(list(sys.argv[1:] if arguments is None else arguments))
    return None if known.value is None else str(known.value)


@st.cache_resource(show_spinner=False)
def _opened(url: str) -> Store:
    return open_store(url)


def store() -> Store:
    """Return the open store; raises ``UsageError``, ``UnreachableError`` or ``SchemaError``."""
    return _opened(database_url())


def now() -> float:
    """Return the time, as every page asks for it."""
    return system_clock()


By = Literal["route", "total"]


@st.cache_data(ttl=_FRESH_SECONDS, show_spinner=False, max_entries=64)
def _hits(url: str, by: By, since_at: float | None, until_at: float | None) -> list[HitRow]:
    return _opened(url).reader.hits(by, since_at=since_at, until_at=until_at)


def hits(by: By, since_at: float | None, until_at: float | None = None) -> list[HitRow]:
    """Return hits and miss causes of the window."""
    return _hits(database_url(), by, since_at, until_at)


@st.cache_data(ttl=_FRESH_SECONDS, show_spinner=False, max_entries=16)
def _ttft(url: str, by: By, since_at: float | None) -> list[SpreadRow]:
    return _opened(url).reader.ttft(by, since_at=since_at)


def ttft(by: By, since_at: float | None) -> list[SpreadRow]:
    """Return how times to first token are spread over all requests of the window."""
    return _ttft(database_url(), by, since_at)


@st.cache_data(ttl=_FRESH_SECONDS, show_spinner=False, max_entries=16)
def _timeline(url: str, bucket_seconds: float, since_at: float | None) -> list[TimelineRow]:
    return _opened(url).reader.timeline(bucket_seconds=bucket_seconds, since_at=since_at)


def timeline(bucket_seconds: float, since_at: float | None) -> list[TimelineRow]:
    """Return buckets of time by route."""
    return _timeline(database_url(), bucket_seconds, since_at)


@st.cache_data(ttl=_FRESH_SECONDS, show_spinner=False, max_entries=16)
def _misses(url: str, since_at: float | None, route: str | None) -> list[MissRow]:
    return _opened(url).reader.misses(since_at=since_at, route=route)


def misses(since_at: float | None, route: str | None = None) -> list[MissRow]:
    """Return missed tokens by route, cause and place."""
    return _misses(database_url(), since_at, route)


@st.cache_data(ttl=_FRESH_SECONDS, show_spinner=False, max_entries=16)
def _requests(url: str, last: int, since_at: float | None, route: str | None) -> list[RequestRecord]:
    return _opened(url).reader.requests(last=last, since_at=since_at, route=route)


def requests(last: int, since_at: float | None, route: str | None = None) -> list[RequestRecord]:
    """Return the newest requests, oldest first."""
    return _requests(database_url(), last, since_at, route)


def engines(last: int, since_at: float | None) -> tuple[Engine, ...]:
    """Return the servers that answered the newest requests."""
    return engines_of(requests(last, since_at), store().reader.latest_samples(CACHE_CONFIG_METRIC))


@st.cache_data(ttl=_FRESH_SECONDS, show_spinner=False, max_entries=4)
def _sums(url: str) -> tuple[SumLine, ...]:
    return engine_sums(_opened(url))


def sums() -> tuple[SumLine, ...]:
    """Return each engine's counter beside the sum of the records."""
    return _sums(database_url())


def suggestions() -> list[Suggestion]:
    """Return the suggestions that nobody has dismissed."""
    return store().advice.suggestions()


@st.cache_data(ttl=_FRESH_SECONDS, show_spinner=False, max_entries=4)
def _last_look(agent: str) -> LastLook | None:
    try:
        return last_look(agent)
    except KvscopeError:
        return None


def advisor() -> LastLook | None:
    """Return what the agent's advisor last said, None where no agent answers."""
    return _last_look(agent_url())


def policies() -> list[RoutePolicy]:
    """Return what is in force, routes that are left as they are apart."""
    return [policy for policy in store().advice.policies() if policy.transforms]


def experiments() -> list[Experiment]:
    """Return all experiments, newest first."""
    return store().experiments.list()[::-1]


def looks(experiment_id: str) -> list[Look]:
    """Return the newest looks of an experiment, oldest first."""
    return store().experiments.looks(experiment_id, last=_LOOKS)


def history(experiment_id: str) -> list[Transition]:
    """Return what happened to an experiment, oldest first."""
    return store().experiments.history(experiment_id)


def pending(experiment_id: str) -> list[Intent]:
    """Return what was asked of the controller and is not done yet."""
    return [intent for intent in store().experiments.pending_intents() if intent.experiment == experiment_id]


def intent(intent_id: int) -> Intent:
    """Return one intent, with its outcome once the controller has acted."""
    return store().experiments.intent(intent_id)


def ask(experiment_id: str, action: IntentAction, **params: Any) -> int:
    """Write an intent and return its number."""
    return store().experiments.add_intent(
        Intent(id=None, experiment=experiment_id, action=action, actor=ACTOR, at=now(), params=params)
    )


def create_experiment(
    suggestion: Suggestion, *, name: str, share: float, unit: Unit, approved: bool
) -> Experiment:
    """Store a draft that tests the suggestion; raises ``UsageError`` (name taken, not approved)."""
    planned = from_suggestion(suggestion, name=name, share=share, unit=unit, approved=approved, now=now())
    store().experiments.create(planned)
    return planned


def dismiss(suggestion_id: str) -> None:
    """Keep a suggestion out of the list from now on."""
    store().advice.dismiss(suggestion_id)
