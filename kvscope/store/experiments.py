"""Experiments, their history, and the wishes and looks that move them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, func, insert, or_, select, update

from kvscope.errors import UsageError
from kvscope.model.advice import (
    Arm,
    Experiment,
    ExperimentState,
    Guardrail,
    Intent,
    IntentAction,
    Look,
    Routing,
    Transition,
    Unit,
    Verdict,
)
from kvscope.store import schema
from kvscope.store.advice import transforms_json, transforms_of
from kvscope.store.engines import Engines

_E = schema.experiments.c
_I = schema.experiment_intents.c
_ENDED = frozenset({ExperimentState.DECIDED, ExperimentState.STOPPED})


class ExperimentStore:
    """The wanted and the actual state of experiments.

    Every method raises ``UnreachableError`` when the database is away, and ``UsageError`` when it names an
    experiment or intent that is not there.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def create(self, experiment: Experiment) -> None:
        """Store a new experiment; raises ``UsageError`` when its id or name is taken."""
        row = {field.name: getattr(experiment, field.name) for field in dataclasses.fields(experiment)}
        row["arms"] = _arms_json(experiment.arms)
        row["guardrails"] = [dataclasses.asdict(guardrail) for guardrail in experiment.guardrails]
        with self._engines.writing() as connection:
            query = select(_E.id).where(or_(_E.id == experiment.id, _E.name == experiment.name))
            if connection.execute(query).first() is not None:
                raise UsageError(
                    f"an experiment named {experiment.name!r} exists already; choose another name"
                )
            connection.execute(insert(schema.experiments), [row])

    def get(self, id_or_name: str) -> Experiment:
        """Return one experiment; an id goes before a name."""
        with self._engines.reading() as connection:
            query = select(schema.experiments).where(or_(_E.id == id_or_name, _E.name == id_or_name))
            rows = connection.execute(query).mappings().all()
            if not rows:
                raise _unknown(connection, id_or_name)
        return _experiment(min(rows, key=lambda row: row["id"] != id_or_name))

    def transition(self, transition: Transition, *, verdict: Verdict | None = None) -> None:
        """Put an experiment into a new state and write down who did so and why, both or neither.

        The first start and the first end are kept as ``started_at`` and ``ended_at``. Without ``verdict``
        the verdict stays as it is.
        """
        values: dict[str, Any] = {"state": transition.state.value}
        if verdict is not None:
            values["verdict"] = verdict.value
        if transition.state is ExperimentState.RUNNING:
            values["started_at"] = func.coalesce(_E.started_at, transition.at)
        if transition.state in _ENDED:
            values["ended_at"] = func.coalesce(_E.ended_at, transition.at)
        with self._engines.writing() as connection:
            self._update(connection, transition.experiment, values)
            connection.execute(insert(schema.experiment_transitions), [dataclasses.asdict(transition)])

    def update_arms(self, experiment_id: str, arms: Sequence[Arm]) -> None:
        """Replace an experiment's arms, as a ramp of their shares does."""
        with self._engines.writing() as connection:
            self._update(connection, experiment_id, {"arms": _arms_json(arms)})

    def _update(self, connection: Connection, experiment_id: str, values: Mapping[str, Any]) -> None:
        changed = connection.execute(update(schema.experiments).where(_E.id == experiment_id).values(values))
        if not changed.rowcount:
            raise _unknown(connection, experiment_id)

    def history(self, experiment_id: str) -> list[Transition]:
        """Return an experiment's transitions, oldest first."""
        rows = self._rows_of(schema.experiment_transitions, experiment_id, None)
        return [Transition(**{**row, "state": ExperimentState(row["state"])}) for row in rows]

    def add_intent(self, intent: Intent) -> int:
        """Store a wish and return its number; the controller finds it in ``pending_intents``."""
        row = dataclasses.asdict(intent)
        del row["id"]
        with self._engines.writing() as connection:
            self._require(connection, intent.experiment)
            created = connection.execute(insert(schema.experiment_intents).values(row).returning(_I.id))
            return int(created.scalar_one())

    def pending_intents(self) -> list[Intent]:
        """Return the wishes that the controller has not dealt with, oldest first."""
        query = select(schema.experiment_intents).where(_I.outcome.is_(None)).order_by(_I.id)
        with self._engines.reading() as connection:
            return [_intent(row) for row in connection.execute(query).mappings()]

    def intent(self, intent_id: int) -> Intent:
        """Return one wish, with its outcome when there is one."""
        query = select(schema.experiment_intents).where(_I.id == intent_id)
        with self._engines.reading() as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is None:
            raise UsageError(f"there is no intent {intent_id}")
        return _intent(row)

    def close_intent(self, intent_id: int, outcome: str) -> None:
        """Write down what came of a wish."""
        change = update(schema.experiment_intents).where(_I.id == intent_id).values(outcome=outcome)
        with self._engines.writing() as connection:
            changed = connection.execute(change).rowcount
        if not changed:
            raise UsageError(f"there is no intent {intent_id}")

    def add_look(self, look: Look) -> None:
        """Store what the controller saw."""
        with self._engines.writing() as connection:
            self._require(connection, look.experiment)
            connection.execute(insert(schema.experiment_looks), [dataclasses.asdict(look)])

    def looks(self, experiment_id: str, *, last: int | None = None) -> list[Look]:
        """Return an experiment's looks, oldest first; ``last`` keeps that many of the newest."""
        rows = self._rows_of(schema.experiment_looks, experiment_id, last)
        return [
            Look(**{**row, "verdict": Verdict(row["verdict"]), "reasons": tuple(row["reasons"])})
            for row in rows
        ]

    def _rows_of(self, table: Table, experiment_id: str, last: int | None) -> list[dict[str, Any]]:
        """Return an experiment's rows of ``table`` without their numbers, in the order of writing."""
        query = (
            select(table).where(table.c.experiment == experiment_id).order_by(table.c.id.desc()).limit(last)
        )
        with self._engines.reading() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
        for row in rows:
            del row["id"]
        return rows[::-1]

    def _require(self, connection: Connection, experiment_id: str) -> None:
        if connection.execute(select(_E.id).where(_E.id == experiment_id)).first() is None:
            raise _unknown(connection, experiment_id)

    def list(self) -> list[Experiment]:
        """Return all experiments, oldest first."""
        query = select(schema.experiments).order_by(_E.created_at, _E.id)
        with self._engines.reading() as connection:
            return [_experiment(row) for row in connection.execute(query).mappings()]


def _unknown(connection: Connection, wanted: str) -> UsageError:
    names = connection.execute(select(_E.name).order_by(_E.created_at, _E.id)).scalars().all()
    known = f"there are {', '.join(names)}" if names else "there are none yet: `kvscope experiment create`"
    return UsageError(f"there is no experiment {wanted!r}; {known}")


def _arms_json(arms: Sequence[Arm]) -> "list[dict[str, Any]]":
    return [{**dataclasses.asdict(arm), "transforms": transforms_json(arm.transforms)} for arm in arms]


def _experiment(row: RowMapping) -> Experiment:
    arms = tuple(map(_arm, row["arms"]))
    return Experiment(
        **{
            **row,
            "arms": arms,
            "guardrails": tuple(Guardrail(**guardrail) for guardrail in row["guardrails"]),
            "unit": Unit(row["unit"]),
            "state": ExperimentState(row["state"]),
            "verdict": None if row["verdict"] is None else Verdict(row["verdict"]),
        }
    )


def _intent(row: RowMapping) -> Intent:
    return Intent(**{**row, "action": IntentAction(row["action"])})


def _arm(stored: Mapping[str, Any]) -> Arm:
    routing = stored.get("routing")
    return Arm(
        **{
            **stored,
            "transforms": transforms_of(stored["transforms"]),
            "routing": None if routing is None else Routing(routing),
        }
    )
