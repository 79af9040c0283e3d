"""Logs into the store and out again: the same requests, the same replay, and no text anywhere."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main

DATA = Path(__file__).parents[1] / "data"
MOONCAKE = DATA / "traces" / "mooncake-conversation-300.jsonl"
SESSION = DATA / "traces" / "claude-code" / "representative_messages.jsonl"
TOKENIZER = DATA / "tokenizer"
FIGURES = ("requests", "queried_tokens", "hit_tokens", "hit_rate", "block_hit_rate")


@pytest.fixture(autouse=True)
def data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.delenv("KVSCOPE_DB", raising=False)
    monkeypatch.delenv("KVSCOPE_HASH_SALT", raising=False)
    return tmp_path / "share" / "kvscope"


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


def ran(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, out, err


def document(capsys: pytest.CaptureFixture[str], *arguments: Any) -> Any:
    code, out, err = ran(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def recording(name: str) -> Path:
    return DATA / "cache" / f"vllm-0.32.0-{name}.jsonl.gz"


def figures(report: dict[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in FIGURES}


def test_a_recording_becomes_records_once(capsys: pytest.CaptureFixture[str], db: str) -> None:
    file = recording("sequential")
    for _ in range(2):
        assert document(capsys, "import", file, "--db", db) == {"requests": 160, "skipped": []}
        (row,) = document(capsys, "hits", "--db", db)["rows"]
        assert (row["requests"], row["known_requests"]) == (160, 160)
        assert (row["prompt_tokens"], row["cached_tokens"]) == (101_894, 45_728)
        assert row["causes"] == {"unknown": 101_894 - 45_728}
    records = document(capsys, "requests", "--db", db, "--last", 1000)
    assert len(records) == 160
    with gzip.open(file) as lines:
        first = json.loads(lines.readline())
    record = next(each for each in records if each["request_id"] == first["request_id"])
    assert record["prompt_tokens"] == len(first["prompt_token_ids"])
    assert record["model"] == "tiny"
    assert record["e2e_seconds"] == pytest.approx(first["done_at"] - first["sent_at"])
    assert set(record["sources"].values()) == {"log"}


@pytest.mark.parametrize("name", ["sequential", "concurrent-4"])
def test_the_store_replays_as_the_engine_did(capsys: pytest.CaptureFixture[str], db: str, name: str) -> None:
    file = recording(name)
    got = document(capsys, "import", file, "--blocks", "--block-size", 32, "--db", db)
    assert got == {"requests": 160, "skipped": [], "hashed": 160}
    document(capsys, "import", file, "--blocks", "--block-size", 32, "--db", db)
    replayed = document(capsys, "replay", "--db", db, "--blocks", 300, "--per-request", "--curve")
    assert (replayed["agreement"]["compared"], replayed["agreement"]["equal"]) == (160, 160)
    source = document(capsys, "replay", file, "--blocks", 300, "--block-size", 32, "--per-request", "--curve")
    assert replayed == source


def test_a_trace_in_the_store_is_replayed_and_has_the_time_it_is_given(
    capsys: pytest.CaptureFixture[str], db: str
) -> None:
    document(capsys, "import", MOONCAKE, "--blocks", "--db", db)
    (record,) = document(capsys, "requests", "--db", db, "--last", 1)
    assert record["arrived_at"] is None  # the trace counts from its own beginning
    assert record["cached_tokens"] is None
    begins = ("--begins", "2026-11-29T12:00:00Z")
    document(capsys, "import", MOONCAKE, "--blocks", "--db", db, *begins)
    records = document(capsys, "requests", "--db", db, "--last", 1000)
    assert len(records) == 300
    assert records[0]["arrived_at"] == "2026-11-29T12:00:00.000Z"
    for options in ((), ("--blocks", 2_000), ("--blocks", 2_000, "--policy", "lfu")):
        stored = document(capsys, "replay", "--db", db, *options)
        assert figures(stored) == figures(document(capsys, "replay", MOONCAKE, *options))


def test_text_in_the_store_is_replayed_through_its_tokenizer(
    capsys: pytest.CaptureFixture[str], db: str, tmp_path: Path
) -> None:
    secret = "the patient's name is Adalbert Stifter"
    log = tmp_path / "log.jsonl"
    lines = [{"prompt": f"{secret} {'and more ' * 90}{ending}", "user": "u"} for ending in "aabbc"]
    log.write_text("\n".join(map(json.dumps, lines)))
    options = ("--tokenizer", TOKENIZER)
    document(capsys, "import", log, "--blocks", *options, "--db", db)
    stored = document(capsys, "replay", "--db", db)
    assert figures(stored) == figures(document(capsys, "replay", log, *options))
    assert stored["hit_rate"] > 0.7
    bare = db.removeprefix("sqlite:///")
    assert not any(b"Adalbert" in file.read_bytes() for file in Path(bare).parent.glob("store.db*"))


def test_sessions_tell_what_the_server_counted(capsys: pytest.CaptureFixture[str], db: str) -> None:
    got = document(capsys, "import", SESSION, "--db", db)
    assert got == {"requests": 5, "skipped": []}
    records = document(capsys, "requests", "--db", db)
    assert [(each["session"], each["prompt_tokens"]) for each in records[:1]] == [("test_session", 25)]


def test_logs_of_one_name_stay_apart_and_bad_lines_are_told(
    capsys: pytest.CaptureFixture[str], db: str, tmp_path: Path
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        line = {"timestamp": 7, "input_length": 5, "hash_ids": [len(folder) + ord(folder[0])]}
        (tmp_path / folder / "trace.jsonl").write_text(json.dumps(line) + "\n{broken\n")
    got = document(capsys, "import", tmp_path / "one", tmp_path / "two", "--db", db)
    assert got["requests"] == 2
    assert [(each["file"], each["line"]) for each in got["skipped"]] == [("trace.jsonl", 2)] * 2
    assert len(document(capsys, "requests", "--db", db)) == 2
    code, out, err = ran(capsys, "import", tmp_path / "one", "--db", db)
    assert (code, out) == (0, "imported 1 requests\n")
    assert err.startswith("skipped trace.jsonl:2: not JSON")


@pytest.mark.parametrize("form", ["mooncake", "hashed"])
@pytest.mark.parametrize(
    ("source", "options"),
    [
        (MOONCAKE, ()),
        (DATA / "traces" / "weka-session.json", ()),
        (DATA / "traces" / "weka-subagents.json", ()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_trace_that_was_exported_replays_as_its_source(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, source: Path, options: tuple[Any, ...], form: str
) -> None:
    out = tmp_path / "out.jsonl"
    got = document(capsys, "export", source, *options, "--format", form, "-o", out)
    wanted = document(capsys, "replay", source, "--curve")
    assert got["requests"] == wanted["requests"]
    exported = document(capsys, "replay", out, "--curve")
    assert figures(exported) == figures(wanted)
    assert exported["points"] == wanted["points"]
    ids = {each for line in out.read_text().splitlines() for each in json.loads(line)["hash_ids"]}
    assert len(ids) == wanted["distinct_blocks"]
    assert max(ids) < 2**63
    assert min(ids) > 10_000  # the source's own numbers are not to be seen


def test_hashes_replay_as_the_prompts_whose_they_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source, out = recording("sequential"), tmp_path / "out"
    document(capsys, "export", source, "--block-size", 32, "--format", "hashed", "-o", out)
    options = ("--blocks", 300, "--per-request", "--curve")
    exported = document(capsys, "replay", out, *options)
    assert exported == document(capsys, "replay", source, "--block-size", 32, *options)
    assert (exported["agreement"]["compared"], exported["agreement"]["equal"]) == (160, 160)


def test_exported_text_needs_a_salt_to_be_met_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_directory: Path
) -> None:
    log = tmp_path / "log.jsonl"
    prompt = {"prompt": "a prompt of some length " * 20, "session": "of Ada"}
    log.write_text("\n".join([json.dumps(prompt), json.dumps(prompt), json.dumps({"prompt": ["a", "b"]})]))
    lines = []
    for salt in (None, None, "pepper"):
        if salt is not None:
            monkeypatch.setenv("KVSCOPE_HASH_SALT", salt)
        out = tmp_path / "out"
        got = document(capsys, "export", log, "--tokenizer", TOKENIZER, "--format", "hashed", "-o", out)
        assert got["requests"] == 2
        assert [each["line"] for each in got["skipped"]] == [3]
        first, second = map(json.loads, out.read_text().splitlines())
        assert first["block_hashes"] == second["block_hashes"]
        assert "Ada" not in out.read_text()
        lines.append(first)
    assert lines[0] == lines[1]
    assert not set(lines[0]["block_hashes"]) & set(lines[2]["block_hashes"])
    assert (data_directory / "hash-salt").stat().st_mode & 0o777 == 0o600


def test_the_store_is_exported(capsys: pytest.CaptureFixture[str], db: str, tmp_path: Path) -> None:
    document(capsys, "import", recording("sequential"), "--blocks", "--block-size", 32, "--db", db)
    code, out, err = ran(capsys, "export", "--db", db, "-o", "-")
    assert code == 0
    assert "wrote 160 requests to -" in err
    assert "blocks hold 32 tokens, not Mooncake's 512" in err
    lines = [json.loads(line) for line in out.splitlines()]
    assert [each["input_length"] for each in lines[:1]] == [1126]
    assert lines[0]["timestamp"] == 0
    file = tmp_path / "out.jsonl"
    file.write_text(out)
    assert document(capsys, "replay", file)["requests"] == 160


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["import", "missing"], "cannot be read: No such file"),
        (["import", "bad"], "no request in bad could be imported: bad:1: not JSON"),
        (["import", "log", "--tokenizer", str(TOKENIZER)], "--tokenizer is for the hashes of --blocks"),
        (["import", "log", "--begins", "noon"], "write a time such as"),
        (["import", "log", "--format", "parquet"], "--format"),
        (["import", "log", "--format", "mooncake"], "no line of the format mooncake"),
        (["import"], "FILES"),
        (["export", "log", "-o", "out"], "log:1: text becomes blocks through the model's tokenizer"),
        (["export", "log", "-o", "-", "--json"], "name a file with -o"),
        (["export", "log"], "--output"),
        (["export", "log", "--db", "sqlite:///x.db", "-o", "out"], "name FILES or them"),
        (["replay", "log", "--since", "1h"], "name FILES or them"),
        (["replay", "hashes", "--block-size", "32"], "blocks hold 16 tokens, not 32"),
        (["export", "log", "-o", "none/out", "--tokenizer", str(TOKENIZER)], "none/out cannot be written"),
        (["export", "wrong", "-o", "out", "--tokenizer", str(TOKENIZER)], "the engine counted 999"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").write_text("{\n")
    (tmp_path / "log").write_text(json.dumps({"prompt": "some text " * 50}))
    (tmp_path / "wrong").write_text(json.dumps({"prompt": "x", "usage": {"prompt_tokens": 999}}))
    hashes = {"block_size": 16, "prompt_tokens": 20, "block_hashes": [4], "answer_hashed": True}
    (tmp_path / "hashes").write_text(json.dumps(hashes))
    code, out, err = ran(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_replay_of_a_store_without_hashes_says_how(capsys: pytest.CaptureFixture[str], db: str) -> None:
    document(capsys, "import", MOONCAKE, "--db", db)
    code, _, err = ran(capsys, "replay", "--db", db)
    assert code == 2
    assert "the store holds no block hashes" in err
