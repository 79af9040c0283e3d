"""The entropies of logged prompts, route by route: of their texts, of their positions, of their segments."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from kvscope.errors import UsageError
from kvscope.model.prompt import Prompt
from kvscope.prompts.entropy import character_entropy, compressed_bits, value_entropy, window_entropy
from kvscope.prompts.positions import Position, profile
from kvscope.prompts.segments import prompt_text, segments


class Encoder(Protocol):
    """Turns a body into prompt tokens, as ``PromptTokenizer`` does."""

    def encode(self, api: str, body: Mapping[str, Any]) -> Sequence[int]:
        """Return the prompt tokens of ``body``; raises ``UsageError`` where it has none."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextEntropies:
    """What the texts of a route's prompts hold, as means over prompts, in bits per character (or token)."""

    route: str
    prompts: int
    characters: float
    tokens: float
    character_entropy: float
    window_entropy: float
    token_entropy: float
    compressed_bits: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntropy:
    """How uncertain one segment is.

    ``entropy_bits`` given all segments before it, ``own_entropy_bits`` by itself; ``variants`` counts its
    distinct texts among ``prompts``.
    """

    index: int
    role: str
    message_index: int | None
    prompts: int
    variants: int
    entropy_bits: float
    own_entropy_bits: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteProfile:
    """Where a route's prompts turn from stable to varying.

    ``positions`` are those at which prompts with one prefix differ, ``shared_tokens_*`` the common prefix
    of two prompts over all pairs. None where there is one prompt only.
    """

    route: str
    prompts: int
    entropy_bits: float
    shared_tokens_mean: float | None
    shared_tokens_median: int | None
    positions: tuple[Position, ...]
    segments: tuple[SegmentEntropy, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entropies:
    """Both tables, and requests that have no tokens as (request id, reason)."""

    prompts: tuple[TextEntropies, ...]
    positions: tuple[RouteProfile, ...]
    left_out: tuple[tuple[str, str], ...]


def entropies(prompts: Iterable[Prompt], encoder: Encoder) -> Entropies:
    """Return the entropies of ``prompts`` by route, the route with the most prompts first."""
    routes: dict[str, _Route] = defaultdict(_Route)
    left_out: list[tuple[str, str]] = []
    for prompt in prompts:
        try:
            tokens = encoder.encode(prompt.api, prompt.body)
        except UsageError as error:
            left_out.append((prompt.request_id, str(error)))
        else:
            routes[prompt.route].add(prompt, tokens)
    named = sorted(routes.items(), key=lambda item: (-len(item[1].tokens), item[0]))
    return Entropies(
        prompts=tuple(route.texts(name) for name, route in named),
        positions=tuple(route.profile(name) for name, route in named),
        left_out=tuple(left_out),
    )


_Slot = tuple[str, int | None]


class _Route:
    """Collects one route's prompts; texts are measured and let go at once."""

    def __init__(self) -> None:
        self.tokens: list[Sequence[int]] = []
        self._sums = [0.0] * 6
        self._numbers: dict[tuple[_Slot, str], int] = {}
        self._slots: list[list[_Slot]] = []
        self._chains: list[list[int]] = []

    def add(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        parts = segments(prompt.api, prompt.body)
        text = prompt_text(parts)
        measured = (
            len(text),
            len(tokens),
            character_entropy(text),
            window_entropy(text),
            value_entropy(tokens),
            compressed_bits(text),
        )
        self._sums = [total + value for total, value in zip(self._sums, measured, strict=True)]
        self.tokens.append(tokens)
        self._slots.append([(part.role, part.message_index) for part in parts])
        self._chains.append([self._number(part.role, part.message_index, part.text) for part in parts])

    def texts(self, name: str) -> TextEntropies:
        count = len(self.tokens)
        characters, tokens, by_character, by_window, by_token, compressed = (
            total / count for total in self._sums
        )
        return TextEntropies(
            route=name,
            prompts=count,
            characters=characters,
            tokens=tokens,
            character_entropy=by_character,
            window_entropy=by_window,
            token_entropy=by_token,
            compressed_bits=compressed,
        )

    def profile(self, name: str) -> RouteProfile:
        found = profile(self.tokens)
        return RouteProfile(
            route=name,
            prompts=found.prompts,
            entropy_bits=found.entropy_bits,
            shared_tokens_mean=found.shared_mean,
            shared_tokens_median=found.shared_median,
            positions=found.positions,
            segments=tuple(self._segments()),
        )

    def _segments(self) -> Iterable[SegmentEntropy]:
        """A segment is a letter here, and a prompt a word of segments."""
        bits = {each.position: each.entropy_bits for each in profile(self._chains).positions}
        for index in range(max(map(len, self._chains), default=0)):
            holders = [place for place, chain in enumerate(self._chains) if len(chain) > index]
            numbers = [self._chains[place][index] for place in holders]
            role, message_index = self._slots[holders[0]][index]
            yield SegmentEntropy(
                index=index,
                role=role,
                message_index=message_index,
                prompts=len(holders),
                variants=len(set(numbers)),
                entropy_bits=bits.get(index, 0.0),
                own_entropy_bits=value_entropy(numbers),
            )

    def _number(self, role: str, message_index: int | None, text: str) -> int:
        return self._numbers.setdefault(((role, message_index), text), len(self._numbers))
