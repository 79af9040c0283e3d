"""Words are those of the tokenizer's own expression, or none are told."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from kvscope.prompts.word_pattern import certain, word_pattern
from kvscope.prompts.words import Words, words_of

FILE = Path(__file__).parents[2] / "data" / "tokenizer" / "tokenizer.json"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_by(expression: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, bytes_only]}


def made(pre_tokenizer: dict[str, Any] | None) -> tuple[Tokenizer, Words | None]:
    value = json.loads(FILE.read_text())
    if pre_tokenizer is not None:
        value["pre_tokenizer"] = pre_tokenizer
    tokenizer = Tokenizer.from_str(json.dumps(value))
    given = value["pre_tokenizer"]
    steps = given["pretokenizers"] if given["type"] == "Sequence" else [given]
    return tokenizer, words_of(tokenizer.model, steps)


@pytest.mark.parametrize("pre_tokenizer", [None, split_by(O200K)])
def test_every_certain_character_is_where_the_tokenizer_puts_it(pre_tokenizer: dict[str, Any] | None) -> None:
    tokenizer, words = made(pre_tokenizer)
    assert words is not None
    pairs = range(0xD800, 0xE000)
    chars = [chr(code) for code in range(0x11000) if code not in pairs and certain(chr(code))]
    assert len(chars) > 50_000
    for start in range(0, len(chars), 1000):
        text = "".join(f"a{char}1 {char}B{char}'s " for char in chars[start : start + 1000])
        own = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert words.split(text) == [text[begin:end] for _, (begin, end) in own]


def test_words_have_the_models_tokens() -> None:
    tokenizer, words = made(None)
    assert words is not None
    text = "It's a naïve 你好 \x00\x7f\xa0 test, isn't it?\n\n  def f(x):\treturn x**2 " * 3
    split = words.split(text)
    assert split is not None
    tokens = memoryview(words.tokens(split)).cast("I").tolist()
    assert tokens == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("char", ["\u017f", "\u212a", "\u0131", "\U0001d400", "\u0378", "\U00020000"])
def test_characters_of_which_engines_might_think_differently(char: str) -> None:
    assert not certain(char)
    _, words = made(None)
    assert words is not None
    assert words.split(f"a {char}") is None


@pytest.mark.parametrize(
    "expression",
    [
        r"(?<=x)a",
        r"(?i)a",
        r"(?<name>a)",
        r"^a",
        r"a$",
        r".",
        r"[a-z&&[^x]]",
        r"[\p{N}-~]",
        r"\p{N}{1,3}+",
        r"\p{N}{,3}",
        r"\p{Script=Greek}",
        r"\p{P}",
        r"\P{L}",
        r"\w+",
        r"\bword",
        r"[]a]",
        r"a*",
        r"(",
        "\\",
    ],
)
def test_expressions_that_are_not_taken(expression: str) -> None:
    assert word_pattern(expression, ascii_only=True) is None


@pytest.mark.parametrize(
    ("expression", "text", "words"),
    [
        (r"'(?i:[sdmt]|ll)|(a|b)?+\p{L}+|[-_]|\s", "ABBA's bb-a_", ["ABBA", "'s", " ", "bb", "-", "_"]),
        (r"\p{Lo}+|[\p{Lt}]|[x\-]{1,2}|\p{Lu}", "x-xXx", ["x-", "x", "X", "x"]),
        (r"(?>a|ab)c|(?=a)ab|c\.|\(", "abcacc.(", ["ab", "ac", "c.", "("]),
    ],
)
def test_expressions_that_are_taken(expression: str, text: str, words: list[str]) -> None:
    pattern = word_pattern(expression, ascii_only=True)
    assert pattern is not None
    assert pattern.findall(text) == words


def test_words_are_told_only_where_they_are_all_of_the_text() -> None:
    _, words = made(split_by(r"\p{L}+"))
    assert words is not None
    assert words.split("ab") == ["ab"]
    assert words.split("a b") is None


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        {"type": "Whitespace"},
        {"type": "Sequence", "pretokenizers": []},
    ],
)
def test_other_pre_tokenizers(pre_tokenizer: dict[str, Any]) -> None:
    assert made(pre_tokenizer)[1] is None
