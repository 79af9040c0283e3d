"""The judge of a change: exact replay of the whole window, with one route's prompts changed.

A judge of real tokens decides. A judge of stand-in tokens, a few characters each, costs a fraction of it and
helps the search to choose what the real one is asked about.
"""

import copy
import dataclasses
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.errors import UsageError
from kvscope.model.prompt import Prompt, TransformSpec
from kvscope.prompts.segments import segments
from kvscope.tuning.window import RouteWindow, Window

Tokens: TypeAlias = "array[int]"  # Python 3.11 cannot subscript it at run time
Encode = Callable[[str, Mapping[str, Any]], Sequence[int]]

_STEP = 0x9E37_79B1  # odd, 2**32 divided by the golden ratio


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Prompt and hit tokens of each request of the window; requests that could not be replayed have zeros."""

    prompt_tokens: tuple[int, ...]
    hit_tokens: tuple[int, ...]

    def hit_rate(self, positions: Iterable[int] | None = None) -> float:
        """Hit ÷ prompt tokens of the requests at ``positions``, of all unless given; 0 without tokens."""
        chosen = range(len(self.prompt_tokens)) if positions is None else tuple(positions)
        tokens = sum(self.prompt_tokens[position] for position in chosen)
        return sum(self.hit_tokens[position] for position in chosen) / tokens if tokens else 0.0

    def uncached(self, position: int) -> int:
        """Return the tokens of a request that were computed."""
        return self.prompt_tokens[position] - self.hit_tokens[position]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How the window is served: with what salt, by which engine, with how many blocks each."""

    salt: Callable[[Prompt], str | None]
    engine: Callable[[Prompt], str]
    num_blocks: int | None


class Judge:
    """Replays one window again and again; each engine has a cache of its own."""

    def __init__(self, window: Window, encode: Encode, *, block_size: int, num_blocks: int | None) -> None:
        self._window = window
        self._encode = encode
        self._block_size = block_size
        self._num_blocks = num_blocks
        self.refused: list[str] = []  # why prompts could not be tokenised
        self._tokens = [self._tokens_of(prompt.api, prompt.sent_body) for prompt in window.prompts]
        self._outcomes: dict[tuple[str, frozenset[str]], Outcome] = {}
        self.serving = Serving(
            salt=lambda prompt: prompt.salt, engine=lambda prompt: prompt.engine, num_blocks=num_blocks
        )
        self.now = self._replay({}, self.serving)
        self._endless: Outcome | None = None

    def outcome(self, route: RouteWindow, specs: Sequence[TransformSpec]) -> Outcome:
        """Return what the window would have hit with ``specs`` on ``route``."""
        key = (route.route, frozenset(map(repr, specs)))
        known = self._outcomes.get(key)
        if known is None:
            known = self._outcomes[key] = self._replay(self._changed(route, specs), self.serving)
        return known

    @property
    def endless(self) -> Outcome:
        """What the window as it is would have hit in a cache without limit."""
        if self._endless is None:
            self._endless = self.served(dataclasses.replace(self.serving, num_blocks=None))
        return self._endless

    def rewritten(self, bodies: Mapping[int, Mapping[str, Any]]) -> Outcome:
        """Return what the window would have hit with other bodies at some positions."""
        prompts = self._window.prompts
        changed = {at: self._tokens_of(prompts[at].api, body) for at, body in bodies.items()}
        return self._replay(changed, self.serving)

    def touched(self, touches: Mapping[int, Sequence[Tokens]]) -> tuple[Outcome, int]:
        """Return what the window would have hit with further requests before some positions, and their cost.

        A touch goes to the engine of the request at its position, under its salt. The cost is the tokens
        that touches computed.
        """
        computed: list[int] = []
        return self._replay({}, self.serving, touches, computed), sum(computed)

    def tokens(self, position: int) -> Tokens:
        """Return the prompt tokens of one request, none where it could not be tokenised."""
        return self._tokens[position]

    def encoded(self, api: str, body: Mapping[str, Any]) -> Tokens:
        """Return the tokens of a body, none where it cannot be tokenised."""
        return self._tokens_of(api, body)

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._block_size

    def served(self, serving: Serving) -> Outcome:
        """Return what the window as it is would have hit when served in another way."""
        return self._replay({}, serving)

    def under(self, serving: Serving) -> "Judge":
        """Return a judge of the same window for which ``serving`` is how it is served now."""
        other = copy.copy(self)
        other.serving = serving
        other._outcomes = {}  # noqa: SLF001 - of its own class
        other._endless = None  # noqa: SLF001
        other.now = other.served(serving)
        return other

    def _changed(self, route: RouteWindow, specs: Sequence[TransformSpec]) -> dict[int, Tokens]:
        changed: dict[int, Tokens] = {}
        for position in route.positions:
            prompt = self._window.prompts[position]
            body = self._window.changed(position, specs, route)
            if body is not prompt.sent_body and self._tokens[position]:
                changed[position] = self._tokens_of(prompt.api, body)
        return changed

    def _tokens_of(self, api: str, body: Mapping[str, Any]) -> Tokens:
        try:
            return array("q", self._encode(api, body))
        except UsageError as error:
            self.refused.append(str(error))
        except (OverflowError, TypeError):
            self.refused.append("token ids or characters that no tokenizer takes")
        return array("q")

    def _replay(
        self,
        changed: Mapping[int, Tokens],
        serving: Serving,
        touches: Mapping[int, Sequence[Tokens]] | None = None,
        computed: list[int] | None = None,
    ) -> Outcome:
        prompts = self._window.prompts
        hits = [0] * len(prompts)
        tokens = [changed.get(position, self._tokens[position]) for position in range(len(prompts))]
        lengths = [len(each) if self._fits(each) else 0 for each in tokens]
        by_engine: dict[str, list[int]] = {}
        for position, prompt in enumerate(prompts):
            if lengths[position]:
                by_engine.setdefault(serving.engine(prompt), []).append(position)
        for positions in by_engine.values():
            # a touch has no place of its own in the outcome
            sent = [
                (at, each)
                for p in positions
                for at, each in (*((None, touch) for touch in (touches or {}).get(p, ())), (p, tokens[p]))
            ]
            owners = _owners(sent)
            result = replay(
                (
                    ReplayRequest(
                        request_id=str(number), tokens=each.tolist(), salt=serving.salt(prompts[owner])
                    )
                    for number, ((_, each), owner) in enumerate(zip(sent, owners, strict=True))
                ),
                block_size=self._block_size,
                num_blocks=serving.num_blocks,
            )
            for (at, each), replayed in zip(sent, result.per_request, strict=True):
                if at is not None:
                    hits[at] = replayed.hit_tokens
                elif computed is not None:
                    computed.append(len(each) - replayed.hit_tokens)
        return Outcome(prompt_tokens=tuple(lengths), hit_tokens=tuple(hits))

    def _fits(self, tokens: Tokens) -> bool:
        """Whether the engine could have served the prompt: its cache holds it, one block being vLLM's own."""
        return self._num_blocks is None or len(tokens) <= (self._num_blocks - 1) * self._block_size


def _owners(sent: Sequence[tuple[int | None, Tokens]]) -> list[int]:
    """Return for each request the position under whose salt it is sent: a touch has that of the next."""
    owners: list[int] = []
    owner = 0
    for at, _ in reversed(sent):
        owner = owner if at is None else at
        owners.append(owner)
    return owners[::-1]


def stand_ins(characters: int) -> Encode:
    """Return a stand-in for a tokenizer: a token for every ``characters`` characters of the prompt's text."""
    weights = (np.arange(1, characters + 1, dtype=np.uint32) * np.uint32(_STEP)) | np.uint32(1)

    def encode(api: str, body: Mapping[str, Any]) -> Sequence[int]:
        text = "".join(f"\0{part.role}\n{part.text}" for part in segments(api, body))
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        whole = codes[: len(codes) // characters * characters].reshape(-1, characters)
        mixed = (whole + np.uint32(1)) * weights
        tokens: list[int] = (mixed ^ (mixed >> np.uint32(15))).sum(axis=1, dtype=np.uint32).tolist()
        return tokens

    return encode
