"""Text logs to hit rates with exact tokens, against the tokenizer alone on the same texts.

Reads real agents' prompts and a tokenizer of the data folder (``--data``, else KVSCOPE_DATA, else
../shared/data) and says so when it is absent. Every request's tokens are compared with the tokenizer's own;
the exit code is 1 where any differ. Beside the ratio stands the bound that a tokenizer would have which did
nothing but tokenise, once, what no earlier prompt had begun with. ``--peers DIR`` names a virtual environment
with kvlint 0.1.1 in it, to be timed on the same texts in the same run, with and without its start. Times are
of the processor. Run ``python benchmarks/replay_text.py [--peers DIR] [--json]``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvscope.analysis.formats.detect import read
from kvscope.analysis.formats.records import Body, LoggedRequest
from kvscope.analysis.offline.replay_files import replay_files
from kvscope.analysis.offline.report import ReplayOptions
from kvscope.cache.hashing import ChainMemo, block_chain
from kvscope.prompts.shared_prefix import SharedPrefixTokenizer
from kvscope.prompts.tokenizing import load_tokenizer

_LOGS = (
    "prompts/lmcache_agent_trace/miniswe",
    "prompts/lmcache_agent_trace/taubench",
    "vllm-0.32.0/real-prompts",
)


_KVLINT = """
import sys, time
from kvlint.cli import app
for _ in range(2):
    began = time.process_time()
    try:
        app(sys.argv[1:], standalone_mode=False)
    except SystemExit as ended:
        assert not ended.code
    spent = time.process_time() - began
print()
print(spent)
"""


def seconds(act: Callable[[], Any], rounds: int) -> float:
    """Return the median processor time of several runs."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        act()
        times.append(time.process_time() - began)
    return statistics.median(times)


def new_share(prompts: Sequence[Sequence[int]]) -> float:
    """Return the share of tokens that stand behind no beginning of an earlier prompt, in fours."""
    memo = ChainMemo()
    chains = [block_chain(tokens, 4, memo=memo) for tokens in prompts]
    return len({block for chain in chains for block in chain}) / sum(map(len, chains))


def beside_kvlint(texts: Sequence[str], folder: Path, peers: Path) -> dict[str, float]:
    """Return processor seconds of processes that replay the same texts, and of kvlint without its start.

    That is its second run in one process: the first one has loaded its libraries.
    """
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "prompts.jsonl"
        log.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        kvscope = [Path(sys.executable).parent / "kvscope", "replay", log, "--tokenizer", folder, "--json"]
        analyze = ["analyze", log, "--format", "plain", "--model", folder, "--engine", "vllm"]
        warm, _ = finished([peers / "bin/python", "-c", _KVLINT, *analyze])
        return {
            "whole process, kvscope": finished(kvscope)[1],
            "whole process, kvlint": finished([peers / "bin/kvlint", *analyze])[1],
            "log to hit rate, kvlint": float(warm.splitlines()[-1]),
        }


def finished(command: Sequence[Any]) -> tuple[str, float]:
    """Run a command to its end; return what it prints and its processor time. Raises where it fails."""
    began = os.times()
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, env=offline, text=True)
    ended = os.times()
    children = ended.children_user - began.children_user + ended.children_system - began.children_system
    return done.stdout, children


def measured(log: Path, folder: Path, rounds: int, peers: Path | None) -> dict[str, Any]:
    """Return times and ratios of one log; ``equal`` says whether all tokens are the tokenizer's."""
    tokenizer = load_tokenizer(folder)
    prompts = [
        each.prompt
        for each in read([log])
        if isinstance(each, LoggedRequest) and isinstance(each.prompt, Body)
    ]
    rendered = [tokenizer.prompt(each.api, each.body) for each in prompts]
    texts = [each for each in rendered if isinstance(each, tuple)]
    encode = tokenizer.backend.encode

    def alone() -> list[list[int]]:
        return [encode(text, add_special_tokens=special).ids for text, special in texts]

    def whole() -> None:
        replay_files([log], ReplayOptions(tokenizer=SharedPrefixTokenizer(tokenizer)))

    shared = SharedPrefixTokenizer(tokenizer)
    own = alone()
    equal = [list(shared.encode(each.api, each.body)) for each in prompts] == own

    def sharing() -> None:
        fresh = SharedPrefixTokenizer(tokenizer)
        for each in prompts:
            fresh.encode(each.api, each.body)

    spent = {
        "tokenizer alone": seconds(alone, rounds),
        "tokens, shared prefixes once": seconds(sharing, rounds),
        "log to hit rate": seconds(whole, rounds),
    }
    base = spent["tokenizer alone"]
    found = {
        "requests": len(prompts),
        "tokens": sum(map(len, own)),
        "equal": equal,
        "hit_rate": replay_files([log], ReplayOptions(tokenizer=shared)).hit_rate,
        "seconds": spent,
        "ratio_tokens": base / spent["tokens, shared prefixes once"],
        "ratio_whole": base / spent["log to hit rate"],
        "bound": 1 / new_share(own),
    }
    if peers is not None:
        beside = found["beside"] = beside_kvlint([text for text, _ in texts], folder, peers)
        found["ratio_kvlint"] = beside["log to hit rate, kvlint"] / spent["log to hit rate"]
        found["ratio_kvlint_process"] = beside["whole process, kvlint"] / beside["whole process, kvscope"]
    return found


def main() -> int:
    """Print what was measured; the exit code is 1 where tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("KVSCOPE_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with prompts/ in it")
    parser.add_argument("--peers", type=Path, help="virtual environment with kvlint")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.data / "vllm-0.32.0" / "tokenizer"
    if not folder.is_dir():
        print(f"no tokenizer at {folder}: nothing measured; name the data folder with --data or KVSCOPE_DATA")
        return 0
    found = {log: measured(options.data / log, folder, options.rounds, options.peers) for log in _LOGS}
    if options.json:
        print(json.dumps(found))
    else:
        for log, row in found.items():
            same = "all tokens equal" if row["equal"] else "TOKENS DIFFER"
            print(f"{log}: {row['requests']:,} requests, {row['tokens']:,} tokens, {same}")
            for name, value in row["seconds"].items():
                print(f"    {name:32} {value:8.3f} s")
            print(f"    hit rate {row['hit_rate']:.3f}; times the tokenizer alone: ", end="")
            print(f"tokens {row['ratio_tokens']:.1f}, log to hit rate {row['ratio_whole']:.1f}", end="")
            print(f"; tokenising only what is new, once: {row['bound']:.1f}")
            for name, value in row.get("beside", {}).items():
                print(f"    {name:32} {value:8.3f} s")
            if "ratio_kvlint" in row:
                print(f"    kvlint: {row['ratio_kvlint']:.1f} times log to hit rate, ", end="")
                print(f"{row['ratio_kvlint_process']:.1f} times the whole process")
    return 0 if all(row["equal"] for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
