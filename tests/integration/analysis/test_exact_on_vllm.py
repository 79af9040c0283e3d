"""Against a real vLLM server: prompt tokens and prefix hits are foretold exactly."""

import json
import random
import urllib.request
import uuid
from typing import Any

import pytest

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.demo.engines import Engine
from kvscope.prompts.tokenizing import ServerTokenizer, load_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(420)]

WORDS = [
    "refund",
    "order",
    "customer",
    "policy",
    "answer",
    "limit",
    "shipping",
    "account",
    "price",
    "é",
    "数",
]
TOOLS = [
    {
        "type": "function",
        "extra": 1,
        "function": {
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
            "name": "search",
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time <b>now</b> & here."}},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with opener.open(request, timeout=60) as answer:
        answered: dict[str, Any] = json.loads(answer.read())
    return answered


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("chat", chat({"role": "user", "content": "Hello, <|im_end|> & <b>world</b>! 你好"})),
        ("chat", chat({"role": "user", "content": [{"type": "text", "text": t} for t in ("one", "two")]})),
        ("chat", chat({"role": "system", "content": "s"}, {"role": "user", "content": "u"}, tools=TOOLS)),
        (
            "chat",
            chat(
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r"}]},
                {"role": "developer", "content": "d"},
                tools=TOOLS,
            ),
        ),
        ("chat", chat({"role": "user", "content": "u"}, add_special_tokens=True)),
        ("completion", {"prompt": "Once upon a time"}),
        ("completion", {"prompt": [5, 6, 7, 8]}),
    ],
)
def test_prompt_tokens_are_the_servers(vllm_server: Engine, api: str, body: dict[str, Any]) -> None:
    path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
    asked = body | {"model": vllm_server.model, "max_tokens": 1, "return_token_ids": True}
    if "tools" in body:
        asked["tool_choice"] = "none"
    answer = post(vllm_server.url + path, asked)
    theirs = answer["prompt_token_ids"] if api == "chat" else answer["choices"][0]["prompt_token_ids"]
    assert load_tokenizer(vllm_server.options.model).encode(api, asked) == theirs
    assert ServerTokenizer(vllm_server.url).encode(api, asked) == theirs


def test_hits_of_new_traffic_are_foretold(vllm_server: Engine) -> None:
    """Sequential requests under a new salt, too few to be evicted by each other."""
    rng = random.Random(20_261_129)
    salt = uuid.uuid4().hex
    beginnings = [" ".join(rng.choices(WORDS, k=rng.randrange(20, 220))) for _ in range(4)]
    sent: list[ReplayRequest] = []
    history: list[dict[str, Any]] = []
    for number in range(24):
        if number % 3 == 2 and history:
            messages = [*history, {"role": "user", "content": " ".join(rng.choices(WORDS, k=12))}]
        else:
            system = rng.choice(beginnings) + rng.choice(["", " " + rng.choice(WORDS)])
            messages = [{"role": "system", "content": system}, {"role": "user", "content": rng.choice(WORDS)}]
        answer = post(
            vllm_server.url + "/v1/chat/completions",
            {
                "model": vllm_server.model,
                "messages": messages,
                "max_tokens": rng.randrange(1, 40),
                "cache_salt": salt,
                "return_token_ids": True,
                "temperature": 0.0,
            },
        )
        choice = answer["choices"][0]
        history = [*messages, {"role": "assistant", "content": choice["message"]["content"]}]
        sent.append(
            ReplayRequest(
                request_id=str(number),
                tokens=answer["prompt_token_ids"],
                salt=salt,
                output_tokens=choice["token_ids"],
                recorded_cached_tokens=answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            )
        )
    result = replay(sent, block_size=vllm_server.options.block_size)
    blocks = sum(-(-(len(request.tokens) + 40) // vllm_server.options.block_size) for request in sent)
    assert blocks < vllm_server.options.blocks
    assert [r.hit_tokens for r in result.per_request] == [
        r.recorded_cached_tokens for r in result.per_request
    ]
    assert result.hit_tokens > 0
