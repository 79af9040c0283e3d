"""From a trace of 100,000 requests of 2,000 tokens (125 block hashes each) to suggestions: `kvscope suggest`.

    python benchmarks/suggest_hashed.py [--requests 100000] [--blocks 20000]

The trace is made up, in Mooncake's form: sessions of ten requests that grow, twenty applications with 40
blocks of their own in front. Reading the file is in the figures; they are of the child process, one core.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCK, BLOCKS_EACH, SHARED = 16, 125, 40


def write_trace(path: Path, count: int) -> None:
    """Write ``count`` requests, half a second apart."""
    rng = random.Random(6)
    fresh = 10**6
    sessions: list[list[int]] = [[] for _ in range(200)]
    with path.open("w") as file:
        for number in range(count):
            at = rng.randrange(len(sessions))
            past = sessions[at] if len(sessions[at]) < 80 else []
            new = BLOCKS_EACH - SHARED - len(past)
            ids = [*range(at % 20 * SHARED, (at % 20 + 1) * SHARED), *past, *range(fresh, fresh + new)]
            sessions[at] = ids[SHARED : SHARED + len(past) + 8]
            fresh += new
            line = {
                "timestamp": number * 500,
                "input_length": len(ids) * BLOCK,
                "output_length": 100,
                "hash_ids": ids,
            }
            file.write(json.dumps(line) + "\n")


def main() -> None:
    """Make a trace, run the command, print what it took."""
    parser = argparse.ArgumentParser(description="A hashed trace to suggestions.")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        write_trace(trace, options.requests)
        command = [sys.executable, "-c", "from kvscope.cli.main import main; main()", "suggest", str(trace)]
        began = time.perf_counter()
        done = subprocess.run(
            [*command, "--block-size", str(BLOCK), "--blocks", str(options.blocks)],
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = {
        "exit_code": done.returncode,
        "requests": options.requests,
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "seconds": round(time.perf_counter() - began, 1),
        "peak_mib": used.ru_maxrss // 1024,
    }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
