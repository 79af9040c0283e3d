"""The tuning report: builds its content from a store; ``render`` writes it for people and programs."""

from collections.abc import Sequence

from kvscope.model.advice import FittedModel, RoutePolicy, Suggestion
from kvscope.model.cache_config import CACHE_CONFIG_METRIC, cache_configs
from kvscope.model.request import MissCause, RequestRecord, Status
from kvscope.model.telemetry import MetricSample
from kvscope.model.views import HitRow, MissRow
from kvscope.reports import evidence
from kvscope.reports.changes import changes_of, harms_of, in_force, steps_of
from kvscope.reports.content import (
    CauseLine,
    Engine,
    ModelLine,
    PlaceLine,
    PromotionLine,
    Report,
    SuggestionLine,
    Traffic,
)
from kvscope.reports.measure import traffic
from kvscope.reports.render import render
from kvscope.reports.sums import engine_sums
from kvscope.reports.trials import experiment_line
from kvscope.store.database import Store
from kvscope.store.reader import UNKNOWN_KEY

__all__ = ["build_report", "render"]

SAMPLE = 50_000  # requests whose times are read one by one: keeps a report of a large store quick
_PLACES = 12
BREAKING = frozenset({MissCause.DIVERGED.value, MissCause.ISOLATED.value})
"""Causes that a difference in the prompt or its salt brings about; other misses break no prefix."""


def build_report(store: Store, *, now: float, since_at: float | None = None) -> Report:
    """Return the report of requests since ``since_at`` (all without it); ``now`` dates it.

    Hit rates and miss causes are sums over the whole window; times come from its newest requests.
    """
    records = store.reader.requests(last=SAMPLE, since_at=since_at)
    total = next(iter(store.reader.hits("total", since_at=since_at)), None)
    causes = cause_lines([total] if total else [])
    policies = store.advice.policies()
    arrivals = [record.arrived_at for record in records if record.arrived_at is not None]
    complete = total is None or len(records) >= total.requests
    return Report(
        generated_at=now,
        since_at=since_at,
        first_at=min(arrivals, default=None) if complete else since_at,
        last_at=max(arrivals, default=None),
        sampled_requests=None if complete else len(records),
        engines=engines_of(records, store.reader.latest_samples(CACHE_CONFIG_METRIC)),
        totals=traffic("total", records, total),
        routes=_routes(records, store.reader.hits("route", since_at=since_at)),
        missed_tokens=sum(line.tokens for line in causes),
        causes=causes,
        places=places_of(store.reader.misses(since_at=since_at))[:_PLACES],
        models=tuple(_model(model) for model in store.advice.models()),
        suggestions=tuple(_suggestion(item, policies) for item in store.advice.suggestions()),
        experiments=tuple(experiment_line(store, item) for item in store.experiments.list()),
        promotions=tuple(_promotion(store, policy) for policy in policies if policy.transforms),
        sums=engine_sums(store),
    )


def cause_lines(rows: Sequence[HitRow]) -> tuple[CauseLine, ...]:
    """Return the missed tokens of all rows by cause, most first."""
    tokens: dict[str, int] = {}
    for row in rows:
        for cause, amount in row.causes.items():
            tokens[cause] = tokens.get(cause, 0) + amount
    total = sum(tokens.values())
    return tuple(
        CauseLine(cause=cause, tokens=amount, share=amount / total)
        for cause, amount in sorted(tokens.items(), key=lambda item: (-item[1], item[0]))
        if amount
    )


def places_of(rows: Sequence[MissRow]) -> tuple[PlaceLine, ...]:
    """Return the places in prompts where prefixes break, in the order of ``rows``."""
    return tuple(
        PlaceLine(
            route=row.route,
            cause=row.cause,
            role=row.role,
            message_index=row.message_index,
            value_kind=row.value_kind,
            requests=row.requests,
            tokens=row.tokens,
            example_request_id=row.example_request_id,
            char_start=row.example_char_start,
            char_end=row.example_char_end,
        )
        for row in rows
        if row.cause in BREAKING and (row.role is not None or row.message_index is not None)
    )


def engines_of(records: Sequence[RequestRecord], samples: Sequence[MetricSample]) -> tuple[Engine, ...]:
    """Return the servers that answered, with the models they answered for.

    Their metrics (``samples`` of ``vllm:cache_config_info``) tell which are built-in engines; where none
    were scraped, the name of the model does.
    """
    models: dict[str, set[str]] = {}
    for record in records:
        if record.engine is not None:
            served = record.model if record.status is not Status.REJECTED else None
            models.setdefault(record.engine, set()).update({served} if served else ())
    told = {config.engine: config.built_in for config in cache_configs(samples)}
    return tuple(
        Engine(
            url=url,
            models=tuple(sorted(names)),
            built_in=told[url] if url in told else any(map(_sounds_built_in, names)),
        )
        for url, names in sorted(models.items())
    )


def _sounds_built_in(model: str) -> bool:
    return "builtin" in model.lower().replace("-", "").replace("_", "")


def _routes(records: Sequence[RequestRecord], rows: Sequence[HitRow]) -> tuple[Traffic, ...]:
    by_route: dict[str, list[RequestRecord]] = {}
    for record in records:
        by_route.setdefault(record.route or UNKNOWN_KEY, []).append(record)
    lines = [traffic(row.key, by_route.get(row.key, []), row) for row in rows]
    return tuple(sorted(lines, key=lambda line: (-line.prompt_tokens, line.key)))


def _model(model: FittedModel) -> ModelLine:
    return ModelLine(
        name=model.name,
        target=model.target,
        features=tuple(model.features),
        coefficients=dict(model.coefficients),
        r2=model.r2,
        mae_seconds=model.mae_seconds,
        coverage_90=model.coverage_90,
        rows=model.rows,
    )


def _suggestion(item: Suggestion, policies: Sequence[RoutePolicy]) -> SuggestionLine:
    return SuggestionLine(
        id=item.id,
        kind=item.kind,
        route=item.route,
        risk=item.risk.value,
        hit_rate_before=item.hit_rate_before,
        hit_rate_after=item.hit_rate_after,
        ttft_change_seconds=item.ttft_change_seconds,
        tokens_saved_per_day=item.tokens_saved_per_day,
        gpu_seconds_saved_per_day=evidence.gpu_seconds(item.evidence),
        changes=steps_of(item),
        harms=harms_of(item),
        by_hand=not item.transforms,
        in_force=in_force(item, policies),
        evidence=dict(item.evidence),
    )


def _promotion(store: Store, policy: RoutePolicy) -> PromotionLine:
    """Return a policy with its route's traffic before the experiment (or the policy) and since."""
    experiment = next((e for e in store.experiments.list() if e.id == policy.experiment), None)
    started_at = experiment.started_at if experiment else None
    before_end = policy.since_at if started_at is None else started_at
    records = store.reader.requests(last=SAMPLE, route=policy.route)
    before = [r for r in records if r.arrived_at is not None and r.arrived_at < before_end]
    after = [r for r in records if r.arrived_at is not None and r.arrived_at >= policy.since_at]
    return PromotionLine(
        route=policy.route,
        changes=changes_of(policy.transforms),
        experiment=experiment.name if experiment else policy.experiment,
        actor=policy.actor,
        since_at=policy.since_at,
        before=traffic("before", before) if before else None,
        after=traffic("after", after) if after else None,
        predicted_hit_rate=experiment.predicted.get("hit_rate_after") if experiment else None,
    )
