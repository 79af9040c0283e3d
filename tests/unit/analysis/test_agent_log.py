"""Session files of a coding agent: each answer is a request with what stood before it."""

import json
from pathlib import Path
from typing import Any

from kvscope.analysis.formats.detect import read
from kvscope.analysis.formats.records import BadLine, Body, LoggedRequest

SESSIONS = Path(__file__).parents[2] / "data" / "traces" / "claude-code"


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def line(kind: str, uuid: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    """Return a line of a session; ``more`` goes into the message but for what stands beside it."""
    beside = {key: more.pop(key) for key in ("isSidechain", "timestamp", "requestId") if key in more}
    message = {"role": kind, "content": content, **more}
    value = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message}
    return value | beside


def text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


def found(path: Path) -> list[LoggedRequest]:
    all_found = list(read([path]))
    assert not [each for each in all_found if isinstance(each, BadLine)]
    return [each for each in all_found if isinstance(each, LoggedRequest)]


def prompt(request: LoggedRequest) -> list[tuple[str, str]]:
    assert isinstance(request.prompt, Body)
    return [(each["role"], each["content"]) for each in request.prompt.body["messages"]]


def test_a_published_session_is_a_request_for_each_answer() -> None:
    """Five answers in the file; counts as they stand in it."""
    requests = found(SESSIONS / "representative_messages.jsonl")
    assert [each.request_id for each in requests] == [f"req_00{number}" for number in range(1, 6)]
    first, second = requests[:2]
    assert (first.prompt_tokens, first.cached_tokens, first.output) == (25, 0, 120)
    assert prompt(first) == [("user", "Hello Claude! Can you help me understand how Python decorators work?")]
    assert [role for role, _ in prompt(second)] == ["user", "assistant", "user"]
    assert second.session == "test_session"
    assert not second.whole
    assert (second.at, second.finished_at) == (1_749_895_260.0, 1_749_895_290.0)


def test_bad_lines_of_a_published_session_are_told() -> None:
    told = {
        each.line: each.reason for each in read([SESSIONS / "edge_cases.jsonl"]) if isinstance(each, BadLine)
    }
    assert {10, 11, 13, 14, 15} <= told.keys()
    assert "needs `message` with `content`" in told[10]


def test_the_lines_of_one_answer_are_one_message(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
    usage = {"input_tokens": 3, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7}
    result = [{"type": "tool_result", "tool_use_id": "t1", "content": "noon"}]
    file = written(
        tmp_path / "s.jsonl",
        {"type": "summary", "summary": "a talk", "leafUuid": "x"},
        line("user", "u1", None, "when?"),
        line("assistant", "a1", "u1", text("let me look"), id="m1", usage=usage | {"output_tokens": 1}),
        line("assistant", "a2", "a1", [call], id="m1", usage=usage | {"output_tokens": 30}),
        line("user", "u2", "a2", result),
        line("assistant", "a3", "u2", text("at noon"), id="m2", usage={"input_tokens": 110}),
    )
    first, second = found(file)
    assert (first.prompt_tokens, first.cached_tokens, first.output) == (100, 90, 30)
    assert (second.prompt_tokens, second.cached_tokens, second.output) == (110, None, None)
    assert prompt(second) == [("user", "when?"), ("assistant", "let me look"), ("tool", "noon")]


def test_going_back_leaves_out_what_came_after(tmp_path: Path) -> None:
    file = written(
        tmp_path / "s.jsonl",
        line("user", "u1", None, "one"),
        line("assistant", "a1", "u1", text("first"), id="m1"),
        line("user", "u2", "a1", "two"),
        line("assistant", "a2", "u2", text("second"), id="m2"),
        line("user", "u3", "a1", "two, but otherwise"),
        line("assistant", "a3", "u3", text("third"), id="m3"),
    )
    assert prompt(found(file)[2]) == [("user", "one"), ("assistant", "first"), ("user", "two, but otherwise")]


def test_a_sub_agent_has_a_conversation_of_its_own(tmp_path: Path) -> None:
    file = written(
        tmp_path / "s.jsonl",
        line("user", "u1", None, "one"),
        line("user", "s1", None, "find it", isSidechain=True),
        line("assistant", "a1", "u1", text("first"), id="m1"),
        line("assistant", "s2", "s1", text("found"), id="m2", isSidechain=True),
        line("assistant", "a2", "a1", text("not said by a server"), id="x", model="<synthetic>"),
        line("user", "u2", "a1", "two"),
        line("user", "s3", None, "find another", isSidechain=True),
        line("assistant", "s4", "s3", text("none"), id="m3", isSidechain=True),
        line("assistant", "a3", "u2", text("second"), id="m4"),
    )
    prompts = {each.request_id: prompt(each) for each in found(file)}
    assert prompts["m2"] == [("user", "find it")]
    assert prompts["m3"] == [("user", "find another")]
    assert prompts["m4"] == [("user", "one"), ("assistant", "first"), ("user", "two")]


def test_an_answer_without_its_question_is_told(tmp_path: Path) -> None:
    file = written(tmp_path / "s.jsonl", line("assistant", "a1", "gone", text("yes"), id="m1"))
    (bad,) = read([file])
    assert isinstance(bad, BadLine)
    assert "does not hold the question" in bad.reason
