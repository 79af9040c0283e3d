"""The what-ifs of ``kvscope replay``, and its order by the engine's events."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main

DATA = Path(__file__).parents[2] / "data"
MOONCAKE = DATA / "traces" / "mooncake-conversation-300.jsonl"
RECORDING = DATA / "cache" / "vllm-0.32.0-concurrent-4.jsonl.gz"
EVENTS = DATA / "cache" / "vllm-0.32.0-concurrent-4-events.jsonl.gz"


def ran(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["replay", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, out, err


def document(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    code, out, err = ran(capsys, *arguments, "--json")
    assert code == 0, err
    value: dict[str, Any] = json.loads(out)
    return value


def test_the_order_by_the_engines_events(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, RECORDING, "--blocks", 300, "--block-size", 32, "--kv-events", EVENTS)
    assert got["agreement"] == {"compared": 160, "equal": 160, "differences": []}
    assert "tell in which order it let 148 requests in" in got["notes"][0]


def test_two_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, MOONCAKE, "--blocks", 2_000, "--lower-blocks", 3_000)
    both = {row["rule"]: row for row in got["tiers"]}
    for size, rule in ((5_000, "exclusive"), (3_000, "inclusive")):
        alone = document(capsys, MOONCAKE, "--blocks", size)
        assert both[rule]["hit_tokens"] == alone["hit_tokens"]
        assert both[rule]["upper_hit_tokens"] == got["hit_tokens"]
    only = document(capsys, MOONCAKE, "--blocks", 2_000, "--lower-blocks", 3_000, "--tier-rule", "exclusive")
    assert only["tiers"] == [both["exclusive"]]


def test_replicas_and_ways_to_route(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, MOONCAKE, "--replicas", 3)
    rates = {row["routing"]: row["hit_rate"] for row in got["routing"]}
    assert list(rates) == ["round_robin", "session", "prefix"]
    assert rates["round_robin"] < rates["session"] <= got["hit_rate"]
    assert rates["round_robin"] < rates["prefix"] <= got["hit_rate"]
    one = document(capsys, MOONCAKE, "--replicas", 1, "--routing", "prefix")
    assert one["routing"][0]["hit_rate"] == one["hit_rate"]
    assert one["routing"][0]["imbalance"] == 1.0


def test_block_sizes_of_the_same_memory(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, RECORDING, "--block-size", 32, "--compare-block-sizes", "64,16,32")
    sizes = {row["block_size"]: row for row in got["block_sizes"]}
    assert list(sizes) == [16, 32, 64]
    assert sizes[16]["hit_tokens"] >= sizes[32]["hit_tokens"] >= sizes[64]["hit_tokens"] > 0
    limited = document(
        capsys, RECORDING, "--block-size", 32, "--blocks", 300, "--compare-block-sizes", "16,32"
    )
    assert [row["blocks"] for row in limited["block_sizes"]] == [600, 300]


def test_what_memory_is_worth(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--bytes-per-token", 131_072, "--prefill-rate", 8_000)
    got = document(capsys, MOONCAKE, "--blocks", 2_000, *options)
    (mine,) = [row for row in got["worth"] if row["blocks"] == 2_000]
    assert mine["gib"] == 2_000 * 512 * 131_072 / 2**30
    assert mine["hit_tokens"] == got["hit_tokens"]
    assert mine["prefill_seconds_saved"] == got["hit_tokens"] / 8_000
    assert mine["prefill_seconds_saved_per_gib"] == pytest.approx(mine["prefill_seconds_saved"] / mine["gib"])
    by_model = document(capsys, MOONCAKE, "--blocks", 2_000, "--model", "llama-3-8b")
    (theirs,) = [row for row in by_model["worth"] if row["blocks"] == 2_000]
    assert theirs["gib"] == mine["gib"]  # 2 x 32 layers x 8 heads x 128 x 2 bytes a token
    assert theirs["prefill_seconds_saved"] is None


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--lower-blocks", 9, "--replicas", 2, "--compare-block-sizes", "32", "--model", "llama-3-8b")
    code, out, _ = ran(capsys, RECORDING, "--block-size", 32, "--blocks", 300, *options)
    assert code == 0
    for title in ("Two tiers", "2 replicas", "Block sizes", "What the memory is worth"):
        assert title in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--lower-blocks", 5), "name its --blocks too"),
        (("--tier-rule", "exclusive"), "--tier-rule belongs to --lower-blocks"),
        (("--routing", "prefix"), "--routing to --replicas"),
        (("--compare-block-sizes", "16"), "need prompts as text or tokens"),
        (("--compare-block-sizes", "16;32"), "write tokens a block as 16,32,64"),
        (("--compare-block-sizes", "0"), "a block holds 1 to 65,536 tokens"),
        (("--prefill-rate", 5), "--model or --bytes-per-token"),
        (("--model", "llama-3-8b", "--bytes-per-token", 5), "leave --bytes-per-token out"),
        (("--kv-events", EVENTS), "requests of block ids have no tokens"),
        (("--kv-events", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
    ],
)
def test_bad_what_ifs_are_one_line(
    capsys: pytest.CaptureFixture[str], options: tuple[Any, ...], said: str
) -> None:
    code, out, err = ran(capsys, MOONCAKE, *options)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


def test_events_of_another_engine_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    other = DATA / "cache" / "vllm-0.23.0-sequential-events.jsonl.gz"
    code, _, err = ran(capsys, RECORDING, "--block-size", 32, "--kv-events", other)
    assert code == 2
    assert "tell of none of the requests" in err
