"""``kvscope experiment``: the closed loop from the command line.

Reading and writing go through the store. ``start``, ``stop``, ``promote`` and ``ramp`` write an intent and
wait for the agent's controller to act on it.
"""

import json
import time
from typing import Any

import click

from kvscope.cli.common import Command, db_option, emit_json, emit_table, json_option, opened
from kvscope.cli.trial import print_trial
from kvscope.clock import iso, system_clock
from kvscope.errors import UnreachableError, UsageError
from kvscope.experiments.design import from_suggestion, from_transforms
from kvscope.model.advice import Experiment, Intent, IntentAction, Look, Unit
from kvscope.model.prompt import TransformSpec
from kvscope.prompts.transforms import TRANSFORMS, check_spec
from kvscope.prompts.transforms.variant import use_variant
from kvscope.reports.changes import changes_of
from kvscope.store.database import Store

_ACTOR = "command line"
_POLL_SECONDS = 0.2


@click.group()
def experiment() -> None:
    """Create, start, stop and promote experiments."""


@experiment.command()
@click.argument("name")
@click.option(
    "--suggestion",
    "suggestion_id",
    metavar="ID",
    help="Which suggestion is put to the test; default: the best.",
)
@click.option(
    "--route",
    help="With --layout-variant: the layout that is its route; with --change: whose prompts change.",
)
@click.option(
    "--change",
    "changes",
    multiple=True,
    metavar="JSON",
    help='A transform, {"kind": …, "params": …}, to put to the test instead; may be repeated.',
)
@click.option(
    "--layout-variant", metavar="NAME", help="Put this variant of a declared layout to the test instead."
)
@click.option("--isolate", is_flag=True, help="Keep the arms' cached blocks apart by a salt.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.5,
    show_default=True,
    help="Share of traffic that gets the change.",
)
@click.option(
    "--unit", type=click.Choice([unit.value for unit in Unit]), default=Unit.SESSION.value, show_default=True
)
@click.option("--metric", default="uncached_tokens", show_default=True, help="What the verdict is about.")
@click.option(
    "--min-units",
    type=click.IntRange(min=2),
    default=20,
    show_default=True,
    help="Units in each arm before a verdict.",
)
@click.option("--max-seconds", type=click.FloatRange(min=1), default=86_400.0, show_default=True)
@click.option("--approve", is_flag=True, help="A person's yes to a change that is not `safe`.")
@db_option
@json_option
def create(
    name: str,
    suggestion_id: str | None,
    route: str | None,
    changes: tuple[str, ...],
    layout_variant: str | None,
    isolate: bool,
    share: float,
    unit: str,
    metric: str,
    min_units: int,
    max_seconds: float,
    approve: bool,
    db: str | None,
    as_json: bool,
) -> None:
    """Plan an experiment NAME of a suggestion, a layout's variant, or transforms."""
    terms: dict[str, Any] = {
        "name": name,
        "approved": approve,
        "share": share,
        "unit": Unit(unit),
        "metric": metric,
        "min_units": min_units,
        "max_seconds": max_seconds,
        "isolated": isolate,
        "now": system_clock(),
    }
    asked = [use_variant(layout_variant)] if layout_variant is not None else []
    asked += [_transform(change) for change in changes]
    if bool(asked) is not (route is not None):
        raise UsageError("--route goes with --layout-variant or --change: which route's prompts change how?")
    with opened(db) as store:
        if route is not None:
            planned = from_transforms(tuple(asked), route=route, **terms)
        else:
            planned = from_suggestion(_suggestion(store, suggestion_id), **terms)
        store.experiments.create(planned)
    if as_json:
        emit_json(planned)
        return
    click.echo(f"created {name} on route {planned.route}: run `kvscope experiment start {name}`")
    for change in changes_of(planned.treatment.transforms):
        click.echo(f"  treatment: {change}")


def _transform(text: str) -> TransformSpec:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--change: not JSON: {error}") from error
    params = value.get("params", {}) if isinstance(value, dict) else None
    if not isinstance(params, dict) or not isinstance(value.get("kind"), str):
        raise UsageError(f'--change: write {{"kind": …, "params": {{…}}}}; kinds: {", ".join(TRANSFORMS)}')
    spec = TransformSpec.from_json(value)
    check_spec(spec)
    return spec


def _suggestion(store: Store, wanted: str | None) -> Any:
    if wanted is not None:
        return store.advice.suggestion(wanted)
    known = store.advice.suggestions()
    if not known:
        raise UsageError("there is no suggestion yet; see `kvscope suggest`")
    return known[0]


def _intent_options(command: Command) -> Command:
    """Add what every wish can be told."""
    wait = click.option(
        "--wait",
        type=click.FloatRange(min=0),
        default=15.0,
        show_default=True,
        help="Seconds to wait for the agent.",
    )
    reason = click.option("--reason", default="", help="Why; kept in the history.")
    return click.argument("name")(reason(wait(db_option(json_option(command)))))


@experiment.command()
@_intent_options
def start(name: str, reason: str, wait: float, db: str | None, as_json: bool) -> int:
    """Start NAME on live traffic."""
    return _ask(db, name, IntentAction.START, {"reason": reason}, wait=wait, as_json=as_json)


@experiment.command()
@_intent_options
def stop(name: str, reason: str, wait: float, db: str | None, as_json: bool) -> int:
    """Stop NAME: all traffic goes back to the baseline, a promotion is undone."""
    return _ask(db, name, IntentAction.STOP, {"reason": reason}, wait=wait, as_json=as_json)


@experiment.command()
@_intent_options
@click.option("--override", is_flag=True, help="Insist, though the verdict is not `keep`.")
def promote(name: str, reason: str, wait: float, override: bool, db: str | None, as_json: bool) -> int:
    """Put NAME's treatment in force for all of the route's traffic."""
    params = {"reason": reason, "override": override}
    return _ask(db, name, IntentAction.PROMOTE, params, wait=wait, as_json=as_json)


@experiment.command()
@_intent_options
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    required=True,
    help="New share of the treatment.",
)
def ramp(name: str, reason: str, wait: float, share: float, db: str | None, as_json: bool) -> int:
    """Change the share of traffic that NAME's treatment gets; the comparison starts anew."""
    return _ask(db, name, IntentAction.RAMP, {"reason": reason, "share": share}, wait=wait, as_json=as_json)


def _ask(
    db: str | None, name: str, action: IntentAction, params: dict[str, Any], *, wait: float, as_json: bool
) -> int:
    with opened(db) as store:
        found = store.experiments.get(name)
        number = store.experiments.add_intent(
            Intent(
                id=None, experiment=found.id, action=action, actor=_ACTOR, at=system_clock(), params=params
            )
        )
        deadline = time.monotonic() + wait
        outcome = store.experiments.intent(number).outcome
        while outcome is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            outcome = store.experiments.intent(number).outcome
        now = store.experiments.get(found.id)
    if outcome is None:
        raise UnreachableError(
            f"no agent has acted on it within {wait:g} s; it stays pending:"
            " is `kvscope agent` running on this store?"
        )
    done = outcome.startswith("done")
    if as_json:
        emit_json({"experiment": now.name, "state": now.state, "outcome": outcome, "done": done})
    else:
        click.echo(f"{now.name}: {outcome}")
    return 0 if done else 1


@experiment.command()
@click.argument("name")
@db_option
@json_option
def status(name: str, db: str | None, as_json: bool) -> None:
    """Show where NAME stands, what was seen so far, and its history."""
    with opened(db) as store:
        found = store.experiments.get(name)
        looks = store.experiments.looks(found.id, last=1)
        history = store.experiments.history(found.id)
    look = looks[-1] if looks else None
    if as_json:
        emit_json(status_json(found, look) | {"history": history})
        return
    verdict = f", verdict {found.verdict.value}" if found.verdict else ""
    click.echo(f"{found.name} on route {found.route}: {found.state.value}{verdict}")
    print_trial(found, look)
    emit_table(
        "History",
        ("at", "state", "by", "why"),
        ((iso(row.at), row.state.value, row.actor, row.reason) for row in history),
        empty="nothing has happened yet",
    )


def status_json(found: Experiment, look: Look | None) -> dict[str, Any]:
    """Return an experiment and its newest look as ``--json`` shows them."""
    results = dict(look.results) if look else {}
    return {
        "id": found.id,
        "name": found.name,
        "route": found.route,
        "state": found.state,
        "verdict": found.verdict,
        "unit": found.unit,
        "metric": found.metric,
        "arms": [
            {"name": arm.name, "baseline": arm.baseline, "share": arm.share, "transforms": arm.transforms}
            for arm in found.arms
        ],
        "metrics": results,
        "guardrails": found.guardrails,
        "reasons": look.reasons if look else [],
        "predicted": dict(found.predicted),
        "created_at": found.created_at,
        "started_at": found.started_at,
        "ended_at": found.ended_at,
    }


@experiment.command("list")
@db_option
@json_option
def list_(db: str | None, as_json: bool) -> None:
    """List all experiments."""
    with opened(db) as store:
        found = store.experiments.list()
        looks = {item.id: store.experiments.looks(item.id, last=1) for item in found}
    if as_json:
        emit_json({"experiments": [status_json(item, next(iter(looks[item.id]), None)) for item in found]})
        return
    emit_table(
        "Experiments",
        ("name", "route", "state", "verdict", "treatment", "share"),
        (
            (
                item.name,
                item.route,
                item.state.value,
                item.verdict.value if item.verdict else None,
                "+".join(spec.kind for spec in item.treatment.transforms),
                item.treatment.share,
            )
            for item in found
        ),
        empty="no experiments yet: `kvscope experiment create NAME --suggestion ID`",
    )
