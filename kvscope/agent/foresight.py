"""What the gateway can ask about a prompt before it is sent: how much of it is cached, how long it will take.

Nothing is tokenised on the way of traffic. The analyser tokenises each prompt after it was sent; here the ids
of its blocks are kept under digests of the text before them, so that a later prompt with the same beginning
finds them by its text alone, and the engines' cache events tell whether they are cached now.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kvscope.analysis.features import GROUPS, IN_FLIGHT, text_features, work_features
from kvscope.analysis.predicting import predict_from
from kvscope.cache.hashing import block_chain, root_of
from kvscope.cache.index import BlockIndex, Presence
from kvscope.clock import Clock
from kvscope.model.advice import FittedModel
from kvscope.prompts.segments import prompt_text, segments
from kvscope.prompts.tokenizing import PromptTokenizer

_PIECE_CHARS = 512
_MOST_MARKS = 200_000
_MOST_PIECES = 4_096  # of one prompt: two million characters
_SMOOTHING = 0.05
_MODEL = "ttft_linear"

_Mark = tuple[int, int]
"""A block's chain id, and the number of tokens up to its end."""


class Foresight:
    """Answers from memory; written by the analyser's thread, read by the event loop.

    Token counts of texts that were not tokenised are estimates: characters by the latest prompts' tokens a
    character. Nothing is kept before somebody has asked for the first time.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        *,
        engines: Sequence[str],
        clock: Clock,
    ) -> None:
        self._tokenizer = tokenizer
        self._engines = tuple(engines)
        self._index: Callable[[str], BlockIndex | None] = lambda _: None
        self._asked = False
        self._clock = clock
        self._marks: OrderedDict[bytes, _Mark] = OrderedDict()
        self._lock = threading.Lock()
        self._tokens_a_char = 0.25  # until a prompt was tokenised
        self._model: FittedModel | None = None

    def encode(self, api: str, body: Mapping[str, Any]) -> list[int]:
        """Return the prompt's tokens, as the tokenizer inside does, and remember where its blocks lie."""
        tokens = self._tokenizer.encode(api, body)
        text = prompt_text(segments(api, body)) if self._asked else ""
        if tokens and text:
            self._note(body, text, tokens)
        return tokens

    def follow(self, index: Callable[[str], BlockIndex | None]) -> None:
        """Take what an engine has cached from ``index``, which returns None while no event has told."""
        self._index = index

    def foretell_with(self, models: Sequence[FittedModel]) -> None:
        """Take over the newest latency models."""
        self._model = next((model for model in models if model.name == _MODEL), None)

    def cached_tokens(self, api: str, body: Mapping[str, Any]) -> Mapping[str, int]:
        """Return how many of the prompt's first tokens each engine has cached, about; unknown ones lack."""
        self._asked = True
        found: dict[str, int] = {}
        now = self._clock()
        for digest in reversed(list(_digests(body, prompt_text(segments(api, body))))):
            mark = self._marks.get(digest)
            if mark is None:
                continue
            for engine in self._engines:
                index = self._index(engine)
                cached = index is not None and index.presence(mark[0], now) is Presence.CACHED
                if cached and engine not in found:
                    found[engine] = mark[1]
            if len(found) == len(self._engines):
                break
        return found

    def ttft_seconds(self, api: str, body: Mapping[str, Any], *, engine: str, in_flight: int) -> float | None:
        """Return the seconds to the first token at ``engine``, or None while no model was fitted.

        What lies above all that the model has seen counts as the most that it has seen: the answer is then
        too small rather than too large, and a request is refused by it only where it would be by the truth.
        """
        model = self._model
        if model is None:
            return None
        chars = len(prompt_text(segments(api, body)))
        tokens = max(1, round(chars * self._tokens_a_char))
        cached = min(self.cached_tokens(api, body).get(engine, 0), tokens - 1)
        known = work_features(tokens, cached) | text_features(tokens, None)
        known |= {name: model.typical[name] for name in GROUPS["load"] if name in model.typical}
        known[IN_FLIGHT] = float(in_flight)
        within = {
            name: min(value, model.ranges[name][1]) if name in model.ranges else value
            for name, value in known.items()
        }
        prediction = predict_from(model, within)
        return None if isinstance(prediction, str) else prediction.seconds

    def _note(self, body: Mapping[str, Any], text: str, tokens: Sequence[int]) -> None:
        ratio = len(tokens) / len(text)
        self._tokens_a_char += _SMOOTHING * (ratio - self._tokens_a_char)
        size = self._block_size()
        if size is None:
            return
        salt = body.get("cache_salt")
        chain = block_chain(tokens, size, root_of(salt=salt if isinstance(salt, str) else None))
        with self._lock:
            for number, digest in enumerate(_digests(body, text), start=1):
                # the template's own tokens stand between the texts: the share of the text is the best guess
                blocks = int(min(number * _PIECE_CHARS / len(text), 1.0) * len(tokens)) // size
                if blocks:
                    self._marks[digest] = chain[blocks - 1], blocks * size
                    self._marks.move_to_end(digest)
            while len(self._marks) > _MOST_MARKS:
                self._marks.popitem(last=False)

    def _block_size(self) -> int | None:
        for engine in self._engines:
            index = self._index(engine)
            if index is not None and index.block_size:
                return index.block_size
        return None


def _digests(body: Mapping[str, Any], text: str) -> Iterator[bytes]:
    """Yield a digest of each beginning of ``text``, for the body's model and cache salt."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{body.get('model')}\0{body.get('cache_salt')}\0".encode("utf-8", "surrogatepass"))
    for start in range(0, min(len(text), _MOST_PIECES * _PIECE_CHARS), _PIECE_CHARS):
        piece = text[start : start + _PIECE_CHARS]
        if len(piece) < _PIECE_CHARS:
            return
        digest.update(piece.encode("utf-8", "surrogatepass"))
        yield digest.copy().digest()
