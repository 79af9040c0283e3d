"""Traffic that is new each time, sent to a real vLLM by several clients, then replayed from its log."""

import base64
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
import zmq

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

    def warm_up(self) -> None:
        """Send a prompt that shares nothing with the sessions and is not in the log."""
        words = [uuid.uuid4().hex for _ in range(20)]
        message = {"role": "user", "content": " ".join(words)}
        self._ask({"model": self._engine.model, "messages": [message], "max_tokens": 1})

    def reported(self) -> int:
        """Return the cached tokens that the server reported for the log."""
        return sum(row["usage"]["prompt_tokens_details"]["cached_tokens"] for row in self.rows)

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


class Events:
    """Keeps what the engine publishes of its cache, from before the traffic until a while after it."""

    def __init__(self, engine: Engine) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.RCVTIMEO, 500)
        self._socket.connect(engine.kv_events)

    def hear(self, traffic: Traffic) -> None:
        """Return once the engine's events come: a subscription takes effect some time after it is made."""
        for _ in range(20):
            traffic.warm_up()
            try:
                self._socket.recv_multipart()
            except zmq.Again:
                continue
            return
        pytest.fail("the engine published no KV events")

    def save(self, file: Path) -> None:
        lines = []
        while True:
            try:
                frames = self._socket.recv_multipart()
            except zmq.Again:
                break
            lines.append(json.dumps({"frames": [base64.b64encode(frame).decode() for frame in frames]}))
        file.write_text("\n".join(lines))
        self._socket.close(linger=0)


def replayed(server: Engine, log: Path, capsys: pytest.CaptureFixture[str], *more: Any) -> dict[str, Any]:
    arguments = ["replay", str(log), "--json", "--block-size", str(server.options.block_size)]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--tokenizer", str(server.options.model), *map(str, more)])
    assert end.value.code == 0
    got: dict[str, Any] = json.loads(capsys.readouterr().out)
    return got


def test_the_replay_of_a_log_gives_what_the_server_reported(
    vllm_server: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traffic = Traffic(vllm_server, uuid.uuid4().hex, random.SystemRandom().getrandbits(32))
    for number in range(10):
        traffic.session(number)
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, traffic.rows)))
    got = replayed(vllm_server, log, capsys)
    assert got["requests"] == 40
    assert got["hit_tokens"] == traffic.reported() > 0
    assert got["agreement"] == {"compared": 40, "equal": 40, "differences": []}


@pytest.mark.parametrize("clients", [3, 8])
def test_clients_at_a_time_are_replayed_in_the_order_of_the_engines_events(
    vllm_server: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], clients: int
) -> None:
    traffic = Traffic(vllm_server, uuid.uuid4().hex, random.SystemRandom().getrandbits(32))
    events = Events(vllm_server)
    events.hear(traffic)
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(traffic.session, range(25)))
    log, recorded = tmp_path / "log.jsonl", tmp_path / "events.jsonl"
    log.write_text("\n".join(map(json.dumps, traffic.rows)))
    events.save(recorded)
    got = replayed(vllm_server, log, capsys, "--kv-events", recorded)
    assert got["agreement"]["compared"] == 100
    assert got["agreement"]["equal"] >= 99
    assert got["hit_tokens"] == pytest.approx(traffic.reported(), rel=0.01)
    # by the clients' clocks alone, two that were sent together may have swapped; each one is explained
    by_times = replayed(vllm_server, log, capsys)["agreement"]
    assert by_times["equal"] + len(by_times["differences"]) == 100
    assert {each["kind"] for each in by_times["differences"]} <= {"order"}
