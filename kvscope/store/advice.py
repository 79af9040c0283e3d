"""Suggestions, latency models and route policies as they are stored."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import RowMapping, delete, select, update

from kvscope.clock import Clock, system_clock
from kvscope.errors import UsageError
from kvscope.model.advice import AddedR2, FittedModel, RoutePolicy, Suggestion
from kvscope.model.prompt import Risk, TransformSpec
from kvscope.store import clean, schema
from kvscope.store.bulk import Statements
from kvscope.store.engines import Engines

_S = schema.suggestions.c
_LARGER_GAIN = 0.1  # in hit rate
_MUCH_MORE = 2.0  # times the tokens
_SUGGESTION_FIELDS = tuple(field.name for field in dataclasses.fields(Suggestion))


class AdviceStore:
    """What the advisor found and what a person made of it.

    Every method raises ``UnreachableError`` when the database is away.
    """

    def __init__(self, engines: Engines, clock: Clock = system_clock) -> None:
        self._engines = engines
        self._clock = clock
        self._statements = Statements(engines.writer.dialect)

    def save_suggestions(self, suggestions: Iterable[Suggestion], *, looked_at: Iterable[str] = ()) -> None:
        """Store suggestions by id; a known one keeps its time of creation.

        One that a person dismissed stays so, as it was then, until its evidence changes: the hit rate that it
        promises grew by a tenth of all tokens, or the tokens that it saves doubled. What was suggested
        before for the routes that were ``looked_at`` and is not suggested any more is removed, unless a
        person dismissed it.
        """
        rows = [{name: getattr(one, name) for name in _SUGGESTION_FIELDS} for one in suggestions]
        outdated = delete(schema.suggestions).where(
            _S.route.in_(list(looked_at)),
            _S.id.not_in([row["id"] for row in rows]),
            _S.dismissed_at.is_(None),
        )
        keep = frozenset({"created_at", "dismissed_at"})
        query = select(schema.suggestions).where(_S.dismissed_at.is_not(None))
        with self._engines.writing() as connection:
            connection.execute(outdated)
            dismissed = {row["id"]: dict(row) for row in connection.execute(query).mappings()}
            changed = [row for row in rows if row["id"] in dismissed and _changed(dismissed[row["id"]], row)]
            rows = [row for row in rows if row["id"] not in dismissed] + changed
            if rows:
                connection.execute(self._statements.upsert(schema.suggestions, keep=keep), rows)
            if changed:
                ids = [row["id"] for row in changed]
                connection.execute(update(schema.suggestions).where(_S.id.in_(ids)).values(dismissed_at=None))

    def suggestions(self, *, route: str | None = None, include_dismissed: bool = False) -> list[Suggestion]:
        """Return suggestions, those that save most tokens first, unknown ones last."""
        query = select(schema.suggestions).order_by(_S.tokens_saved_per_day.desc().nulls_last(), _S.id)
        if route is not None:
            query = query.where(_S.route == route)
        if not include_dismissed:
            query = query.where(_S.dismissed_at.is_(None))
        with self._engines.reading() as connection:
            return [_suggestion(row) for row in connection.execute(query).mappings()]

    def suggestion(self, suggestion_id: str) -> Suggestion:
        """Return one suggestion; raises ``UsageError`` when there is none of that id."""
        with self._engines.reading() as connection:
            query = select(schema.suggestions).where(_S.id == suggestion_id)
            row = connection.execute(query).mappings().one_or_none()
        if row is None:
            raise _no_suggestion(suggestion_id)
        return _suggestion(row)

    def dismiss(self, suggestion_id: str) -> None:
        """Keep a suggestion out of the list from now on; raises ``UsageError`` for an unknown id."""
        change = update(schema.suggestions).where(_S.id == suggestion_id).values(dismissed_at=self._clock())
        with self._engines.writing() as connection:
            changed = connection.execute(change).rowcount
        if not changed:
            raise _no_suggestion(suggestion_id)

    def save_models(self, models: Iterable[FittedModel]) -> None:
        """Store latency models by name; a newer fit replaces the older one."""
        rows = [_model_row(model) for model in models]
        if not rows:
            return
        with self._engines.writing() as connection:
            connection.execute(self._statements.upsert(schema.latency_models), rows)

    def models(self) -> list[FittedModel]:
        """Return the latency models by name."""
        query = select(schema.latency_models).order_by(schema.latency_models.c.name)
        with self._engines.reading() as connection:
            return [_model(row) for row in connection.execute(query).mappings()]

    def set_policy(self, policy: RoutePolicy) -> None:
        """Put a route's policy in place of the one before; no transforms: the route is left as it is."""
        row = {
            "route": policy.route,
            "transforms": transforms_json(policy.transforms),
            "experiment": policy.experiment,
            "actor": policy.actor,
            "since_at": policy.since_at,
        }
        with self._engines.writing() as connection:
            connection.execute(self._statements.upsert(schema.route_policies), [row])

    def policies(self) -> list[RoutePolicy]:
        """Return the policies in force, by route."""
        query = select(schema.route_policies).order_by(schema.route_policies.c.route)
        with self._engines.reading() as connection:
            return [
                RoutePolicy(**{**row, "transforms": transforms_of(row["transforms"])})
                for row in connection.execute(query).mappings()
            ]


def transforms_json(transforms: Iterable[TransformSpec]) -> list[dict[str, Any]]:
    """Return the stored form of transforms."""
    return [transform.as_json() for transform in transforms]


def transforms_of(value: Sequence[Mapping[str, Any]]) -> tuple[TransformSpec, ...]:
    """Return the transforms that ``transforms_json`` wrote."""
    return tuple(TransformSpec.from_json(spec) for spec in value)


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a suggestion promises much more than when a person dismissed it."""

    def gain(row: Mapping[str, Any]) -> float:
        return float(row["hit_rate_after"] - row["hit_rate_before"])

    saved, saved_then = now["tokens_saved_per_day"], then["tokens_saved_per_day"]
    doubled = saved is not None and bool(saved_then) and saved >= _MUCH_MORE * saved_then
    return doubled or gain(now) >= gain(then) + _LARGER_GAIN


def _suggestion(row: RowMapping) -> Suggestion:
    values = {name: row[name] for name in _SUGGESTION_FIELDS}
    return Suggestion(**{**values, "risk": Risk(row["risk"])})


def _model_row(model: FittedModel) -> dict[str, Any]:
    row = dataclasses.asdict(model)
    numbers = {name: clean.finite(row[name]) for name in ("r2", "mae_seconds", "fitted_at")}
    return row | numbers | {"rows": clean.count(model.rows)}


def _model(row: RowMapping) -> FittedModel:
    ranges = {name: (low, high) for name, (low, high) in row["ranges"].items()}
    errors = tuple(row["error_quantiles"])
    told = {"features": tuple(row["features"]), "ranges": ranges, "error_quantiles": errors}
    told["added_r2"] = {group: AddedR2(**added) for group, added in row["added_r2"].items()}
    return FittedModel(**{**row, **told})


def _no_suggestion(suggestion_id: str) -> UsageError:
    return UsageError(f"there is no suggestion {suggestion_id!r}; `kvscope suggest` lists them")
