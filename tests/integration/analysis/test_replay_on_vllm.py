"""Traffic that is new each time, sent to a real vLLM by several clients, then replayed from its log."""

import json
import random
import threading
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main
from kvscope.demo.engines import Engine

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
    "the",
    "of",
    "and",
    "to",
]


class Traffic:
    """Clients with sessions of their own that share beginnings; keeps a log as an application would."""

    def __init__(self, engine: Engine, salt: str, seed: int) -> None:
        self._engine = engine
        self._salt = salt
        self._chance = random.Random(seed)
        self._beginnings = [" ".join(self._chance.choices(WORDS, k=length)) for length in (60, 150, 260)]
        self._lock = threading.Lock()
        self.rows: list[dict[str, Any]] = []

    def session(self, number: int) -> None:
        with self._lock:
            chance = random.Random(self._chance.random())
        messages = [{"role": "system", "content": chance.choice(self._beginnings)}]
        for turn in range(4):
            messages.append(
                {"role": "user", "content": " ".join(chance.choices(WORDS, k=chance.randrange(3, 40)))}
            )
            body = {
                "model": self._engine.model,
                "messages": list(messages),
                "max_tokens": chance.randrange(1, 24),
                "temperature": 0.0,
                "cache_salt": self._salt,
                "return_token_ids": True,
            }
            sent_at = time.time()
            answer = self._ask(body)
            choice = answer["choices"][0]
            row = {
                "request_id": f"{number}-{turn}",
                "sent_at": sent_at,
                "done_at": time.time(),
                "body": body,
                "usage": answer["usage"],
                "output_token_ids": choice["token_ids"],
            }
            with self._lock:
                self.rows.append(row)
            messages.append({"role": "assistant", "content": choice["message"]["content"]})

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(
            self._engine.url + "/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with opener.open(request, timeout=60) as answer:
            answered: dict[str, Any] = json.loads(answer.read())
        return answered


@pytest.mark.parametrize(("clients", "share"), [(1, 1.0), (3, 0.9)])
def test_the_replay_of_a_log_gives_what_the_server_reported(
    vllm_server: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], clients: int, share: float
) -> None:
    traffic = Traffic(vllm_server, uuid.uuid4().hex, random.SystemRandom().getrandbits(32))
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(traffic.session, range(10)))
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, traffic.rows)))
    arguments = ["replay", str(log), "--json", "--block-size", str(vllm_server.options.block_size)]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--tokenizer", str(vllm_server.options.model)])
    assert end.value.code == 0
    got = json.loads(capsys.readouterr().out)
    assert got["requests"] == 40
    assert got["hit_tokens"] > 0
    assert got["agreement"]["compared"] == 40
    assert got["agreement"]["equal"] >= 40 * share
    reported = sum(row["usage"]["prompt_tokens_details"]["cached_tokens"] for row in traffic.rows)
    assert got["hit_tokens"] == pytest.approx(reported, rel=0 if clients == 1 else 0.05)
