"""The judge of a change: exact replay of the whole window, with one route's prompts changed.

A judge of real tokens decides. A judge of stand-in tokens, a few characters each, costs a fraction of it and
helps the search to choose what the real one is asked about.
"""

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

    def outcome(self, route: RouteWindow, specs: Sequence[TransformSpec]) -> Outcome:
        """Return what the window would have hit with ``specs`` on ``route``."""
        key = (route.route, frozenset(map(repr, specs)))
        known = self._outcomes.get(key)
        if known is None:
            known = self._outcomes[key] = self._replay(self._changed(route, specs), self.serving)
        return known

    def served(self, serving: Serving) -> Outcome:
        """Return what the window as it is would have hit when served in another way."""
        return self._replay({}, serving)

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

    def _replay(self, changed: Mapping[int, Tokens], serving: Serving) -> Outcome:
        prompts = self._window.prompts
        hits = [0] * len(prompts)
        tokens = [changed.get(position, self._tokens[position]) for position in range(len(prompts))]
        lengths = [len(each) if self._fits(each) else 0 for each in tokens]
        by_engine: dict[str, list[int]] = {}
        for position, prompt in enumerate(prompts):
            if lengths[position]:
                by_engine.setdefault(serving.engine(prompt), []).append(position)
        for positions in by_engine.values():
            result = replay(
                (
                    ReplayRequest(request_id=str(p), tokens=tokens[p].tolist(), salt=serving.salt(prompts[p]))
                    for p in positions
                ),
                block_size=self._block_size,
                num_blocks=serving.num_blocks,
            )
            for position, replayed in zip(positions, result.per_request, strict=True):
                hits[position] = replayed.hit_tokens
        return Outcome(prompt_tokens=tuple(lengths), hit_tokens=tuple(hits))

    def _fits(self, tokens: Tokens) -> bool:
        """Whether the engine could have served the prompt: its cache holds it, one block being vLLM's own."""
        return self._num_blocks is None or len(tokens) <= (self._num_blocks - 1) * self._block_size


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
