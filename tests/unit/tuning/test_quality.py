"""Answers compared: equal ones, the server's own noise, checks, the judge, refusals, no text unless asked."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from kvscope.cli.main import main
from kvscope.errors import UnreachableError, UsageError
from kvscope.tuning.quality.checks import conforms, matches, valid_json
from kvscope.tuning.quality.endpoint import Endpoint
from kvscope.tuning.quality.judging import Judgement, judge

Answer = Callable[[dict[str, Any]], Any]
RULES = ("You never guess an order's place. " * 10).strip()


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve what ``answer`` makes of a body: a text, a message, or (status, document)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, document = told if isinstance(told, tuple) else (200, _completion(told))
            raw = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        @override
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _completion(told: Any) -> dict[str, Any]:
    return {"choices": [{"message": told if isinstance(told, dict) else {"content": told}}]}


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["answers", *arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Four prompts with spaces at line ends, and one without."""
    bodies = [
        {
            "model": "m",
            "stream": True,
            "temperature": 0.7,
            "messages": [
                {"role": "system", "content": RULES + ("" if number == 4 else "  ") + "\nbe brief"},
                {"role": "user", "content": f"secret question {number}"},
            ],
        }
        for number in range(5)
    ]
    lines = [json.dumps({"route": "support", "body": body}) for body in bodies]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join([*lines, "broken {"]))
    return str(file)


@pytest.fixture
def change(tmp_path: Path) -> str:
    told = {
        "id": "abc",
        "kind": "normalize_whitespace",
        "route": "support",
        "change": {"transforms": [{"kind": "normalize_whitespace", "params": {}}]},
    }
    file = tmp_path / "suggestions.json"
    file.write_text(json.dumps({"suggestions": [{**told, "id": "person", "change": {"blocks": 9}}, told]}))
    return str(file)


def _changed(body: dict[str, Any]) -> bool:
    return "  \n" not in body["messages"][0]["content"]


def test_what_became_of_the_answers(log: str, change: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, Any]] = []
    turn = itertools.count()

    def answer(body: dict[str, Any]) -> str:
        seen.append(body)
        number = body["messages"][1]["content"][-1]
        if number == "0" and not _changed(body):  # this one differs from itself
            return f'{{"noise": {next(turn)}}}'
        return "no JSON" if _changed(body) and number in "01" else '{"place": "here"}'

    with serving(answer) as url:
        assert run(log, "--server", url, "--from", change, "--regex", "here", "--json") == 0
    told = capsys.readouterr().out
    assert "secret" not in told
    assert "place" not in told
    found = json.loads(told)
    assert (found["suggestion"], found["prompts"], found["untouched"]) == ("abc", 4, 1)
    assert (found["same"]["count"], found["noise"]["count"]) == (2, 3)
    # Wilson's interval of 2 of 4, by its formula with z = 1.96
    assert found["same"]["low"] == pytest.approx(0.1500, abs=1e-3)
    assert found["same"]["high"] == pytest.approx(0.8500, abs=1e-3)
    by_json, by_regex = found["checks"]
    assert (by_json["before"], by_json["after"], by_json["lost"], by_json["gained"]) == (4, 2, 2, 0)
    assert (by_regex["before"], by_regex["after"], by_regex["lost"]) == (3, 2, 1)
    assert [each["line"] for each in found["skipped"]] == [6]
    assert len(seen) == 3 * 4
    assert all("stream" not in body and body["temperature"] == 0 for body in seen)
    assert not found["answers"]


def test_text_is_shown_where_asked_and_only_the_newest_are(
    log: str, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(
        lambda _: {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    ) as url:
        assert run(log, "--server", url, "--from", change, "--last", "1", "--show-text", "--json") == 0
        (pair,) = json.loads(capsys.readouterr().out)["answers"]
        assert (pair["request_id"], pair["before"]) == ("log.jsonl:4", '[{"arguments": "{}", "name": "f"}]')
        assert run(log, "--server", url, "--from", change) == 0
    assert "4 of 4, 100.0%" in capsys.readouterr().out


def test_what_the_server_refuses_is_told_without_text(
    log: str, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        if body["messages"][1]["content"].endswith("2"):
            return 400, {"error": {"message": f"bad: {body}", "type": "BadRequestError"}}
        return "yes"

    with serving(answer) as url:
        assert run(log, "--server", url, "--from", change, "--json") == 0
    told = capsys.readouterr().out
    assert json.loads(told)["refused"] == [
        {"request_id": "log.jsonl:3", "reason": "the server answered 400: BadRequestError"}
    ]
    assert "secret" not in told


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--server", "nowhere"), 2, "is not a URL"),
        (("--server", "http://127.0.0.1:9"), 3, "gave no answer"),
        (("--server", "http://h", "--judge", "http://h"), 2, "go together"),
        (("--server", "http://h", "--regex", "("), 2, "--regex '('"),
        (("--server", "http://h", "--suggestion", "none"), 2, "no such suggestion"),
        (("--server", "http://h", "--suggestion", "person"), 2, "a person must act"),
        (("--server", "http://h", "--last", "0"), 2, "--last"),
    ],
)
def test_mistakes_are_one_line(
    log: str,
    change: str,
    arguments: tuple[str, ...],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(log, "--from", change, *arguments) == code
    assert said in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_file_of_no_suggestions(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"suggestions": [{"id": 3}]}')
    assert run(log, "--server", "http://h", "--from", str(file)) == 2
    assert "is not what `kvscope suggest --json` prints" in capsys.readouterr().err


def test_checks() -> None:
    assert [valid_json().holds(text) for text in ('{"a": 1}', " 3 ", "", "{a}", "[" * 100_000)] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert [matches("^a+$").holds(text) for text in ("aa", "b")] == [True, False]
    schema = conforms({"type": "object", "required": ["a"]}, "s.json")
    assert [schema.holds(text) for text in ('{"a": 1}', '{"b": 1}', "no")] == [True, False, False]
    with pytest.raises(UsageError, match=r"s\.json is no JSON schema"):
        conforms({"type": 3}, "s.json")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # a judge that goes by the answers: the better text wins wherever it stands
        (lambda first: "A." if first == "good" else "B", Judgement.BETTER),
        (lambda first: "B" if first == "good" else "A", Judgement.WORSE),
        (lambda _: "T", Judgement.SAME),
        (lambda _: "A", Judgement.UNCLEAR),  # a judge that goes by the place
        (lambda _: "both are fine", Judgement.UNCLEAR),
    ],
)
def test_a_judge_is_asked_in_both_orders(said: Callable[[str], str], expected: Judgement) -> None:
    def answer(body: dict[str, Any]) -> str:
        text = body["messages"][0]["content"]
        return said(text.split("[Answer A]\n")[1].split("\n")[0])

    with serving(answer) as url:
        endpoint = Endpoint(url=url, model="judge")
        body = {"messages": [{"role": "user", "content": "which?"}]}
        assert judge(endpoint, "chat", body, before="bad", after="good") is expected


def test_what_is_no_answer() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with (
        serving(lambda _: (200, {"choices": []})) as url,
        pytest.raises(UnreachableError, match="OpenAI's form"),
    ):
        Endpoint(url=url).answer("chat", body, max_tokens=1)
    with serving(lambda _: (500, {})) as url, pytest.raises(UnreachableError, match="answered 500"):
        Endpoint(url=url).answer("chat", body, max_tokens=1)
