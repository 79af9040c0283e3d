"""The model that is made on the spot."""

import json
from pathlib import Path

import pytest

from kvscope.demo.model import MAX_POSITIONS, VOCABULARY, build_model
from kvscope.errors import UsageError
from kvscope.prompts.tokenizing import load_tokenizer


def test_it_is_the_same_each_time_and_made_once(tiny_tokenizer: Path, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "model", weights=False)
    made = (folder / "tokenizer.json").stat().st_mtime_ns
    assert (folder / "tokenizer.json").read_bytes() == (tiny_tokenizer / "tokenizer.json").read_bytes()
    build_model(folder, weights=True)
    assert (folder / "tokenizer.json").stat().st_mtime_ns == made
    assert (folder / "model.safetensors").stat().st_size > 9_000_000


def test_its_files_say_what_it_is(tiny_tokenizer: Path) -> None:
    config = json.loads((tiny_tokenizer / "config.json").read_text())
    assert (config["vocab_size"], config["max_position_embeddings"]) == (VOCABULARY, MAX_POSITIONS)
    assert (config["hidden_size"], config["num_key_value_heads"], config["dtype"]) == (128, 2, "float32")


def test_tools_are_rendered_before_messages_in_the_order_given(tiny_tokenizer: Path) -> None:
    tool = {"type": "function", "function": {"name": "zeta", "parameters": {"b": 1, "a": 2}}}
    other = {"type": "function", "function": {"name": "alpha", "parameters": {}}}
    text = load_tokenizer(tiny_tokenizer).render(
        {"messages": [{"role": "user", "content": "Hello"}], "tools": [tool, other]}
    )
    assert text.startswith("<|im_start|>tools\n")
    assert text.index("zeta") < text.index("alpha") < text.index("Hello")
    assert '{"b": 1, "a": 2}' in text
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="holds no model of the demo's"):
        build_model(tmp_path, weights=False)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
