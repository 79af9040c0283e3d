"""Changes of how the engines are run: prompts stay as they are, and answers cannot change.

Each is a question to the same exact replay: the window served with more memory, or by another choice of the
replica. Memory is the engine's, so it is suggested once, to the route that gains most.
"""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence

from kvscope.model.advice import Routing
from kvscope.model.prompt import Prompt
from kvscope.tuning.effects import Effect
from kvscope.tuning.judge import Judge, Outcome
from kvscope.tuning.rule import Operation, Traffic, told
from kvscope.tuning.window import RouteWindow

MORE_MEMORY = "more_memory"
ROUTE_AFFINITY = "route_affinity"
_FACTORS = (1.5, 2.0, 3.0, 4.0, 8.0)
_MOST_OF_IT = 0.8  # of what endless memory would bring: more than that is seldom worth it
_LEADING = 512  # characters that tell one template from another


def more_memory(traffic: Traffic) -> Iterator[Operation]:
    """Suggest the least memory that brings most of what endless memory would."""
    judge, routes, min_gain = traffic.judge, traffic.routes, traffic.min_gain
    blocks = judge.serving.num_blocks
    if blocks is None:
        return
    endless = judge.endless
    route = _gaining_most(judge, endless, routes)
    most = Effect(judge.now, endless, route).least_gain
    if most < min_gain:
        return
    for factor in _FACTORS:
        wanted = round(blocks * factor)
        after = judge.served(dataclasses.replace(judge.serving, num_blocks=wanted))
        effect = Effect(judge.now, after, route)
        if effect.least_gain >= max(min_gain, _MOST_OF_IT * most):
            yield Operation(
                kind=MORE_MEMORY,
                effect=effect,
                change={"blocks": wanted},
                evidence=told(effect)
                | {"blocks_now": blocks, "hit_rate_without_limit": endless.hit_rate(route.positions)},
            )
            return


def route_affinity(traffic: Traffic) -> Iterator[Operation]:
    """Suggest to keep sessions, or else equal beginnings, on one of the engines that serve their model."""
    judge, window, min_gain = traffic.judge, traffic.window, traffic.min_gain
    engines: dict[str, set[str]] = {}
    for prompt in window.prompts:
        engines.setdefault(_model(prompt), set()).add(prompt.engine)
    if all(len(found) == 1 for found in engines.values()):
        return
    ordered = {model: sorted(found) for model, found in engines.items()}

    def by_session(prompt: Prompt) -> str:
        return _chosen(ordered[_model(prompt)], prompt.session or prompt.request_id)

    def by_prefix(prompt: Prompt) -> str:
        return _chosen(
            ordered[_model(prompt)], repr(prompt.sent_body.get("messages") or prompt.sent_body)[:_LEADING]
        )

    outcomes = {
        Routing.SESSION: judge.served(dataclasses.replace(judge.serving, engine=by_session)),
        Routing.PREFIX: judge.served(dataclasses.replace(judge.serving, engine=by_prefix)),
    }
    for route in traffic.routes:
        replicas = sorted({window.prompts[at].engine for at in route.positions})
        if len(replicas) == 1:
            continue
        effects = {routing: Effect(judge.now, after, route) for routing, after in outcomes.items()}
        # to know sessions is simpler than to know prefixes: only a clear gain speaks for these
        by_far = effects[Routing.PREFIX].least_gain > effects[Routing.SESSION].least_gain + min_gain
        routing = Routing.PREFIX if by_far else Routing.SESSION
        effect = effects[routing]
        if effect.least_gain >= min_gain:
            yield Operation(
                kind=ROUTE_AFFINITY,
                effect=effect,
                change={"routing": routing.value},
                evidence=told(effect) | {"replicas": len(replicas)},
            )


def _gaining_most(judge: Judge, after: Outcome, routes: Sequence[RouteWindow]) -> RouteWindow:
    return max(routes, key=lambda route: Effect(judge.now, after, route).saved)


def _model(prompt: Prompt) -> str:
    return str(prompt.sent_body.get("model") or "")


def _chosen(engines: Sequence[str], key: str) -> str:
    return engines[zlib.crc32(key.encode("utf-8", "surrogatepass")) % len(engines)]
