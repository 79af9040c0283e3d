"""What is shared is tokenised once; where that could change a token nothing is shared."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from kvscope.errors import UsageError
from kvscope.prompts.shared_prefix import SharedPrefixTokenizer
from kvscope.prompts.tokenizing import LocalTokenizer, load_tokenizer

DATA = Path(__file__).parents[2] / "data"
TOKENIZER = DATA / "tokenizer"


class Counting:
    """The backend with a count of the characters that it is given."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.chars = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        self.chars += len(text)
        return self._backend.encode(text, add_special_tokens=add_special_tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# digits one by one, then words: more than one step, so that the tokenizer itself must tell what is new
TWO_STEPS = {
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES],
    }
}


def changed(**parts: Any) -> LocalTokenizer:
    value = json.loads((TOKENIZER / "tokenizer.json").read_text()) | parts
    return LocalTokenizer(Tokenizer.from_str(json.dumps(value)), None, None)


def test_real_prompts_have_the_engines_counts_and_are_tokenised_in_part() -> None:
    local = load_tokenizer(TOKENIZER)
    counting = Counting(local.backend)
    local._tokenizer = counting
    shared = SharedPrefixTokenizer(local)
    given = 0
    with gzip.open(DATA / "cache" / "vllm-0.32.0-real-prompts.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            tokens = shared.encode("chat", row["body"])
            assert len(tokens) == row["prompt_tokens"]
            given += len(local.render(row["body"]))
    assert counting.chars < given / 3


def test_a_text_that_goes_on_costs_what_is_new() -> None:
    local = changed(**TWO_STEPS)
    counting = Counting(local.backend)
    local._tokenizer = counting
    shared = SharedPrefixTokenizer(local)
    text = "we walk along the river to the old mill " * 100
    shared.encode("completion", {"prompt": text})
    before = counting.chars
    shared.encode("completion", {"prompt": text + "and back"})
    assert counting.chars - before < 1000


@pytest.mark.parametrize("parts", [{}, TWO_STEPS])
def test_texts_of_all_kinds_word_by_word_or_not(parts: dict[str, Any]) -> None:
    local = changed(**parts)
    shared = SharedPrefixTokenizer(local)
    assert shared.shares
    english = "It's 1,234 o'clock <|im_end|>\n<|im_start|>user  and so on \t\n\n we go home  \r\n"
    for text in (
        "",
        "a",
        english * 20,
        english * 21,
        "“Où?” — 你好 " * 90,
        "🫠 new in 2021 " * 50,
        "x" * 5_000,
    ):
        body = {"prompt": text}
        assert list(shared.encode("completion", body)) == local.encode("completion", body)


def test_added_tokens_of_both_kinds_are_found_as_the_tokenizer_finds_them() -> None:
    value = json.loads((TOKENIZER / "tokenizer.json").read_text())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    own = [("<|im_", False), ("<<|im_end|>", True), ("im_end|>>", True), ("ab", True), ("abc", True)]
    added = [
        {"id": 8_000 + number, "content": content, "normalized": normalized, **plain}
        for number, (content, normalized) in enumerate(own)
    ]
    local = changed(added_tokens=value["added_tokens"] + added)
    shared = SharedPrefixTokenizer(local)
    for text in ("<<|im_end|>>abcd ab<|im_<|im_start|>", "xabc<|im_end|>>", "<|im_end|"):
        body = {"prompt": text}
        assert list(shared.encode("completion", body)) == local.encode("completion", body)


def test_a_half_of_a_pair_is_no_text() -> None:
    shared = SharedPrefixTokenizer(load_tokenizer(TOKENIZER))
    with pytest.raises(UsageError, match="lone surrogate"):
        shared.encode("completion", {"prompt": "a \ud800 b"})


def test_token_ids_are_what_they_are() -> None:
    shared = SharedPrefixTokenizer(load_tokenizer(TOKENIZER))
    assert shared.encode("completion", {"prompt": [3, 1, 2]}) == [3, 1, 2]


def test_memory_is_bounded() -> None:
    local = load_tokenizer(TOKENIZER)
    shared = SharedPrefixTokenizer(local, kept_chars=5_000)
    for number in range(20):
        body = {"prompt": f"{number} begins another text that is long enough " * 30}
        assert list(shared.encode("completion", body)) == local.encode("completion", body)
    assert sum(len(known.text) for known in shared._known) <= 5_000
    assert len(shared._by_chunks) < 20


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": None},
        {
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            }
        },
        {
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": "first",
                "split": True,
            }
        },
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": r"(?<=x)\w+|\s+"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "</s>", "type_id": 0}},
                ],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
            }
        },
    ],
)
def test_tokenizers_that_look_back_share_nothing(parts: dict[str, Any]) -> None:
    local = changed(**parts)
    shared = SharedPrefixTokenizer(local)
    assert not shared.shares
    for end in ("x", "yes"):
        body = {"prompt": "one text and another one " * 40 + end}
        assert shared.encode("completion", body) == local.encode("completion", body)
