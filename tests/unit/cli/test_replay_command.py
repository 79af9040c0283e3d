"""``kvscope replay`` end to end: real recordings exactly, traces as recomputed, bad input in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main

DATA = Path(__file__).parents[2] / "data"
TRACES = DATA / "traces"
MOONCAKE = TRACES / "mooncake-conversation-300.jsonl"


def ran(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["replay", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, out, err


def document(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    code, out, _ = ran(capsys, *arguments, "--json")
    assert code == 0
    value: dict[str, Any] = json.loads(out)
    return value


@pytest.mark.parametrize(
    ("recording", "requests", "hit_tokens"),
    [
        ("vllm-0.32.0-sequential", 160, 45_728),
        ("vllm-0.23.0-sequential", 120, 34_688),
        ("vllm-0.32.0-concurrent-4", 160, 44_256),
    ],
)
def test_recordings_are_replayed_exactly(
    capsys: pytest.CaptureFixture[str], recording: str, requests: int, hit_tokens: int
) -> None:
    file = DATA / "cache" / f"{recording}.jsonl.gz"
    got = document(capsys, file, "--blocks", 300, "--block-size", 32, "--per-request")
    assert got["requests"] == requests
    assert got["hit_tokens"] == hit_tokens
    assert got["exactness"] == "exact"
    assert got["agreement"] == {"compared": requests, "equal": requests, "differences": []}
    each = got["per_request"]
    assert len(each) == requests
    assert all(row["hit_tokens"] == row["recorded_cached_tokens"] for row in each)
    assert set(each[0]) == {"request_id", "prompt_tokens", "hit_tokens", "recorded_cached_tokens"}


def test_real_prompts_through_their_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    file = DATA / "cache" / "vllm-0.32.0-real-prompts.jsonl.gz"
    options = ("--blocks", 700, "--block-size", 32, "--tokenizer", DATA / "tokenizer")
    got = document(capsys, file, *options)
    assert got["queried_tokens"] == 490_789
    assert got["agreement"]["compared"] == 220
    assert got["agreement"]["equal"] >= 215  # three clients; this copy tells no ends
    assert got["exactness"] == "estimated"


WINDOWS = (DATA / "cache" / "vllm-0.32.0-windows.jsonl.gz", "--blocks", 420, "--block-size", 32)


def test_a_model_with_windows_is_replayed_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    layers = ("--layers", DATA / "cache" / "windows-config.json", "--batched-tokens", 1_024)
    got = document(capsys, *WINDOWS, *layers)
    assert got["hit_tokens"] == 56_992
    assert got["agreement"] == {"compared": 80, "equal": 80, "differences": []}
    assert got["exactness"] == "exact"
    # 12 layers with a window and 2 without share the pool as groups of 2
    assert got["groups"] == [{"block_size": 32, "window": 200}] * 6 + [{"block_size": 32, "window": None}]
    assert document(capsys, *WINDOWS)["agreement"]["equal"] < 40  # as full attention alone


def test_a_model_of_full_attention_is_replayed_as_without_naming_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = DATA / "cache" / "vllm-0.32.0-concurrent-4.jsonl.gz"
    plain = document(capsys, file, "--blocks", 300, "--block-size", 32, "--per-request")
    named = document(
        capsys, file, "--blocks", 300, "--block-size", 32, "--per-request", "--layers", "llama-3-8b"
    )
    assert named.pop("groups") == [{"block_size": 32, "window": None}]
    assert named == plain


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((*WINDOWS, "--layers", "jamba-v0.1"), "mamba"),
        ((*WINDOWS, "--layers", "gpt-oss-20b", "--curve"), "--curve"),
        ((*WINDOWS, "--layers", "gpt-oss-20b", "--policy", "lfu"), "--policy lfu"),
        ((*WINDOWS, "--layers", "gpt-oss-20b", "--replicas", 2), "what-if"),
        ((*WINDOWS, "--batched-tokens", 512), "--layers"),
        ((*WINDOWS[:1], "--blocks", 100, "--block-size", 32, "--layers", "gemma-3-27b"), "name more blocks"),
        ((MOONCAKE, "--layers", "gpt-oss-20b"), "block ids"),
    ],
)
def test_what_layers_cannot_be_asked_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[Any, ...], told: str
) -> None:
    code, _, err = ran(capsys, *arguments)
    assert code == 2
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("blocks", "hit_blocks", "hit_tokens"), [(None, 676, 345_966), (2_000, 299, 153_088)]
)
def test_a_trace_of_block_ids(
    capsys: pytest.CaptureFixture[str], blocks: int | None, hit_blocks: int, hit_tokens: int
) -> None:
    """Counts of a plain loop over an ordered dict, tail first."""
    limit = () if blocks is None else ("--blocks", blocks)
    got: dict[str, Any] = {}
    for more in ((), ("--curve",), ("--per-request",)):
        got = document(capsys, MOONCAKE, *limit, *more)
        assert (got["requests"], got["queried_tokens"], got["hit_tokens"]) == (300, 4_269_971, hit_tokens)
        assert got["block_hit_rate"] == pytest.approx(hit_blocks / 8_490)
        assert got["hit_rate"] == pytest.approx(hit_tokens / 4_269_971)
        assert got["blocks"] == blocks
        assert ("points" in got, "per_request" in got) == ("--curve" in more, "--per-request" in more)
    assert sum(row["hit_tokens"] for row in got["per_request"]) == hit_tokens


def test_the_curves_points_are_those_of_single_capacities(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, MOONCAKE, "--curve", "--blocks", 777)
    blocks = [point["blocks"] for point in got["points"]]
    assert blocks == sorted(blocks)
    assert 777 in blocks
    for point in got["points"][:: len(blocks) // 3]:
        single = document(capsys, MOONCAKE, "--blocks", point["blocks"])
        assert single["block_hit_rate"] == point["block_hit_rate"]
        assert single["hit_rate"] == point["hit_rate"]


@pytest.mark.parametrize(
    ("name", "requests", "queried_tokens", "hit_tokens"),
    [("weka-session.json", 3, 33_739, 21_952), ("weka-subagents.json", 13, 206_016, 142_720)],
)
def test_sessions_of_a_coding_agent(
    capsys: pytest.CaptureFixture[str], name: str, requests: int, queried_tokens: int, hit_tokens: int
) -> None:
    got = document(capsys, TRACES / name)
    assert (got["requests"], got["queried_tokens"], got["hit_tokens"]) == (
        requests,
        queried_tokens,
        hit_tokens,
    )


def test_ids_that_are_local_to_files_hit_in_their_own_only(capsys: pytest.CaptureFixture[str]) -> None:
    both = document(capsys, TRACES / "weka-subagents.json", TRACES / "weka-session.json")
    assert both["hit_tokens"] == 142_720 + 21_952
    assert both["distinct_blocks"] == 984 + 182


def test_three_prompts_that_share_prefixes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first = list(range(7_000))
    prompts = [
        first,
        first[:2_000] + list(range(50_000, 53_000)),
        first + list(range(60_000, 60_150)),
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
    got = document(capsys, log, "--block-size", 1, "--tokenizer", DATA / "tokenizer")
    assert got["queried_tokens"] == 19_150
    assert got["queried_tokens"] - got["hit_tokens"] == 10_150
    assert got["exactness"] == "exact"


def test_text_without_a_tokenizer_is_estimated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(f"{'a stable prompt ' * 100}first\n{'a stable prompt ' * 100}second\n")
    got = document(capsys, log, "--curve")
    assert got["exactness"] == "estimated"
    assert got["points_exactness"] == "estimated"
    assert 0.45 < got["hit_rate"] < 0.5
    code, out, _ = ran(capsys, log)
    assert code == 0
    assert "no tokenizer: four bytes of text are taken as a token" in out


def test_policies_on_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    file = DATA / "cache" / "vllm-0.32.0-sequential.jsonl.gz"
    options = (file, "--blocks", 300, "--block-size", 32)
    rates = {
        policy: document(capsys, *options, "--policy", policy)["hit_rate"]
        for policy in ("lru", "lfu", "fifo", "optimal", "infinite")
    }
    assert rates["infinite"] >= rates["optimal"] >= max(rates["lru"], rates["lfu"], rates["fifo"])
    curve = document(capsys, *options, "--curve")
    at_300 = next(point for point in curve["points"] if point["blocks"] == 300)
    assert at_300["hit_rate"] == pytest.approx(curve["hit_rate"], abs=0.005)


@pytest.mark.parametrize("name", ["vllm-0.32.0-sequential", "vllm-0.32.0-concurrent-4"])
def test_without_a_limit_the_quick_way_gives_what_the_pool_gives(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = DATA / "cache" / f"{name}.jsonl.gz"
    quick = document(capsys, file, "--block-size", 32, "--per-request")
    pool = document(capsys, file, "--block-size", 32, "--per-request", "--blocks", 1_000_000)
    assert quick["per_request"] == pool["per_request"]
    assert quick["hit_tokens"] == pool["hit_tokens"] > 45_728 - 2_000


def test_a_list_of_bodies_of_which_one_has_no_prompt(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps([{"prompt": ["two", "prompts"]}, {"prompt": "one"}], indent=1))
    got = document(capsys, log, "--tokenizer", DATA / "tokenizer")
    assert got["requests"] == 1
    (skipped,) = got["skipped"]
    assert (skipped["file"], skipped["line"]) == ("log.json", 1)
    assert "needs one prompt" in skipped["reason"]


def test_people_see_tables_and_skipped_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "trace"
    log.write_text(MOONCAKE.read_text() + "{broken\n" * 7)
    code, out, err = ran(capsys, log, "--curve", "--per-request", "--blocks", 300)
    assert code == 0
    assert "Replay of 300 requests: 300 blocks of 512 tokens, lru" in out
    assert "Capacity curve" in out
    assert "skipped trace:301: not JSON" in err
    assert "skipped 2 more lines" in err
    assert document(capsys, log)["skipped"][0] == {"file": "trace", "line": 301, "reason": _any_reason(err)}


def _any_reason(err: str) -> str:
    return err.splitlines()[0].removeprefix("skipped trace:301: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing"], "cannot be read: No such file"),
        (["."], "holds no .jsonl"),
        (["empty"], "the file is empty. Known formats: OpenAI"),
        (["trace", "--blocks", "0"], "--blocks"),
        (["trace", "--block-size", "0"], "--block-size"),
        (["trace", "--blocks", "100"], "the largest request needs 236 blocks of 512 tokens"),
        (["trace", "--blocks", "100", "--curve"], "needs 236 blocks"),
        (["trace", "--policy", "arc"], "--policy"),
        (["trace", "log"], "replay them apart"),
        (["log", "trace"], "replay the files apart"),
        (["log", "--blocks", "2"], "has only 1"),
        (["wrong", "--tokenizer", str(DATA / "tokenizer")], "the engine counted 999 prompt tokens for w"),
        (["log", "--tokenizer", "nowhere"], "no tokenizer at nowhere"),
        (["trace", "--since", "1h"], "--db and --since are of the store"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "here").mkdir()
    for name, text in {
        "empty": "",
        "trace": MOONCAKE.read_text(),
        "log": json.dumps({"prompt": "some text " * 50}),
        "wrong": json.dumps({"prompt": "x", "request_id": "w", "usage": {"prompt_tokens": 999}}),
    }.items():
        (folder / name).write_text(text)
    code, out, err = ran(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_pool_costs_what_its_traffic_uses(capsys: pytest.CaptureFixture[str]) -> None:
    file = DATA / "cache" / "vllm-0.32.0-sequential.jsonl.gz"
    largest = document(capsys, file, "--blocks", 1_000_000_000, "--block-size", 32)
    assert largest["hit_tokens"] == document(capsys, file, "--block-size", 32)["hit_tokens"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--blocks", "99999999999999999999"),
        ("--block-size", "99999999999999999999"),
        ("--replicas", "99999999999999999999"),
        ("--lower-blocks", "99999999999999999999"),
        ("--bytes-per-token", "nan"),
        ("--bytes-per-token", "inf"),
        ("--prefill-rate", "nan"),
    ],
)
def test_a_number_beyond_all_use_is_refused(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    code, out, err = ran(capsys, MOONCAKE, option, value, "--json")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"Invalid value for '{option}': {value} is " in err


def test_a_byte_order_mark_is_no_part_of_the_first_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    marked = tmp_path / "log.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + MOONCAKE.read_bytes())
    assert document(capsys, marked) == document(capsys, MOONCAKE)
