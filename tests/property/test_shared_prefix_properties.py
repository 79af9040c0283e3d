"""Tokens of texts that share prefixes are those of the tokenizer alone, whatever stands where they part."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from kvscope.prompts.shared_prefix import SharedPrefixTokenizer
from kvscope.prompts.tokenizing import LocalTokenizer

FILE = Path(__file__).parents[1] / "data" / "tokenizer" / "tokenizer.json"
# the splits of cl100k (GPT-4) and Llama 3, and of o200k (GPT-4o), as their publishers wrote them
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def with_split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, bytes_only]}


@functools.cache
def tokenizer(name: str) -> LocalTokenizer:
    value = json.loads(FILE.read_text())
    if name != "gpt2":
        value["pre_tokenizer"] = with_split(CL100K if name == "cl100k" else O200K)
    if name == "cl100k":  # and a token at the beginning, as Llama 3 has it
        value["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        }
    return LocalTokenizer(Tokenizer.from_str(json.dumps(value)), None, None)


PIECES = st.sampled_from(
    [
        "the quick brown fox jumps over the lazy dog and goes on to the next hill where it rests. ",
        "a b",
        " word",
        "word",
        "   ",
        "\n",
        " \n\n  \t",
        "12345",
        "don't we'll I'M",
        "<|im_start|>",
        "<|im_",
        "end|>",
        "naïve café ́",
        "你好。世界",
        "{'key': [1, 2.5, null]}\r\n",
        "camelCaseHTTPServer",
        "🙂👩‍👩‍👧",
        " ",
    ]
)
TEXTS = st.lists(PIECES, min_size=20, max_size=60).map("".join)


@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k"])
@settings(max_examples=40, deadline=None)
@given(
    first=TEXTS, cuts=st.lists(st.tuples(st.integers(0, 4000), TEXTS, st.booleans()), min_size=1, max_size=5)
)
def test_the_tokens_are_the_tokenizers(name: str, first: str, cuts: list[tuple[int, str, bool]]) -> None:
    plain = tokenizer(name)
    shared = SharedPrefixTokenizer(plain)
    assert shared.shares
    texts = [(first, False)]
    for cut, rest, special in cuts:
        texts.append((texts[-1][0][:cut] + rest, special))
    for text, special in texts:
        body = {"prompt": text, "add_special_tokens": special}
        assert list(shared.encode("completion", body)) == plain.encode("completion", body)
