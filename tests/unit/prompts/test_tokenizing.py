"""Prompt tokens equal the recorded engines'; bad folders, bodies and servers say so in one line."""

import base64
import contextlib
import gzip
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from kvscope.errors import UnreachableError, UsageError
from kvscope.prompts.named import named_tokenizer
from kvscope.prompts.rendering import ChatTemplate
from kvscope.prompts.tokenizing import LocalTokenizer, ServerTokenizer, load_tokenizer

DATA = Path(__file__).parents[2] / "data"
RENDERED = json.loads((DATA / "tokenizer" / "rendered.json").read_text())


def recorded(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / "cache" / f"{name}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def tokenizer() -> LocalTokenizer:
    return load_tokenizer(DATA / "tokenizer")


@pytest.mark.parametrize(
    ("name", "requests"),
    [("vllm-0.32.0-sequential", 160), ("vllm-0.32.0-concurrent-4", 160), ("vllm-0.23.0-sequential", 120)],
)
def test_tokens_are_the_engines(tokenizer: Any, name: Any, requests: Any) -> None:
    rows = recorded(name)
    assert len(rows) == requests
    assert [
        row["request_id"] for row in rows if tokenizer.encode("chat", row["body"]) != row["prompt_token_ids"]
    ] == []


def test_counts_of_real_agent_prompts_are_the_engines(tokenizer: Any) -> None:
    rows = recorded("vllm-0.32.0-real-prompts")
    counts = [len(tokenizer.encode("chat", row["body"])) for row in rows]
    assert counts == [row["prompt_tokens"] for row in rows]
    assert sum(counts) == 490_789


@pytest.mark.parametrize("case", RENDERED["rendered"], ids=lambda case: case["template"])
def test_chat_template_renders_as_vllm(case: Any) -> None:
    template = ChatTemplate(
        RENDERED["templates"][case["template"]], {"bos_token": "<s>", "eos_token": "</s>"}
    )
    assert template.render(case["body"]) == case["text"]


def test_encode_is_repeatable_and_result_is_the_callers(tokenizer: Any) -> None:
    body = {"messages": [{"role": "user", "content": "hello world"}]}
    first = tokenizer.encode("chat", body)
    kept = list(first)
    first.clear()
    assert tokenizer.encode("chat", body) == kept


def test_completion_prompts(tokenizer: Any) -> None:
    text = tokenizer.encode("completion", {"prompt": "hello world"})
    assert text == tokenizer.encode("completion", {"prompt": ["hello world"]})
    assert tokenizer.encode("completion", {"prompt": text}) == text
    assert tokenizer.encode("completion", {"prompt": [text]}) == text


@pytest.mark.parametrize("prompt", [None, "", ["a", "b"], [[1], [2]], [1, "a"], {"a": 1}, [True]])
def test_completion_without_one_prompt(tokenizer: Any, prompt: Any) -> None:
    if prompt == "":
        assert tokenizer.encode("completion", {"prompt": ""}) == []
    else:
        with pytest.raises(UsageError, match="one prompt"):
            tokenizer.encode("completion", {"prompt": prompt})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "list of messages"),
        ({"messages": []}, "list of messages"),
        ({"messages": ["hi"]}, "object with a role"),
        ({"messages": [{"role": "user", "content": 5}]}, "text or a list"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": {"a": 1}}, "tools must be a list"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {}}]}, "with a name"),
        ({"messages": [{"role": "user", "content": "x"}], "continue_final_message": True}, "continue_final"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "with a function"),
    ],
)
def test_chat_bodies_that_cannot_be_rendered(tokenizer: Any, body: Any, reason: Any) -> None:
    with pytest.raises(UsageError, match=reason):
        tokenizer.encode("chat", body)


def test_template_that_refuses_says_why() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(UsageError, match="roles must alternate"):
        template.render({"messages": [{"role": "user", "content": "x"}]})
    with pytest.raises(UsageError, match="cannot be compiled"):
        ChatTemplate("{% for %}", {})


def test_template_is_sandboxed() -> None:
    template = ChatTemplate("{{ messages.append(1) }}", {})
    with pytest.raises(UsageError, match="refused"):
        template.render({"messages": [{"role": "user", "content": "x"}]})


def test_template_from_config_of_older_folders(tmp_path: Any) -> None:
    shutil.copy(DATA / "tokenizer" / "tokenizer.json", tmp_path)
    body = {"messages": [{"role": "user", "content": "x"}]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    config = {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(tmp_path).render(body) == "<s>x"
    assert load_tokenizer(tmp_path / "tokenizer.json").render(body) == "<s>x"
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_tokenizer(tmp_path).render(body) == "plain"
    assert load_tokenizer(tmp_path).render(body | {"tools": tools}) == "tools"


def test_folders_that_hold_no_tokenizer(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=r"no tokenizer at .*tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"not a tokenizer\.json"):
        load_tokenizer(tmp_path)
    shutil.copy(DATA / "tokenizer" / "tokenizer.json", tmp_path)
    with pytest.raises(UsageError, match="no chat template"):
        load_tokenizer(tmp_path).encode("chat", {"messages": [{"role": "user", "content": "x"}]})
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        load_tokenizer(tmp_path)


@contextlib.contextmanager
def serving(status: int, answer: bytes) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(
                json.loads(self.rfile.read(int(self.headers["Content-Length"]))) | {"path": self.path}
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        @override
        def log_message(self, *_args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_server_tokenizer_asks_once_for_each_body() -> None:
    with serving(200, b'{"count": 2, "max_model_len": 9, "tokens": [5, 6]}') as (url, asked):
        tokenizer = ServerTokenizer(url)
        chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [1], "temperature": 0}
        assert tokenizer.encode("chat", chat) == [5, 6]
        assert tokenizer.encode("chat", chat) == [5, 6]
        assert tokenizer.encode("completion", {"prompt": "x"}) == [5, 6]
        assert tokenizer.encode("completion", {"prompt": [7]}) == [7]
    assert asked == [
        {
            "path": "/tokenize",
            "model": "m",
            "messages": [{"role": "user", "content": "x"}],
            "tools": [1],
            "add_generation_prompt": True,
        },
        {"path": "/tokenize", "prompt": "x", "add_special_tokens": True},
    ]


@pytest.mark.parametrize(
    ("status", "answer", "error", "reason"),
    [
        (400, b"{}", UsageError, "answered 400"),
        (404, b"{}", UnreachableError, "answered 404"),
        (200, b"nonsense", UnreachableError, "gave no tokens"),
        (200, b"{}", UnreachableError, "gave no tokens"),
        (200, b'{"tokens": "abc"}', UnreachableError, "no list of tokens"),
    ],
)
def test_server_that_gives_no_tokens(status: Any, answer: Any, error: Any, reason: Any) -> None:
    with serving(status, answer) as (url, _asked), pytest.raises(error, match=reason) as raised:
        ServerTokenizer(url).encode("completion", {"prompt": "x"})
    assert "\n" not in str(raised.value)


def test_server_that_is_not_there() -> None:
    with serving(200, b"") as (url, _asked):
        pass
    with pytest.raises(UnreachableError, match="gave no tokens"):
        ServerTokenizer(url).encode("completion", {"prompt": "x"})
    with pytest.raises(UsageError, match="http://"):
        ServerTokenizer("localhost:8000")


@pytest.mark.parametrize("prompt", [[-1, 5], [2**32], [True], [1.5], [[1], [2]], "\ud800"])
def test_prompts_that_no_engine_takes_are_refused(tokenizer: LocalTokenizer, prompt: Any) -> None:
    with pytest.raises(UsageError):
        tokenizer.encode("completion", {"prompt": prompt})


def test_a_tiktoken_file_tokenises_texts_alone(tmp_path: Path) -> None:
    """Of single bytes and one pair: what the rules of cl100k_base make of them is known."""
    ranks = [bytes([value]) for value in range(256)] + [b"ab"]
    lines = (b"%s %d" % (base64.b64encode(token), rank) for rank, token in enumerate(ranks))
    file = tmp_path / "own.tiktoken"
    file.write_bytes(b"\n".join(lines))
    tokenizer = named_tokenizer(f"cl100k_base={file}")
    assert tokenizer.encode("completion", {"prompt": "abba"}) == [256, ord("b"), ord("a")]
    assert tokenizer.encode("completion", {"prompt": [4, 5]}) == [4, 5]
    for api, body, words in (
        ("chat", {"messages": [{"role": "user", "content": "x"}]}, "no chat template"),
        ("completion", {"prompt": ["a", "b"]}, "one text only"),
    ):
        with pytest.raises(UsageError, match=words):
            tokenizer.encode(api, body)
    with pytest.raises(UsageError, match="does not say how it splits text"):
        named_tokenizer(str(file))
