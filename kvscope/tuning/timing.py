"""When requests are sent: identical ones at once, and prefixes that are evicted before they come back.

Both leave prompts and answers as they are.
"""

import bisect
from array import array
from collections.abc import Iterator, Mapping, Sequence

from kvscope.cache.hashing import block_chain, root_of
from kvscope.tuning.effects import Effect
from kvscope.tuning.judge import Outcome, Tokens
from kvscope.tuning.rule import Operation, Traffic, told
from kvscope.tuning.window import RouteWindow

STAGGER_IDENTICAL = "stagger_identical"
KEEP_WARM = "keep_warm"
SECONDS_A_TOKEN = 1e-4
"""Prefill time of an uncached token where no latency model tells it: an assumption, and told as one."""

_INTERVALS = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_MOST_TOUCHES = 4  # times the requests of the window: beyond that it is no remedy


def stagger_identical(traffic: Traffic) -> Iterator[Operation]:
    """Suggest to hold requests back until the first of those with their prefix is cached.

    The window's replay takes requests one after the other, which is what holding back brings. What happens
    without it is that replay less the blocks that were still being computed when a request came.
    """
    if any(route.window_seconds is None for route in traffic.routes):
        return  # without times nothing is known of what came at once
    before, waits = _in_flight(traffic)
    for route in traffic.routes:
        effect = Effect(before, traffic.judge.now, route)
        held = [waits[at] for at in route.positions if at in waits]
        if held and effect.least_gain >= traffic.min_gain:
            yield Operation(
                kind=STAGGER_IDENTICAL,
                effect=effect,
                change={"stagger": "until_first_token"},
                evidence=told(effect, traffic.window)
                | {
                    "requests_held": len(held),
                    "mean_wait_seconds": sum(held) / len(held),
                    "prefill_assumed": traffic.ttft is None,
                },
                timed=False,
            )


def _in_flight(traffic: Traffic) -> tuple[Outcome, Mapping[int, float]]:
    """Return what is hit where nobody waits, and how long each request would have to."""
    judge, prompts = traffic.judge, traffic.window.prompts
    ready: dict[tuple[str, int], float] = {}  # engine, chain of a block -> when it is computed
    hits = list(judge.now.hit_tokens)
    waits: dict[int, float] = {}
    for at, prompt in enumerate(prompts):
        tokens = judge.now.prompt_tokens[at]
        if not tokens:
            continue
        chain = block_chain(judge.tokens(at).tolist(), judge.block_size, root_of(salt=prompt.salt))
        hit = hits[at] // judge.block_size
        late = [ready.get((prompt.engine, block), 0.0) - prompt.arrived_at for block in chain[:hit]]
        first = next((place for place, wait in enumerate(late) if wait > 0), hit)
        if first < hit:
            waits[at] = max(late)
            hits[at] = first * judge.block_size
        done = prompt.arrived_at + _prefill_seconds(traffic, tokens, hits[at])
        for place, block in enumerate(chain):
            key = prompt.engine, block
            if place >= first:  # who computes it too may be done before the first one is
                ready[key] = min(done, ready[key]) if first <= place < hit else done
    return Outcome(prompt_tokens=judge.now.prompt_tokens, hit_tokens=tuple(hits)), waits


def _prefill_seconds(traffic: Traffic, tokens: int, cached: int) -> float:
    told_by_model = traffic.ttft(tokens, cached) if traffic.ttft is not None else None
    return SECONDS_A_TOKEN * (tokens - cached) if told_by_model is None else told_by_model


def keep_warm(traffic: Traffic) -> Iterator[Operation]:
    """Suggest to touch a route's prefix now and then, where it is evicted before it comes back.

    Of several intervals the one that saves most; what touches compute, and what they push out of other
    routes' blocks, is counted against it.
    """
    judge = traffic.judge
    if judge.serving.num_blocks is None:
        return
    endless = judge.endless
    for route in traffic.routes:
        lost = Effect(judge.now, endless, route).least_gain
        if lost < traffic.min_gain or route.window_seconds is None:
            continue
        prefixes = _prefixes(traffic, route)
        best: tuple[int, float, Effect, int] | None = None
        for interval in _INTERVALS:
            touches = _touches(traffic, route, prefixes, interval)
            count = sum(map(len, touches.values()))
            if not 0 < count <= _MOST_TOUCHES * len(traffic.window.prompts):
                continue
            after, cost = judge.touched(touches)
            net = _computed(judge.now) - _computed(after) - cost
            if net > 0 and (best is None or net > best[0]):
                best = net, interval, Effect(judge.now, after, route, cost), count
        if best is not None and best[2].least_gain >= traffic.min_gain and best[2].saved > 0:
            net, interval, effect, count = best
            yield Operation(
                kind=KEEP_WARM,
                effect=effect,
                change={"keep_warm": {"every_seconds": interval}},
                evidence=told(effect, traffic.window)
                | {
                    "touches": count,
                    "touch_tokens": max(map(len, prefixes.values())),
                    "tokens_computed_by_touches": effect.cost_tokens,
                    "tokens_saved_all_routes": net,
                },
            )


def _computed(outcome: Outcome) -> int:
    return sum(outcome.prompt_tokens) - sum(outcome.hit_tokens)


def _prefixes(traffic: Traffic, route: RouteWindow) -> dict[tuple[str, str | None], Tokens]:
    """Return what the prompts of the route share, by engine and salt; whole blocks of it only."""
    found: dict[tuple[str, str | None], Tokens] = {}
    for at in route.positions:
        prompt, tokens = traffic.window.prompts[at], traffic.judge.tokens(at)
        key = prompt.engine, prompt.salt
        if tokens:
            found[key] = tokens[: _shared(found[key], tokens)] if key in found else tokens
    size = traffic.judge.block_size
    whole = {key: tokens[: len(tokens) // size * size] for key, tokens in found.items()}
    # the last token of a prompt is always computed: one more, so that the last whole block can hit
    return {key: tokens + array("q", [0]) for key, tokens in whole.items() if tokens}


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    count = min(len(first), len(second))
    return next((at for at in range(count) if first[at] != second[at]), count)


def _touches(
    traffic: Traffic, route: RouteWindow, prefixes: Mapping[tuple[str, str | None], Tokens], interval: float
) -> dict[int, list[Tokens]]:
    """Return the touches before each position: each ``interval`` seconds after the prefix was used."""
    prompts = traffic.window.prompts
    touches: dict[int, list[Tokens]] = {}
    used: dict[tuple[str, str | None], float] = {}
    own: dict[tuple[str, str | None], tuple[list[int], list[float]]] = {}
    for at, prompt in enumerate(prompts):  # a touch stands before the next request under its key
        positions, times = own.setdefault((prompt.engine, prompt.salt), ([], []))
        positions.append(at)
        times.append(prompt.arrived_at)
    for at in route.positions:
        key = prompts[at].engine, prompts[at].salt
        if key not in prefixes:
            continue
        positions, times = own[key]
        due = used.get(key, prompts[at].arrived_at) + interval
        while due < prompts[at].arrived_at:
            place = bisect.bisect_left(times, due)
            touches.setdefault(positions[place], []).append(prefixes[key])
            due += interval
        used[key] = prompts[at].arrived_at
    return touches
