"""Which of the seen requests the advisor looks at, and in which form they count as sent now.

The window is bounded: the newest requests of each route, and the newest of these up to a number of
characters, because tokenising is what advice costs.

"Now" is the policy in force, so that a window in which an experiment ran, or which a promotion divides, is
not a mixture of layouts: where the caller names the transforms in force, every request is taken as if it had
been sent under them. Where the caller cannot (log files), a route's requests count in the form, changed or
unchanged on their way, that most of them were sent in; the others stay in the replay as they were sent.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.model.prompt import Prompt, TransformSpec
from kvscope.prompts.segments import segments as _texts
from kvscope.prompts.transforms import apply_transforms

FEWEST_REQUESTS = 8  # of a route: fewer do not tell what repeats

InForce = Mapping[str, Sequence[TransformSpec]]
"""Route -> the transforms that all its traffic gets now."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the window."""

    prompts_per_route: int = 400
    characters: int = 4_000_000  # of all routes together


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteWindow:
    """One route's part of the window.

    ``positions`` are those of its counted requests in ``Window.prompts``; ``seen`` is how many the route
    had in the window, whatever form they were sent in. ``window_seconds`` is None without a duration.
    """

    route: str
    positions: tuple[int, ...]
    seen: int
    window_seconds: float | None
    in_force: tuple[TransformSpec, ...]
    capped: bool

    @property
    def newer_half(self) -> tuple[int, ...]:
        """The positions of the newer requests: what the cache does once it is warm."""
        return self.positions[len(self.positions) // 2 :]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Prompts in order of arrival. ``sent_body`` is the form that counts as sent now.

    ``body`` is what a further transform is applied to, together with those in force.
    """

    prompts: tuple[Prompt, ...]
    routes: tuple[RouteWindow, ...]
    characters: int

    def changed(self, position: int, specs: Sequence[TransformSpec], route: RouteWindow) -> Mapping[str, Any]:
        """Return the body of one prompt with ``specs`` besides those in force.

        It is ``sent_body`` itself where the texts stay as they are.
        """
        prompt = self.prompts[position]
        body = transformed(prompt.api, prompt.body, (*route.in_force, *specs))
        same = body is prompt.sent_body or _texts(prompt.api, body) == _texts(prompt.api, prompt.sent_body)
        return prompt.sent_body if same else body


def transformed(api: str, body: Mapping[str, Any], specs: Sequence[TransformSpec]) -> Mapping[str, Any]:
    """Return ``body`` with ``specs`` applied."""
    return apply_transforms(specs, api, body if isinstance(body, dict) else dict(body)) if specs else body


def select(prompts: Sequence[Prompt], limits: Limits, in_force: InForce | None) -> Window:
    """Return the window of ``prompts`` within ``limits``."""
    ordered = sorted(prompts, key=lambda prompt: prompt.arrived_at)
    kept, characters = _newest(ordered, limits)
    found = Counter(prompt.route for prompt in ordered)
    taken = [_as_sent_now(prompt, in_force) for prompt in kept]
    by_route: dict[str, list[int]] = {}
    for position, prompt in enumerate(taken):
        by_route.setdefault(prompt.route, []).append(position)
    routes = [
        _route(name, taken, positions, in_force, capped=found[name] > len(positions))
        for name, positions in by_route.items()
    ]
    return Window(prompts=tuple(taken), routes=tuple(routes), characters=characters)


def _newest(ordered: Sequence[Prompt], limits: Limits) -> tuple[list[Prompt], int]:
    """Return the newest prompts within the limits; a route without room for one more takes no older ones."""
    kept: list[Prompt] = []
    counts: Counter[str] = Counter()
    full: set[str] = set()
    characters = 0
    for prompt in reversed(ordered):
        route = prompt.route
        if route in full:
            continue
        size = _size(prompt)
        # a few very long prompts may use more room, so that they are not beyond all advice
        room = limits.characters * (1 if counts[route] >= FEWEST_REQUESTS else 3)
        if counts[route] >= limits.prompts_per_route or (kept and characters + size > room):
            full.add(route)
            continue
        counts[route] += 1
        characters += size
        kept.append(prompt)
    kept.reverse()
    return kept, characters


def _size(prompt: Prompt) -> int:
    """Return the prompt's characters, or its tokens where it is given as those."""
    texts = sum(len(part.text) for part in _texts(prompt.api, prompt.sent_body))
    given = prompt.sent_body.get("prompt")
    return texts or (len(given) if isinstance(given, list) else 1)


def _as_sent_now(prompt: Prompt, in_force: InForce | None) -> Prompt:
    if in_force is None:
        return prompt
    specs = in_force.get(prompt.route, ())
    return dataclasses.replace(prompt, sent_body=transformed(prompt.api, prompt.body, specs))


def _route(
    name: str, taken: list[Prompt], positions: list[int], in_force: InForce | None, *, capped: bool
) -> RouteWindow:
    seen = len(positions)
    arrivals = [taken[position].arrived_at for position in positions]
    if in_force is None:
        positions = _most_common_form(taken, positions)
        for position in positions:
            taken[position] = dataclasses.replace(taken[position], body=taken[position].sent_body)
    return RouteWindow(
        route=name,
        positions=tuple(positions),
        seen=seen,
        window_seconds=(arrivals[-1] - arrivals[0]) or None,
        in_force=tuple((in_force or {}).get(name, ())),
        capped=capped,
    )


def _most_common_form(taken: Sequence[Prompt], positions: Sequence[int]) -> list[int]:
    """Return the positions of the requests that were sent changed, or unchanged; of two halves the newer."""
    changed = functools.partial(_was_changed, taken)
    forms: dict[bool, list[int]] = {True: [], False: []}
    for position in positions:
        forms[changed(position)].append(position)
    return max(forms.values(), key=lambda form: (len(form), form[-1] if form else -1))


def _was_changed(taken: Sequence[Prompt], position: int) -> bool:
    prompt = taken[position]
    if prompt.sent_body is prompt.body:
        return False
    return _texts(prompt.api, prompt.sent_body) != _texts(prompt.api, prompt.body)
