"""Counts equal the engine's recorded ones, and small tokenizers whose counts are plain arithmetic."""

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.prompts.counters import TokenCounter, load_counter
from kvscope.prompts.counting import TokenRow, count, read_subject

DATA = Path(__file__).parents[2] / "data"
ENGLISH = "The quick brown fox jumps over the lazy dog."
CHINESE = "你好，世界"  # noqa: RUF001 - a comma of Chinese text


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    return load_counter(str(DATA / "tokenizer"))


@pytest.fixture
def bytewise(tmp_path: Path) -> Path:
    """A tiktoken file of the 256 bytes, and of two words that occur below."""
    tokens = [bytes([value]) for value in range(256)] + [b"th", b"the", "你".encode()[:2], "你".encode()]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_text("\n".join(lines) + "\n")
    return path


def recorded() -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / "cache" / "vllm-0.32.0-sequential.jsonl.gz", "rt") as lines:
        yield from map(json.loads, lines)


def one(text: str, counter: TokenCounter, context: int | None = None) -> TokenRow:
    (row,) = count(read_subject(text), [counter], context=context)
    return row


def test_bodies_count_as_the_engine_counted(counter: TokenCounter) -> None:
    for request, _ in zip(recorded(), range(40), strict=False):
        row = one(json.dumps(request["body"]), counter)
        assert row.tokens == len(request["prompt_token_ids"])
        assert sum(part.tokens for part in row.segments) + (row.template_tokens or 0) == row.tokens
        assert one(json.dumps(request), counter).tokens == row.tokens  # wrapped, as in a log


def test_every_byte_is_a_token(bytewise: Path) -> None:
    tiktoken = load_counter(str(bytewise))
    assert tiktoken.name == "cl100k_base"
    row = one("a b", tiktoken)
    assert (row.tokens, row.tokens_per_char, row.tokens_per_byte) == (3, 1.0, 1.0)
    # five characters of three bytes; the first is one token, the rest one token a byte
    chinese = one(CHINESE, tiktoken)
    assert (chinese.characters, chinese.utf8_bytes) == (5, 15)
    assert chinese.tokens == 1 + 4 * 3
    assert chinese.tokens_per_char == 13 / 5
    # "the" is one token, " quick" six bytes; a special token in a text is text
    assert one("the quick", tiktoken).tokens == 1 + 6
    assert one("<|endoftext|>", tiktoken).tokens == 13


def test_several_tokenizers_side_by_side(bytewise: Path, counter: TokenCounter) -> None:
    rows = count(read_subject(ENGLISH), [counter, load_counter(str(bytewise))])
    assert [row.tokenizer for row in rows] == ["tokenizer", "cl100k_base"]
    assert rows[1].tokens == len(ENGLISH) - 2  # one "the" of three letters
    assert rows[0].tokens < rows[1].tokens
    # a vocabulary made from English text alone takes Chinese byte for byte
    assert one(CHINESE, counter).tokens == 15


def test_what_costs_most(counter: TokenCounter) -> None:
    body = {
        "tools": [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": ENGLISH * 20},
            {"role": "user", "content": ""},
        ],
    }
    row = one(json.dumps(body), counter)
    parts = row.segments
    assert [(part.role, part.message_index) for part in parts[:2]] == [("user", 1), ("tools", None)]
    assert [part.tokens for part in parts] == sorted((part.tokens for part in parts), reverse=True)
    assert sum(part.share_rate or 0.0 for part in parts) == pytest.approx(1.0)
    assert parts[0].tokens == counter.count(ENGLISH * 20)
    assert "quick" not in repr(row)


def test_without_a_chat_template_the_segments_are_counted(tmp_path: Path, bytewise: Path) -> None:
    bare = tmp_path / "bare.json"
    bare.write_bytes((DATA / "tokenizer" / "tokenizer.json").read_bytes())
    body = json.dumps({"messages": [{"role": "user", "content": "ab"}, {"role": "user", "content": "cd"}]})
    for given in (str(bare), str(bytewise)):
        row = one(body, load_counter(given))
        assert row.template_tokens is None
        assert row.tokens == sum(part.tokens for part in row.segments)
    assert load_counter(str(bare)).name == "bare"


def test_completion_bodies(counter: TokenCounter, bytewise: Path) -> None:
    plain = one(ENGLISH, counter).tokens
    single = one(json.dumps({"prompt": ENGLISH}), counter)
    assert single.tokens == plain + (single.template_tokens or 0)
    several = one(json.dumps({"prompt": [ENGLISH, ENGLISH]}), counter)
    assert (several.tokens, several.template_tokens) == (2 * plain, None)
    assert one(json.dumps({"prompt": "abc"}), load_counter(str(bytewise))).tokens == 3


def test_copies_in_a_context(bytewise: Path) -> None:
    tiktoken = load_counter(str(bytewise))
    fit = one("abc", tiktoken, 10).context
    assert fit is not None
    assert (fit.fits, fit.left_tokens, fit.copies, fit.examples) == (True, 7, 3, None)
    tight = one("abc", tiktoken, 2).context
    assert tight is not None
    assert (tight.fits, tight.left_tokens, tight.copies) == (False, -1, 0)
    empty = one("", tiktoken, 2)
    assert (empty.tokens, empty.tokens_per_char) == (0, None)
    assert empty.context is not None
    assert empty.context.copies is None


def test_examples_in_a_context(bytewise: Path) -> None:
    tiktoken = load_counter(str(bytewise))
    lines = '"aaaa"\n\n"bbbb"\n"cccc"\n'
    row = one(lines, tiktoken, 9)
    assert row.example_tokens == (4, 4, 4)
    assert row.tokens == 14  # three of four, and a line break between each
    assert row.context is not None
    # 4 + 1 + 4 are nine, and a third needs five more
    assert (row.context.examples, row.context.copies, row.context.fits) == (2, None, False)
    for context, fitting in ((3, 0), (4, 1), (8, 1), (13, 2), (14, 3), (1000, 3)):
        fit = one(lines, tiktoken, context).context
        assert fit is not None
        assert fit.examples == fitting


@pytest.mark.parametrize(
    ("text", "kind", "examples"),
    [
        ("plain", "text", ()),
        ("", "text", ()),
        ('{"a": 1}', "text", ()),
        ('{"a": 1}\n{"a": 2}', "examples", ('{"a": 1}', '{"a": 2}')),
        ('{"a": 1}\nplain', "text", ()),
        ('{"a": 1}\n{', "text", ()),
        ('[1]\n["x"]', "examples", ("[1]", '["x"]')),
        ('{"prompt": "x"}\n{"messages": [{"role": "user", "content": "y"}]}', "examples", ("x", "y")),
        ('{"request": {"prompt": "x"}}', "body", ()),
        ('{"prompt": [1, 2]}', "text", ()),
        ('{\n "messages": [\n{"role": "user"}]}', "body", ()),
        ('{"messages": "x"}', "text", ()),
        ("[" * 100_000, "text", ()),
    ],
)
def test_what_a_file_is(text: str, kind: str, examples: Any) -> None:
    subject = read_subject(text)
    assert (subject.kind, subject.examples) == (kind, examples)


def test_names(bytewise: Path) -> None:
    folder = DATA / "tokenizer"
    assert load_counter(str(folder / "tokenizer.json")).name == "tokenizer"
    assert load_counter(f"mine={folder}").name == "mine"
    assert load_counter("http://127.0.0.1:1/").name == "127.0.0.1:1"
    assert load_counter("here=http://127.0.0.1:1").name == "here"
    other = bytewise.with_name("other.tiktoken")
    bytewise.rename(other)
    assert load_counter(f"o200k_base={other}").count("abc") == 3
    with pytest.raises(
        UsageError, match=r"does not say how it splits text: write NAME=.* NAME one of cl100k"
    ):
        load_counter(str(other))


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tokenizer at"):
        load_counter(str(tmp_path / "absent"))
    with pytest.raises(UsageError, match="no tokenizer at"):
        load_counter(str(tmp_path / "cl100k_base.tiktoken"))
    broken = tmp_path / "r50k_base.tiktoken"
    for content in ("not base64", "YQ== x", "YQ=="):
        broken.write_text(content)
        with pytest.raises(UsageError, match=r"is not a \.tiktoken file"):
            load_counter(str(broken))
    broken.write_text("YQ== 0\nYg== 0\n")
    with pytest.raises(UsageError, match="ranks repeat, or single bytes are missing"):
        load_counter(str(broken))


def test_other_files_of_a_folder_are_read_by_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    bert = load_counter(str(tmp_path))
    assert bert.count("the dogs.") == 4
    assert bert.count_prompt("chat", {"messages": []}) is None
    assert bert.count_prompt("completion", {"prompt": "the dogs."}) == 6
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(UsageError, match=r"has no tokenizer\.json, and transformers finds none") as caught:
        load_counter(str(tmp_path))
    assert "\n" not in str(caught.value)
