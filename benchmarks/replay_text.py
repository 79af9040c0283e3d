"""Text logs to hit rates with exact tokens, against the tokenizer alone on the same texts.

Reads real agents' prompts and a tokenizer of the data folder (``--data``, else KVSCOPE_DATA, else
../shared/data) and says so when it is absent. Every request's tokens are compared with the tokenizer's own;
the exit code is 1 where any differ. Times are of the processor. Run
``python benchmarks/replay_text.py [--json]``.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvscope.analysis.formats.detect import read
from kvscope.analysis.formats.records import Body, LoggedRequest
from kvscope.analysis.offline.replay_files import replay_files
from kvscope.analysis.offline.report import ReplayOptions
from kvscope.prompts.shared_prefix import SharedPrefixTokenizer
from kvscope.prompts.tokenizing import LocalTokenizer, load_tokenizer

_LOGS = (
    "prompts/lmcache_agent_trace/miniswe",
    "prompts/lmcache_agent_trace/taubench",
    "vllm-0.32.0/real-prompts",
)


def seconds(act: Callable[[], Any], rounds: int) -> float:
    """Return the median processor time of several runs."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        act()
        times.append(time.process_time() - began)
    return statistics.median(times)


def measured(log: Path, tokenizer: LocalTokenizer, rounds: int) -> dict[str, Any]:
    """Return times and ratios of one log; ``equal`` says whether all tokens are the tokenizer's."""
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
    equal = [list(shared.encode(each.api, each.body)) for each in prompts] == alone()

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
    return {
        "requests": len(prompts),
        "tokens": sum(map(len, alone())),
        "equal": equal,
        "hit_rate": replay_files([log], ReplayOptions(tokenizer=shared)).hit_rate,
        "seconds": spent,
        "ratio_tokens": base / spent["tokens, shared prefixes once"],
        "ratio_whole": base / spent["log to hit rate"],
    }


def main() -> int:
    """Print what was measured; the exit code is 1 where tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("KVSCOPE_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with prompts/ in it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.data / "vllm-0.32.0" / "tokenizer"
    if not folder.is_dir():
        print(f"no tokenizer at {folder}: nothing measured; name the data folder with --data or KVSCOPE_DATA")
        return 0
    tokenizer = load_tokenizer(folder)
    found = {log: measured(options.data / log, tokenizer, options.rounds) for log in _LOGS}
    if options.json:
        print(json.dumps(found))
    else:
        for log, row in found.items():
            same = "all tokens equal" if row["equal"] else "TOKENS DIFFER"
            print(f"{log}: {row['requests']:,} requests, {row['tokens']:,} tokens, {same}")
            for name, value in row["seconds"].items():
                print(f"    {name:32} {value:8.3f} s")
            print(f"    hit rate {row['hit_rate']:.3f}; times the tokenizer alone: ", end="")
            print(f"tokens {row['ratio_tokens']:.1f}, log to hit rate {row['ratio_whole']:.1f}")
    return 0 if all(row["equal"] for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
