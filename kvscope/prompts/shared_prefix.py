"""Tokenises many prompts that begin alike, and what they share only once; the tokens are the same.

Tokenizers cut a text into words first and then each word into tokens, from left to right. Where a known
text had a word's start, and the new text is the same up to some way beyond, its words start there too: the
tokens before can be taken over, and only the rest is tokenised. This holds where the words do not depend on
what stands before them; ``SharedPrefixTokenizer`` looks at the tokenizer and else shares nothing.
"""

import bisect
import dataclasses
import json
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.prompts.tokenizing import LocalTokenizer

_CHUNK_CHARS = 256
_CUT_CHARS = 256  # at least so far apart are two places at which tokenising may begin again
_MARGIN_CHARS = 64  # so far beyond such a place the texts must be the same, more for long special tokens
_KEPT_CHARS = 64_000_000
_WORD_START = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])", re.ASCII)
_SAFE_STEPS = ("Split", "Digits", "ByteLevel")


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """A text, its tokens, and where words start in it, in characters and in tokens."""

    text: str
    tokens: "array[int]"
    chars: list[int]
    places: list[int]


class SharedPrefixTokenizer:
    """A ``LocalTokenizer`` that remembers texts; for one thread.

    Holds about ``kept_chars`` characters of text and their tokens, then begins anew.
    """

    def __init__(self, tokenizer: LocalTokenizer, *, kept_chars: int = _KEPT_CHARS) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend
        self._kept_chars = kept_chars
        self._chars = 0
        self._known: list[_Known] = []
        self._by_chunks: dict[int, int] = {}
        self._special = self._prefix_of_special()
        settings = json.loads(self._backend.to_str())
        added = (len(each["content"]) for each in settings.get("added_tokens") or ())
        self._margin = max(_MARGIN_CHARS, *added, 0)
        self.shares = self._special is not None and _restartable(settings)

    def encode(self, api: str, body: Mapping[str, Any]) -> Sequence[int]:
        """Return the prompt tokens, equal to those of the tokenizer alone; raises ``UsageError``."""
        prompt = self._tokenizer.prompt(api, body)
        if isinstance(prompt, list):
            return prompt
        text, special = prompt
        if not self.shares:
            return self._tokenizer.encode_text(text, add_special_tokens=special)
        tokens = self._encode(text)
        return array("I", self._special or ()) + tokens if special else tokens

    def _encode(self, text: str) -> "array[int]":
        keys = _chunk_keys(text)
        base = self._base(text, keys)
        if base is None:
            known = self._tokenised(text, 0)
        else:
            shared, known = base
            cut = bisect.bisect_right(known.chars, shared - self._margin) - 1
            if cut < 0:
                known = self._tokenised(text, 0)
            else:
                start, place = known.chars[cut], known.places[cut]
                rest = self._tokenised(text[start:], place)
                known = _Known(
                    text=text,
                    tokens=known.tokens[:place] + rest.tokens,
                    chars=known.chars[: cut + 1] + [start + each for each in rest.chars],
                    places=known.places[: cut + 1] + rest.places,
                )
        self._remember(known, keys)
        return known.tokens

    def _base(self, text: str, keys: Sequence[int]) -> tuple[int, _Known] | None:
        """Return the known text that begins like this one for longest, and for how many characters."""
        found = None
        shared = 0
        for number, key in enumerate(keys, start=1):
            at = self._by_chunks.get(key)
            if at is None:
                break
            found, shared = at, number * _CHUNK_CHARS
        if found is None:
            return None
        known = self._known[found]
        if known.text[:shared] != text[:shared]:
            return None
        return shared, known

    def _tokenised(self, text: str, offset: int) -> _Known:
        """Tokenise a text from its start; places count from ``offset`` on."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        chars, places = [], []
        at = _CUT_CHARS
        while (match := _WORD_START.search(text, at)) is not None:
            place = _first_token(encoding, match.start())
            if place is not None:
                chars.append(match.start())
                places.append(offset + place)
            at = match.start() + _CUT_CHARS
        return _Known(text=text, tokens=array("I", encoding.ids), chars=chars, places=places)

    def _remember(self, known: _Known, keys: Sequence[int]) -> None:
        if not keys or keys[-1] in self._by_chunks:
            return  # nothing new to begin with
        self._chars += len(known.text)
        if self._chars > self._kept_chars:
            self._known.clear()
            self._by_chunks.clear()
            self._chars = len(known.text)
        self._known.append(known)
        for key in keys:
            self._by_chunks.setdefault(key, len(self._known) - 1)

    def _prefix_of_special(self) -> list[int] | None:
        """Return the special tokens that are put before a text, None where any are put elsewhere."""
        plain: list[int] = self._backend.encode("a b", add_special_tokens=False).ids
        full: list[int] = self._backend.encode("a b", add_special_tokens=True).ids
        prefix = full[: len(full) - len(plain)]
        return prefix if prefix + plain == full else None


def _chunk_keys(text: str) -> list[int]:
    """Return a key for each whole chunk of the text, which depends on all before it."""
    keys: list[int] = []
    key = 0
    for end in range(_CHUNK_CHARS, len(text) + 1, _CHUNK_CHARS):
        key = hash((key, text[end - _CHUNK_CHARS : end]))
        keys.append(key)
    return keys


def _first_token(encoding: Any, space: int) -> int | None:
    """Return the first token of the word that begins with the space at ``space``, None where none does."""
    token = encoding.char_to_token(space + 1)
    word = None if token is None else encoding.token_to_word(token)
    tokens = None if word is None else encoding.word_to_tokens(word)
    if not tokens or tokens[0] == 0:
        return None
    first: int = tokens[0]
    before, own = encoding.token_to_chars(first - 1), encoding.token_to_chars(first)
    # offsets may leave out the space
    return first if before and own and before[1] <= space <= own[0] <= space + 1 else None


def _restartable(settings: Mapping[str, Any]) -> bool:
    """Whether tokenising from a word's start gives the words that the whole text gives there."""
    model = settings.get("model") or {}
    if model.get("type") != "BPE" or model.get("dropout") or settings.get("normalizer") is not None:
        return False
    if any(each.get("lstrip") or each.get("rstrip") or each.get("single_word") for each in _added(settings)):
        return False
    given = settings.get("pre_tokenizer") or {}
    steps = given.get("pretokenizers", []) if given.get("type") == "Sequence" else [given]
    return bool(steps) and all(map(_step_restartable, steps))


def _added(settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return settings.get("added_tokens") or ()


def _step_restartable(step: Mapping[str, Any]) -> bool:
    if step.get("type") not in _SAFE_STEPS or step.get("add_prefix_space"):
        return False
    pattern = str((step.get("pattern") or {}).get("Regex", ""))
    # what looks back, or is bound to the text's start or end, is not the same in the middle
    return not re.search(r"\(\?<[=!]|\\[AGbBzZ]|[\^$](?![^\[]*\])", pattern)
