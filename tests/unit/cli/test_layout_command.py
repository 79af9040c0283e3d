"""``kvscope layout``: the documents that programs read, exit codes, and drafts that render what was mined."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main
from kvscope.model.prompt import TransformSpec
from kvscope.prompts.layouts.plan import compile_layout
from kvscope.prompts.layouts.schema import read_layout
from kvscope.prompts.tokenizing import load_tokenizer
from kvscope.prompts.transforms import apply_transforms

ROOT = Path(__file__).parents[3]
SUPPORT = ROOT / "examples" / "layouts" / "support.yaml"
TOKENIZER = ROOT / "tests" / "data" / "tokenizer"
PROMPTS = ROOT / "tests" / "data" / "prompts" / "routes.json.gz"
GIVEN = ("--var", "product=app", "--var", "customer=Ann", "--var", "now=12:00")


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["layout", *map(str, arguments)])
    return int(ended.value.code or 0)


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_check_tells_what_stays_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", SUPPORT.parent, "--tokenizer", TOKENIZER, "--json") == 0
    (row,) = document(capsys)["files"]
    assert (row["ok"], row["fault"], row["layout"], row["warnings"]) == (True, None, "support", [])
    default, late = row["variants"]
    assert default["segments"] == ["rules", "product", "customer", "messages", "clock"]
    assert (default["name"], late["name"]) == ("default", "customer_at_end")
    assert default["static_blocks"] == default["static_tokens"] // 16
    assert (default["static_tokens"] + default["padding_tokens"]) % 16 == 0


def test_check_finds_the_padding_that_fills_the_last_block(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(
        "variables: {now: {}}\nsegments:\n"
        "- {name: rules, role: system, scope: global, text: 'You help with the orders of a shop.'}\n"
        "- {name: clock, role: system, text: 'Time: {{ now }}'}"
    )
    assert run("check", tmp_path, "--tokenizer", TOKENIZER, "--json") == 0
    (variant,) = document(capsys)["files"][0]["variants"]
    assert variant["padding_tokens"] > 0
    spec = TransformSpec.from_json(variant["align"])
    assert spec.kind == "align_block"
    tokens = []
    for now in ("11:00", "noon"):
        text = f"You help with the orders of a shop.\n\nTime: {now}"
        body = {"messages": [{"role": "system", "content": text}, {"role": "user", "content": now}]}
        tokens.append(load_tokenizer(TOKENIZER).encode("chat", apply_transforms([spec], "chat", body)))
    shared = next(at for at, pair in enumerate(zip(*tokens, strict=False)) if pair[0] != pair[1])
    assert shared % 16 == 0


def test_check_tells_faults_and_segments_in_the_wrong_order(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(
        "variables: {v: {}, idle: {}}\n"
        "segments: [{name: v, role: system, scope: session, text: '{{ v }}'},"
        " {name: r, role: system, scope: global, text: x}]"
    )
    (tmp_path / "b.yaml").write_text("segments: 1")
    (tmp_path / "c.yaml").write_text("layout: a\nsegments: []")
    assert run("check", tmp_path, "--json") == 1
    first, second, third = document(capsys)["files"]
    unused, broken = first["warnings"]
    assert unused == "variable idle is used in no segment"
    assert broken.startswith("variant default: v (session) stands before r, which changes less often")
    assert (second["ok"], second["fault"][:8]) == (False, "segments")
    assert "rename one" in third["fault"]
    assert run("check", tmp_path) == 1
    page = capsys.readouterr().out
    assert "b.yaml: segments: expected" in page
    assert "a.yaml: layout a is right" in page


def test_render_gives_what_the_engine_gets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "Where?"}]}))
    assert run("render", SUPPORT, *GIVEN, "--body", body, "--json") == 0
    found = document(capsys)
    assert found["body"]["model"] == "m"
    assert found["body"]["messages"][1] == {"role": "user", "content": "Where?\n\nCurrent time: 12:00"}
    assert found["body"]["messages"][0]["content"].endswith("The customer is Ann (plan: free).")
    assert run("render", SUPPORT, "--variables", '{"product": "shop", "customer": "Bo", "now": "1"}') == 0
    assert "[user]\nCurrent time: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("render", SUPPORT), "missing variable: customer, now, product"),
        (("render", SUPPORT, *GIVEN, "--variant", "z"), "no variant 'z'; known: default, customer_at_end"),
        (("render", SUPPORT, "--var", "x"), "--var 'x': write NAME=VALUE"),
        (("render", SUPPORT, "--variables", "[]"), "--variables: a JSON object is needed, not list"),
        (("render", SUPPORT, "--variables", "{"), "--variables: not JSON"),
        (("diff", SUPPORT, "--to", "z"), "no variant 'z'"),
        (("check", TOKENIZER), "no layout in this folder"),
        (("mine", SUPPORT), "no chat request in"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str | Path, ...], told: str
) -> None:
    assert run(*arguments) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_diff_tells_where_two_variants_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", SUPPORT, "--json") == 0
    (found,) = document(capsys)["comparisons"]
    assert (found["from"], found["to"], found["same"]) == (
        "support/default",
        "support/customer_at_end",
        False,
    )
    assert found["same_lines"] == 9
    assert "-The customer is {{ customer }} (plan: {{ tier }})." in found["diff"]
    assert run("diff", SUPPORT, SUPPORT) == 0
    assert "support/default → support/default" in capsys.readouterr().out


def test_mined_drafts_render_what_the_prompts_share(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rng = random.Random(1)
    schema = json.loads(gzip.decompress(PROMPTS.read_bytes()))["apis"]["message_api"]
    names = rng.sample(["Ann", "Bo", "Cleo", "Dan", "Eve", "Flo", "Gus", "Hal"], 8)
    lines = []
    for minute, name in enumerate(names):
        system = f"You help.\nTime: 10:{minute:02}\n{schema}\nThe customer is {name}. Use {{{{ braces }}}}."
        messages = [{"role": "system", "content": system}, {"role": "user", "content": name}]
        lines.append(json.dumps({"model": "m", "messages": messages}))
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines))
    assert run("mine", log, "-o", tmp_path / "drafts", "--json") == 0
    (row,) = document(capsys)["layouts"]
    assert [piece["static"] for piece in row["pieces"]] == [True, False, True, False, True]
    assert row["static_prefix_chars"] == len("You help.\nTime: ")
    plan = compile_layout(read_layout(Path(row["draft"])))
    made = plan.render({}, {"v1": "10:07", "v2": "Zoe."})
    wanted = f"You help.\nTime: 10:07\n{schema}\nThe customer is Zoe. Use {{{{ braces }}}}."
    assert made["messages"] == [{"role": "system", "content": wanted}]
    # a draft that a person may have worked on is not overwritten
    assert run("mine", log, "-o", tmp_path / "drafts") == 2
    assert "File exists" in capsys.readouterr().err
