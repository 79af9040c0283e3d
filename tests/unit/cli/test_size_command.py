"""``kvscope size``: the document, the page for people, and one line for each mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main
from kvscope.cli.size import human, parse_bytes
from kvscope.errors import UsageError


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["size", *arguments])
    return int(ended.value.code or 0)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "llama-3-70b", "--tokens", "4096", "--gpu-memory", "80GiB")
    assert found["bytes_per_token"] == 327_680
    assert found["bytes"] == 1_342_177_280
    assert found["naive_bytes"] == 10_737_418_240
    assert found["concurrent_requests"] == 64
    assert found["gpu_memory_bytes"] == 80 * 2**30
    assert found["layers"] == [
        {
            "kind": "full_attention", "layers": 80, "kv_heads": 8, "head_dim": 128, "window_tokens": None,
            "bytes_per_token": 327_680, "state_bytes": 0, "bytes": 1_342_177_280,
        }
    ]  # fmt: skip
    assert document(capsys, "llama-3-70b")["tokens"] == 8192
    assert document(capsys, "llama-3-70b")["concurrent_requests"] is None


def test_options_reach_the_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    plain = document(capsys, "llama-3-70b", "--tokens", "4096")
    fp8 = document(capsys, "llama-3-70b", "--tokens", "4096", "--dtype", "fp8")
    assert (fp8["dtype"], fp8["bytes"] * 2) == ("fp8", plain["bytes"])
    share = document(capsys, "llama-3-70b", "--tokens", "4096", "--tensor-parallel", "8")
    assert share["bytes"] * 8 == plain["bytes"] == share["bytes_all_gpus"]
    blocks = document(capsys, "llama-3-70b", "--tokens", "33", "--block-size", "32")
    assert (blocks["block_size"], blocks["blocks_per_request"]) == (32, 2)
    hybrid = document(capsys, "jamba-v0.1", "--tokens", "100")
    single = document(capsys, "jamba-v0.1", "--tokens", "100", "--no-prefix-caching")
    assert hybrid["blocks_per_request"] == single["blocks_per_request"] + 7  # groups of 4 state layers
    wide = document(capsys, "jamba-v0.1", "--state-dtype", "float32", "--dtype", "auto")
    assert wide["state_bytes"] > hybrid["state_bytes"]


def test_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[2] / "data" / "tokenizer"
    found = document(capsys, str(folder))
    assert found["bytes_per_token"] == 2 * 2 * 32 * 2 * 4
    assert found["tokens"] == 16_384


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gemma-3-27b", "--tokens", "32768", "--gpu-memory", "40 GiB", "--tensor-parallel", "2") == 0
    page = capsys.readouterr().out
    assert "sliding_window" in page
    assert "(40,960 once the windows are full)" in page
    assert "all GPUs    3.12 GB" in page
    assert "14 times what the model needs" in page
    assert "concurrent" in page


def test_an_empty_model_has_no_size(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "model_type": "nemotron_h", "hidden_size": 8, "num_hidden_layers": 2, "hybrid_override_pattern": "--",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = document(capsys, str(tmp_path), "--gpu-memory", "1GB")
    assert (found["bytes"], found["concurrent_requests"], found["naive_ratio"]) == (0, None, None)
    assert run(str(tmp_path)) == 0
    assert "no layer keeps anything" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-9",), "neither a config.json"),
        (("llama-3-70b", "--tensor-parallel", "7"), "--tensor-parallel 7 does not share out the heads"),
        (("llama-3-70b", "--gpu-memory", "lots"), "'lots' is not a size"),
        (("llama-3-70b", "--gpu-memory", "0"), "'0' is not a size of memory"),
        (("llama-3-70b", "--dtype", "fp7"), "data type 'fp7' is not known"),
        (("llama-3-70b", "--tokens", "0"), "--tokens"),
        (("llama-3-70b", "--block-size", "0"), "--block-size"),
        (("llama-3-70b", "--as", "x"), "--as 'x' is not a known model_type"),
        ((), "Missing argument 'CONFIG'"),
    ],
)
def test_mistakes_take_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(*arguments) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_sizes_of_people() -> None:
    assert parse_bytes("80GiB") == parse_bytes("80 gib") == 80 * 2**30
    assert parse_bytes("24GB") == 24 * 10**9
    assert parse_bytes("1.5MiB") == 3 * 2**19
    assert parse_bytes("1073741824") == parse_bytes("1073741824B") == 2**30
    for wrong in ("", "GB", "-1GB", "1e9", "8G", "1 GB each", "9999999TB"):
        with pytest.raises(UsageError, match="is not a size"):
            parse_bytes(wrong)
    assert human(999_999) == "999,999 B"
    assert human(1_342_177_280) == "1.34 GB (1.25 GiB)"
