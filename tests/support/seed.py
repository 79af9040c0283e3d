"""Fills a store with one believable hour: five routes, one of them fixed by an experiment and promoted.

Figures are made up but consistent: causes add up to each prompt, and the engine's counters to the records.
"""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from kvscope.experiments.looks import make_look
from kvscope.model.advice import (
    Arm,
    Experiment,
    ExperimentState,
    FittedModel,
    Guardrail,
    RoutePolicy,
    Suggestion,
    Transition,
    Verdict,
)
from kvscope.model.prompt import Risk, TransformSpec
from kvscope.model.request import Miss, MissCause, RequestPart, Source
from kvscope.model.telemetry import MetricSample
from kvscope.pipeline.contracts import Batch
from kvscope.store.database import Store, open_store

ENGINE = "http://127.0.0.1:8000"
MODEL = "tiny-llama"
NOW = 1_790_000_000.0
MOVE = TransformSpec(kind="move_volatile", params={"role": "system", "line_keys": ["9f1c2ab34d5e6f70"]})
SORT = TransformSpec(kind="sort_tools")

_BLOCK = 16
_START, _PROMOTED, _SPAN = 1_200.0, 2_700.0, 3_600.0  # seconds since the hour began
_HITS = "vllm:prefix_cache_hits_total"
_QUERIES = "vllm:prefix_cache_queries_total"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    name: str
    prompt: tuple[int, int]
    stable: float  # share of the prompt that can be cached when nothing breaks it
    weight: int
    break_at: float | None = None  # share of the prompt after which it differs each time
    place: tuple[str, int | None, int, int, str] | None = None


_ROUTES = (
    _Route(
        name="support",
        prompt=(820, 980),
        stable=0.93,
        weight=4,
        break_at=0.02,
        place=("system", 0, 14, 33, "timestamp"),
    ),
    _Route(
        name="agent",
        prompt=(1100, 1400),
        stable=0.86,
        weight=3,
        break_at=0.06,
        place=("tools", None, 120, 480, "tool_order"),
    ),
    _Route(name="search", prompt=(600, 1500), stable=0.35, weight=2),
    _Route(name="chat", prompt=(200, 1900), stable=0.78, weight=3),
    _Route(name="auto-4f2e91c7", prompt=(90, 260), stable=0.5, weight=1),
)


def seed(url: str, *, now: float = NOW) -> None:
    """Make the store at ``url`` and fill it with traffic up to ``now`` and all kinds of advice."""
    store = open_store(url, upgrade=True)
    try:
        seed_traffic(store, now=now)
        seed_advice(store, now=now)
        seed_experiments(store, now=now)
    finally:
        store.close()


def seed_traffic(store: Store, *, now: float = NOW, requests: int = 480) -> None:
    """Write ``requests`` requests of the hour before ``now``, and the counters that agree with them."""
    rng = random.Random(7)
    begin = now - _SPAN
    parts: list[RequestPart] = []
    misses: list[Miss] = []
    queried = hits = 0
    for number in range(requests):
        offset = _SPAN * (number + rng.random()) / requests
        values, lost = _request(rng, begin, offset, number)
        request_id = f"req-{number:04d}-{rng.getrandbits(32):08x}"
        engine_told = {"ttft_seconds", "tpot_seconds", "queue_seconds", "prefill_seconds", "decode_seconds"}
        for source, names in (
            (Source.GATEWAY, values.keys() - engine_told - {"causes"}),
            (Source.SPAN, engine_told),
            (Source.ANALYSIS, {"causes"}),
        ):
            told = {name: values[name] for name in names if values.get(name) is not None}
            parts.append(RequestPart(request_id=request_id, source=source, values=told))
        misses += [dataclasses.replace(miss, request_id=request_id) for miss in lost]
        queried += values["prompt_tokens"]
        hits += values["cached_tokens"]
    samples = list(_samples(begin, now, queried, hits))
    assert store.batches.write([Batch(parts=parts, misses=misses, samples=samples)]) == 0


def _request(
    rng: random.Random, begin: float, offset: float, number: int
) -> tuple[dict[str, Any], list[Miss]]:
    route = rng.choices(_ROUTES, weights=[route.weight for route in _ROUTES])[0]
    prompt = rng.randint(*route.prompt)
    in_trial = route.name == "support" and _START <= offset < _PROMOTED
    session = rng.randint(1, 120)
    arm = ("treatment" if session % 2 else "baseline") if in_trial else None
    fixed = route.name == "support" and (arm == "treatment" or offset >= _PROMOTED)
    causes = _causes(rng, route, prompt, fixed=fixed, cold=offset < 60)
    cached = prompt - sum(causes.values())
    uncached = prompt - cached
    prefill = 0.018 + uncached * 0.00016 + rng.gauss(0, 0.004)
    queue = abs(rng.gauss(0.002, 0.003))
    output = rng.randint(12, 90)
    tpot = 0.011 + rng.gauss(0, 0.0012)
    failed = number % 97 == 96
    values: dict[str, Any] = {
        "trace_id": f"{rng.getrandbits(128):032x}",
        "session": f"session-{session}",
        "route": route.name,
        "model": MODEL,
        "engine": ENGINE,
        "replica": "0",
        "arrived_at": begin + offset,
        "status": "error" if failed else "ok",
        "finish_reason": None if failed else "stop",
        "prompt_tokens": prompt,
        "output_tokens": output,
        "cached_tokens": cached,
        "ttft_seconds": queue + prefill,
        "ttft_client_seconds": queue + prefill + 0.001,
        "tpot_seconds": tpot,
        "queue_seconds": queue,
        "prefill_seconds": prefill,
        "decode_seconds": tpot * (output - 1),
        "e2e_seconds": queue + prefill + tpot * (output - 1) + 0.002,
        "prompt_chars": prompt * 4,
        "prompt_entropy": 4.2 + rng.gauss(0, 0.1),
        "prompt_layout": "move_volatile" if fixed else "as_sent",
        "experiment": "exp-support" if arm else None,
        "arm": arm,
        "warmup": offset < _START + 40 if arm else None,
        "gateway_overhead_seconds": 0.0004,
        "causes": {cause.value: tokens for cause, tokens in causes.items() if tokens},
    }
    return values, _misses(route, causes)


def _causes(
    rng: random.Random, route: _Route, prompt: int, *, fixed: bool, cold: bool
) -> dict[MissCause, int]:
    reach = route.stable if fixed or route.break_at is None else route.break_at
    if cold:
        reach = 0.0
    elif route.break_at is None:
        reach *= rng.uniform(0.6, 1.1)
    cached = min(int(prompt * reach), prompt - 1) // _BLOCK * _BLOCK
    missed = prompt - cached
    partial = min(prompt % _BLOCK or 1, missed)
    rest = missed - partial
    causes = {MissCause.GRANULARITY: partial}
    if cold:
        causes[MissCause.COLD] = rest
    elif route.break_at is not None and not fixed:
        causes[MissCause.DIVERGED] = rest
    else:
        evicted = rest // 3 if rng.random() < 0.3 else 0
        flight = rest // 5 if rng.random() < 0.1 else 0
        causes[MissCause.EVICTED] = evicted
        causes[MissCause.IN_FLIGHT] = flight
        causes[MissCause.COLD] = rest - evicted - flight
    return causes


def _misses(route: _Route, causes: dict[MissCause, int]) -> list[Miss]:
    found = []
    for cause, tokens in causes.items():
        if not tokens:
            continue
        miss = Miss(request_id="", cause=cause, tokens=tokens)
        if cause is MissCause.DIVERGED and route.place is not None:
            role, index, start, end, kind = route.place
            miss = dataclasses.replace(
                miss, role=role, message_index=index, char_start=start, char_end=end, value_kind=kind
            )
        elif cause is MissCause.COLD:
            miss = dataclasses.replace(miss, role="user", message_index=1, char_start=0, char_end=64)
        found.append(miss)
    return found


def _samples(begin: float, now: float, queried: int, hits: int) -> Iterator[MetricSample]:
    for at, share in ((begin - 1, 0), (now, 1)):
        for name, total in ((_QUERIES, queried), (_HITS, hits)):
            yield MetricSample(
                engine=ENGINE, replica="0", name=name, labels={}, at=at, value=float(total * share)
            )


def seed_advice(store: Store, *, now: float = NOW) -> None:
    """Write three suggestions (review, safe, and one that a person must carry out) and two models."""
    store.advice.save_suggestions(suggestions(now))
    store.advice.save_models(
        [
            FittedModel(
                name="prefill_linear",
                target="prefill_seconds",
                features=("uncached_tokens", "attention_work"),
                coefficients={"intercept": 0.018, "uncached_tokens": 0.00016, "attention_work": 2e-9},
                r2=0.97,
                mae_seconds=0.0042,
                coverage_90=0.91,
                error_quantiles=(-0.05, 0.08),
                rows=400,
                ranges={"uncached_tokens": (16.0, 1_880.0), "attention_work": (1e3, 3.6e6)},
                fitted_at=now - 60,
            ),
            FittedModel(
                name="ttft_mean",
                target="ttft_seconds",
                features=("uncached_tokens", "requests_in_flight"),
                coefficients={"intercept": 0.021, "uncached_tokens": 0.00017, "requests_in_flight": 0.003},
                r2=0.94,
                mae_seconds=0.0061,
                coverage_90=0.89,
                error_quantiles=(-0.05, 0.08),
                rows=400,
                ranges={"uncached_tokens": (16.0, 1_880.0), "requests_in_flight": (0.0, 6.0)},
                fitted_at=now - 60,
            ),
        ]
    )


def suggestions(now: float = NOW) -> list[Suggestion]:
    """Return the three suggestions that ``seed_advice`` stores."""
    return [
        Suggestion(
            id="move_volatile-support-1a2b3c4d",
            kind="move_volatile",
            route="support",
            risk=Risk.REVIEW,
            evidence={
                "requests": 148,
                "window_seconds": 900.0,
                "role": "system",
                "message_index": 0,
                "char_start": 14,
                "char_end": 33,
                "value_kind": "timestamp",
                "tokens_lost": 118_400,
                "characters_moved": 27,
                "example_request_ids": ["req-0084-177a8334"],
                "window_capped": False,
                "parts": [
                    {
                        "kind": "move_volatile",
                        "role": "system",
                        "message_index": 0,
                        "char_start": 14,
                        "char_end": 33,
                        "value_kind": "timestamp",
                        "distinct": 148,
                        "occurrences": 148,
                    }
                ],
            },
            hit_rate_before=0.012,
            hit_rate_after=0.921,
            ttft_change_seconds=-0.131,
            tokens_saved_per_day=9_400_000.0,
            change={"transforms": [MOVE.as_json()]},
            created_at=now - 2_700,
        ),
        Suggestion(
            id="sort_tools-agent-5e6f7a8b",
            kind="sort_tools",
            route="agent",
            risk=Risk.SAFE,
            evidence={"requests": 110, "role": "tools", "value_kind": "tool_order", "tokens_lost": 101_300},
            hit_rate_before=0.051,
            hit_rate_after=0.842,
            ttft_change_seconds=-0.158,
            tokens_saved_per_day=8_100_000.0,
            change={"transforms": [SORT.as_json()]},
            created_at=now - 600,
        ),
        Suggestion(
            id="more_memory-chat-9c0d1e2f",
            kind="more_memory",
            route="chat",
            risk=Risk.SAFE,
            evidence={"requests": 37, "tokens_lost": 9_800, "blocks_now": 512},
            hit_rate_before=0.66,
            hit_rate_after=0.71,
            ttft_change_seconds=None,
            tokens_saved_per_day=310_000.0,
            change={"blocks": 900},
            created_at=now - 600,
        ),
    ]


def arms(*transforms: TransformSpec) -> tuple[Arm, ...]:
    """Return a baseline and a treatment that share the traffic evenly."""
    return (
        Arm(name="baseline", baseline=True, share=0.5),
        Arm(name="treatment", baseline=False, share=0.5, transforms=transforms),
    )


def seed_experiments(store: Store, *, now: float = NOW) -> None:
    """Write a decided and promoted experiment with its looks, and a draft."""
    begin = now - _SPAN
    done = Experiment(
        id="exp-support",
        name="support-clock-last",
        route="support",
        arms=arms(MOVE),
        guardrails=(
            Guardrail(metric="error", margin=0.02),
            Guardrail(metric="ttft_seconds", margin=0.1, relative=True),
        ),
        suggestion_id="move_volatile-support-1a2b3c4d",
        predicted={"hit_rate_before": 0.012, "hit_rate_after": 0.921, "ttft_change_seconds": -0.131},
        created_at=begin + _START - 90,
    )
    store.experiments.create(done)
    for at, state, actor, reason, verdict in (
        (_START, ExperimentState.RUNNING, "dashboard", "start asked for", None),
        (_PROMOTED - 60, ExperimentState.DECIDED, "controller", "the interval lies below zero", Verdict.KEEP),
    ):
        store.experiments.transition(
            Transition(experiment=done.id, at=begin + at, state=state, actor=actor, reason=reason),
            verdict=verdict,
        )
    running = store.experiments.get(done.id)
    records = store.reader.requests(experiment=done.id)
    for offset in range(int(_START) + 60, int(_PROMOTED), 60):
        so_far = [record for record in records if (record.arrived_at or 0.0) < begin + offset]
        store.experiments.add_look(make_look(running, so_far, now=begin + offset))
    store.advice.set_policy(
        RoutePolicy(
            route="support",
            transforms=(MOVE,),
            experiment=done.id,
            actor="dashboard",
            since_at=begin + _PROMOTED,
        )
    )
    store.experiments.create(
        Experiment(
            id="exp-agent",
            name="agent-sorted-tools",
            route="agent",
            arms=arms(SORT),
            guardrails=(Guardrail(metric="error", margin=0.02),),
            suggestion_id="sort_tools-agent-5e6f7a8b",
            predicted={"hit_rate_before": 0.051, "hit_rate_after": 0.842},
            created_at=now - 300,
        )
    )
