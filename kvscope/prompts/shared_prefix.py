"""Tokenises many prompts that begin alike, and what they share only once; the tokens are the same.

Tokenizers cut a text into words first and then each word into tokens, from left to right. Where a known
text had a word's start, and the new text is the same up to some way beyond, its words start there too: the
tokens before can be taken over, and only the rest is tokenised. This holds where the words do not depend on
what stands before them; ``SharedPrefixTokenizer`` looks at the tokenizer and else shares nothing. The rest is
tokenised word by word where that can be (``prompts.words``), else by the tokenizer itself.
"""

import bisect
import dataclasses
import json
import re
import string
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvscope.prompts.tokenizing import LocalTokenizer
from kvscope.prompts.words import words_of

_CHUNK_CHARS = 1024
_FIRST_CHUNKS = (128, 256, 512)  # short prompts share beginnings, too
_CUT_CHARS = 256  # at least so far apart are two places at which tokenising may begin again
_CUT_WORDS = 64
_MARGIN_CHARS = 64  # so far beyond such a place the texts must be the same, more for long special tokens
_KEPT_CHARS = 64_000_000
_LETTERS = frozenset(string.ascii_letters)
_WORD_START = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])", re.ASCII)
_SAFE_STEPS = ("Split", "Digits", "ByteLevel")
_TOKEN_BYTES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """A text, its tokens, and where words start in it, in characters and in tokens."""

    text: str
    tokens: "array[int]"
    chars: list[int]
    places: list[int]


_NOTHING = _Known("", array("I"), [], [])


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
        added = self._backend.get_added_tokens_decoder()
        self._added = _AddedTokens(added)
        self._margin = max(_MARGIN_CHARS, self._added.longest)
        plain = not any(each.lstrip or each.rstrip or each.single_word for each in added.values())
        steps = _steps(self._backend)
        self.shares = self._special is not None and plain and _restartable(self._backend, steps)
        self._words = words_of(self._backend.model, steps) if self.shares else None

    def encode(self, api: str, body: Mapping[str, Any]) -> Sequence[int]:
        """Return the prompt tokens, equal to those of the tokenizer alone; raises ``UsageError``."""
        prompt = self._tokenizer.prompt(api, body)
        if isinstance(prompt, list):
            return prompt
        text, special = prompt
        if not self.shares or not _is_text(text):
            return self._tokenizer.encode_text(text, add_special_tokens=special)
        tokens = self._encode(text)
        return array("I", self._special or ()) + tokens if special else tokens

    def _encode(self, text: str) -> "array[int]":
        keys = _chunk_keys(text)
        base, shared = self._base(text, keys)
        cut = bisect.bisect_right(base.chars, shared - self._margin)
        if cut:
            start, place = base.chars[cut - 1], base.places[cut - 1]
            rest = self._tokenised(text[start:])
            known = _Known(
                text=text,
                tokens=base.tokens[:place] + rest.tokens,
                chars=base.chars[:cut] + [start + each for each in rest.chars],
                places=base.places[:cut] + [place + each for each in rest.places],
            )
        else:
            known = self._tokenised(text)
        self._remember(known, keys)
        return known.tokens

    def _base(self, text: str, keys: Sequence[tuple[int, int]]) -> tuple[_Known, int]:
        """Return a known text that begins like this one for long, and for how many characters."""
        found = None
        for _, key in keys:
            at = self._by_chunks.get(key)
            if at is None:
                break
            found = at
        known = _NOTHING if found is None else self._known[found]
        return known, shared_chars(known.text, text)

    def _tokenised(self, text: str) -> _Known:
        """Tokenise a text from its start."""
        tokens = array("I")
        chars: list[int] = []
        places: list[int] = []
        at = 0
        for part, added in self._added.split(text):
            if added is not None:
                tokens.append(added)
            elif not self._by_words(part, at, tokens, chars, places):
                self._by_tokenizer(part, at, tokens, chars, places)
            at += len(part)
        return _Known(text=text, tokens=tokens, chars=chars, places=places)

    def _by_words(
        self, part: str, at: int, tokens: "array[int]", chars: list[int], places: list[int]
    ) -> bool:
        """Append what a part is, which begins at ``at``, word by word; whether that could be."""
        words = None if self._words is None else self._words.split(part)
        if words is None or self._words is None:
            return False
        begin, end = 0, _CUT_WORDS
        while end < len(words):
            word = words[end]
            if word[0] != " " or word[1:2] not in _LETTERS or words[end - 1][-1] not in _LETTERS:
                end += 1
                continue
            tokens.frombytes(self._words.tokens(words[begin:end]))
            at += sum(map(len, words[begin:end]))
            chars.append(at)
            places.append(len(tokens))
            begin, end = end, end + _CUT_WORDS
        tokens.frombytes(self._words.tokens(words[begin:]))
        return True

    def _by_tokenizer(
        self, part: str, at: int, tokens: "array[int]", chars: list[int], places: list[int]
    ) -> None:
        """Append what a part is, which begins at ``at``, as the tokenizer says."""
        encoding = self._backend.encode(part, add_special_tokens=False)
        here = _CUT_CHARS
        while (match := _WORD_START.search(part, here)) is not None:
            place = _first_token(encoding, match.start())
            if place is not None:
                chars.append(at + match.start())
                places.append(len(tokens) + place)
            here = match.start() + _CUT_CHARS
        tokens.extend(encoding.ids)

    def _remember(self, known: _Known, keys: Sequence[tuple[int, int]]) -> None:
        if not keys or keys[-1][1] in self._by_chunks:
            return  # nothing new to begin with
        self._chars += len(known.text)
        if self._chars > self._kept_chars:
            self._known.clear()
            self._by_chunks.clear()
            self._chars = len(known.text)
        self._known.append(known)
        for _, key in keys:
            self._by_chunks.setdefault(key, len(self._known) - 1)

    def _prefix_of_special(self) -> list[int] | None:
        """Return the special tokens that are put before a text, None where any are put elsewhere."""
        plain: list[int] = self._backend.encode("a b", add_special_tokens=False).ids
        full: list[int] = self._backend.encode("a b", add_special_tokens=True).ids
        prefix = full[: len(full) - len(plain)]
        return prefix if prefix + plain == full else None


class _AddedTokens:
    """Texts that are a token of their own wherever they stand, the longest first.

    Those that a normaliser would not touch are found first, the others in what is left.
    """

    def __init__(self, added: Mapping[int, Any]) -> None:
        self._ids: dict[str, int] = {each.content: number for number, each in added.items() if each.content}
        self.longest = max(map(len, self._ids), default=0)
        kinds: tuple[list[str], list[str]] = ([], [])
        for each in added.values():
            if each.content:
                kinds[each.normalized].append(each.content)
        self._patterns = [
            re.compile("(" + "|".join(map(re.escape, sorted(kind, key=len, reverse=True))) + ")")
            for kind in kinds
            if kind
        ]

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield the parts of a text, each an added token with its id or what stands between them."""
        parts = [text]
        for pattern in self._patterns:
            parts = [
                piece
                for part in parts
                for piece in ([part] if part in self._ids else pattern.split(part))
                if piece
            ]
        for part in parts:
            yield part, self._ids.get(part)


def _is_text(text: str) -> bool:
    """Whether it can be written as UTF-8: JSON may hold halves of surrogate pairs."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _chunk_keys(text: str) -> list[tuple[int, int]]:
    """Return where each whole chunk of the text ends, and a key for it and all before it."""
    keys: list[tuple[int, int]] = []
    key = begin = 0
    for end in (*_FIRST_CHUNKS, *range(_CHUNK_CHARS, len(text) + 1, _CHUNK_CHARS)):
        if end > len(text):
            break
        key = hash((key, text[begin:end]))
        keys.append((end, key))
        begin = end
    return keys


def shared_chars(one: str, other: str) -> int:
    """Return how many characters two texts share from their start on, by halving what is left."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


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


def _steps(backend: Any) -> list[Mapping[str, Any]]:
    """Return the settings of the pre-tokenizer's steps."""
    if backend.pre_tokenizer is None:
        return []
    given = json.loads(backend.pre_tokenizer.__getstate__())
    return list(given["pretokenizers"]) if given["type"] == "Sequence" else [given]


def _restartable(backend: Any, steps: Sequence[Mapping[str, Any]]) -> bool:
    """Whether tokenising from a word's start gives the words that the whole text gives there."""
    model = backend.model
    if type(model).__name__ != "BPE" or model.dropout or backend.normalizer is not None:
        return False
    return bool(steps) and all(map(_step_restartable, steps))


def _step_restartable(step: Mapping[str, Any]) -> bool:
    if step.get("type") not in _SAFE_STEPS or step.get("add_prefix_space"):
        return False
    pattern = str((step.get("pattern") or {}).get("Regex", ""))
    # what looks back, or is bound to the text's start or end, is not the same in the middle
    return not re.search(r"\(\?<[=!]|\\[AGbBzZ]|[\^$](?![^\[]*\])", pattern)
