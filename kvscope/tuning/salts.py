"""Salts that are finer than tenants: widened by themselves, and together with changes of prompts.

Each fault hides the other. Where every request has a salt of its own, no order of a prompt's lines gains
anything, and where every prompt begins with a clock, no salt does. So changes are searched once more in the
window as it would be with one salt a tenant. A salt is never widened over tenants.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from kvscope.model.prompt import Prompt
from kvscope.tuning.effects import Effect
from kvscope.tuning.judge import Judge, Serving
from kvscope.tuning.rule import Operation, Traffic, told
from kvscope.tuning.search import Change, Option, promising
from kvscope.tuning.window import RouteWindow, Window

WIDEN_SALT = "widen_salt"
SALT_A_TENANT = {"cache_salt": "tenant"}
_FEWEST_SALTS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class WideJudges:
    """The exact judge and the one of stand-in tokens, for both of which a tenant has one salt."""

    exact: Judge
    rough: Judge


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaltedChange:
    """A change of prompts that is made together with wider salts. ``effect`` is that of both.

    ``salts_first``: wider salts alone gain as much as the change of prompts alone, or more.
    """

    change: Change
    effect: Effect
    salts_first: bool


def a_salt_a_tenant(serving: Serving, window: Window) -> Serving | None:
    """Return ``serving`` with one salt a tenant, None where no known tenant has several salts."""
    salts: dict[str, set[str]] = {}
    for prompt in window.prompts:
        if prompt.salt is not None and prompt.tenant is not None:
            salts.setdefault(prompt.tenant, set()).add(prompt.salt)
    if all(len(found) < _FEWEST_SALTS for found in salts.values()):
        return None
    return dataclasses.replace(serving, salt=_by_tenant)


def widen_salt(traffic: Traffic) -> Iterator[Operation]:
    """Suggest one salt a tenant where a tenant's requests have several; never one for several tenants."""
    serving = a_salt_a_tenant(traffic.judge.serving, traffic.window)
    if serving is None:
        return
    after = traffic.judge.served(serving)
    for route in traffic.routes:
        effect = Effect(traffic.judge.now, after, route)
        if effect.least_gain >= traffic.min_gain:
            yield Operation(
                kind=WIDEN_SALT,
                effect=effect,
                change=SALT_A_TENANT,
                evidence=told(effect) | counted(route, traffic.window),
            )


def counted(route: RouteWindow, window: Window) -> dict[str, Any]:
    """Return how many salts and tenants the route has."""
    found = [window.prompts[at] for at in route.positions]
    return {
        "salts": len({prompt.salt for prompt in found}),
        "tenants": len({prompt.tenant for prompt in found}),
    }


def with_wider_salts(
    now: Judge, wide: WideJudges, route: RouteWindow, options: Sequence[Option], *, min_gain: float
) -> Iterator[SaltedChange]:
    """Yield the changes of prompts that with wider salts gain ``min_gain`` more than either alone.

    A combination of several kinds is yielded only where it gains more than its parts, salts widened for all.
    """
    salts = Effect(now.now, wide.exact.now, route).least_gain
    best = 0.0
    changes = promising(wide.rough, route, options, min_gain=min_gain)
    for change in sorted(changes, key=lambda change: len(change.kinds)):
        effect = Effect(now.now, wide.exact.outcome(route, change.specs), route)
        prompts = Effect(now.now, now.outcome(route, change.specs), route).least_gain
        bar = max(0.0, salts, prompts) + min_gain
        if len(change.kinds) > 1:
            bar = max(bar, best + min_gain / 4)
        if effect.least_gain >= bar:
            best = max(best, effect.least_gain)
            yield SaltedChange(change=change, effect=effect, salts_first=salts >= prompts)


def _by_tenant(prompt: Prompt) -> str | None:
    return prompt.salt if prompt.salt is None or prompt.tenant is None else f"tenant {prompt.tenant}"
