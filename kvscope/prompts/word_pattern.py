"""A tokenizer's regular expression for words, written anew for Python's ``re``: the same words, or none.

Unicode classes are written out as characters. A text may hold only such of which all versions of Unicode
think the same (``certain``); an expression with anything in it that the two engines might read differently is
not taken.
"""

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Any

_BMP = 1 << 16
_ASCII = 1 << 7
_OLD: Any = unicodedata.ucd_3_2_0  # of the year 2002; categories that have not changed since will not
_SINCE_2004 = "\u200b"  # a space until Unicode 4.0.1
# of no class that is asked for, nor were they when they were not yet assigned
_APART = frozenset({"Cf", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So"})
_CATEGORIES = frozenset({"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N"})
_SPACES = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_NO_CHARACTER = "\ud800"  # half of a pair, which no text that is tokenised holds
_NAMED = re.compile(r"\\p\{(\w+)\}")
_GROUPS = ("(?:", "(?i:", "(?=", "(?!", "(?>")
_REPEAT = re.compile(r"\{\d+(,\d*)?\}(?![+?])")
_RANGE = re.compile(r"[0-9A-Za-z]-[0-9A-Za-z]")

_Piece = tuple[str, str]  # what is written in the expression, and what is written for it


def word_pattern(expression: str, *, ascii_only: bool) -> "re.Pattern[str] | None":
    """Return what finds the words that ``expression`` finds; None where that is not sure.

    It holds for texts of ``certain`` characters, or of ASCII ones only.
    """
    written: list[str] = []
    at, inside = 0, False
    while at < len(expression):
        piece = (_in_class if inside else _outside)(expression, at, _ASCII if ascii_only else _BMP)
        if piece is None:
            return None
        source, text = piece
        inside = (inside or source == "[") and source != "]"
        written.append(text)
        at += len(source)
    try:
        pattern = re.compile("".join(written))
    except re.error:
        return None
    return None if pattern.match("") else pattern  # words are never empty


@functools.cache
def certain(char: str) -> bool:
    """Whether every version of Unicode puts the character into the same of the classes that are asked for."""
    now, old = unicodedata.category(char), _OLD.category(char)
    if ord(char) >= _ASCII and any(each.isascii() for each in char.casefold() + char.lower() + char.upper()):
        return False  # the same as an ASCII letter, where case does not count
    apart = now in _APART and (old in _APART or old == "Cn" or char in _SINCE_2004)
    return apart or (now == old and now not in {"Cn", "Cs"} and ord(char) < _BMP)


def _in_class(expression: str, at: int, alphabet: int) -> _Piece | None:
    """Return the piece of a character class that begins at ``at``, and what stands for it."""
    char = expression[at]
    if char == "\\":
        return _escape(expression, at, "{}".format, alphabet)
    if char == "[" or expression.startswith(("&&", "--", "||", "~~"), at):
        return None  # classes in classes
    span = _RANGE.match(expression, at)
    if span is not None:
        return span[0], span[0]
    if char == "-":
        bare = expression[at - 1] == "[" or expression[at + 1 : at + 2] == "]"
        return (char, "\\-") if bare else None
    return char, char


def _outside(expression: str, at: int, alphabet: int) -> _Piece | None:
    """Return the piece of an expression that begins at ``at``, and what stands for it."""
    char = expression[at]
    if char == "\\":
        if expression.startswith(r"\S", at):
            return r"\S", f"[^{_SPACES}]"
        return _escape(expression, at, "[{}]".format, alphabet)
    if char == "(":
        group = next((each for each in _GROUPS if expression.startswith(each, at)), "(")
        if group == "(":
            return None if expression.startswith("(?", at) else ("(", "(?:")
        return group, group
    if char == "{":
        repeat = _REPEAT.match(expression, at)
        return None if repeat is None else (repeat[0], repeat[0])
    unsure = char in ".^$" or expression.startswith(("[]", "[^]"), at)
    return None if unsure else (char, char)


def _escape(expression: str, at: int, form: Callable[[str], str], alphabet: int) -> _Piece | None:
    """Return an escape and what stands for it; ``form`` makes a class of characters of it where need be."""
    named = _NAMED.match(expression, at)
    if named is not None:
        return (named[0], form(_members(named[1], alphabet))) if named[1] in _CATEGORIES else None
    escape = expression[at : at + 2]
    if escape == r"\s":
        return escape, form(_SPACES)
    plain = len(escape) > 1 and escape[1].isascii() and not escape[1].isalnum()
    return (escape, escape) if plain or escape in {r"\r", r"\n", r"\t"} else None


@functools.cache
def _members(category: str, alphabet: int) -> str:
    """Return the characters of a category, as they are written in a class."""
    spans: list[list[int]] = []
    for code in range(alphabet):
        if not unicodedata.category(chr(code)).startswith(category):
            continue
        if spans and spans[-1][1] == code - 1:
            spans[-1][1] = code
        else:
            spans.append([code, code])
    return "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in spans) or _NO_CHARACTER
