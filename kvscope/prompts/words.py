"""Tokenises text word by word, so that each different word is tokenised once; the same tokens, faster.

A byte-level tokenizer cuts a text into words by one regular expression and then each word into tokens,
whatever stands around it. Where Python's ``re`` finds the same words for certain, a word's tokens are looked
up.
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.prompts.word_pattern import certain, word_pattern

# what ByteLevel cuts by (Radford et al., "Language models are unsupervised multitask learners", 2019)
_BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# the characters that stand for bytes in its vocabulary: themselves, or from 256 on those that cannot be seen
_UNSEEN = [*range(33), *range(127, 161), 173]
_SEEN_AS = {byte: 256 + number for number, byte in enumerate(_UNSEEN)}
_MOST_WORDS = 1_000_000
_KEPT_LENGTH = 64  # longer words hardly come again


class Words(dict[str, bytes]):
    """The tokens of words, four bytes each."""

    def __init__(self, model: Any, expression: str, plain: "re.Pattern[str]") -> None:
        super().__init__()
        self._model = model
        self._expression = expression
        self._plain = plain
        self._wide: re.Pattern[str] | None = None
        self._certain: set[str] = set()

    def __missing__(self, word: str) -> bytes:
        seen = word.encode().decode("latin-1").translate(_SEEN_AS)
        tokens = array("I", [token.id for token in self._model.tokenize(seen)]).tobytes()
        if len(word) <= _KEPT_LENGTH:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = tokens
        return tokens

    def split(self, text: str) -> list[str] | None:
        """Return the words of a text without added tokens in it; None where they cannot be told."""
        pattern = self._plain if text.isascii() else self._pattern_for(text)
        if pattern is None:
            return None
        words: list[str] = pattern.findall(text)
        return words if sum(map(len, words)) == len(text) else None

    def tokens(self, words: Sequence[str]) -> bytes:
        """Return the tokens of words that stand one after the other."""
        return b"".join(map(self.__getitem__, words))

    def _pattern_for(self, text: str) -> "re.Pattern[str] | None":
        unknown = set(text) - self._certain
        if not all(map(certain, unknown)):
            return None
        self._certain |= unknown
        if self._wide is None:
            self._wide = word_pattern(self._expression, ascii_only=False)
        return self._wide


def words_of(model: Any, steps: Sequence[Mapping[str, Any]]) -> Words | None:
    """Return what tokenises as the BPE ``model`` behind a pre-tokenizer of ``steps``, without normaliser.

    None where that is not sure: it must be a byte-level one with one expression.
    """
    expression = _expression(steps)
    plain = None if expression is None else word_pattern(expression, ascii_only=True)
    return None if expression is None or plain is None else Words(model, expression, plain)


def _expression(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the expression that cuts a text into words; None for pre-tokenizers that do more than that."""
    *splits, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if not splits:
        return _BYTE_LEVEL if last.get("use_regex", True) else None
    split = splits[0]
    whole = split.get("behavior") == "Isolated" and not split.get("invert")
    if len(splits) > 1 or split.get("type") != "Split" or not whole or last.get("use_regex", True):
        return None
    expression = (split.get("pattern") or {}).get("Regex")
    return expression if isinstance(expression, str) else None
