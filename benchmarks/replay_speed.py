"""How fast traces of block ids are replayed, beside peers that do the same.

Reads ``traces/`` of the data folder (``--data``, else KVSCOPE_DATA, else ../shared/data) and says so when it
is absent. ``--peers DIR`` names a virtual environment with kvcache-simulator 0.1.3 and prefixlens 0.1.0 in
it, to be timed in the same run: their whole processes, and inside them reading and replaying alone. The
longer trace is so many copies of the published one (``--copies``), each with ids and times of its own. Times
are of the processor, so that what else the machine does matters less. Run
``python benchmarks/replay_speed.py [--peers DIR] [--json]``.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvscope.analysis.offline.load import load
from kvscope.cache.curve import capacity_curve
from kvscope.cache.policies import hit_blocks
from kvscope.cache.traces import BlockTrace

_TRACE = "mooncake/conversation_trace.jsonl"
_BLOCK_SIZE = 512
_CAPACITY = 30_000
_SIMULATOR = """
from kvcache_sim.cpp_backend import run_cpp_sweep
from kvcache_sim.trace import parse_trace_file
read = lambda: parse_trace_file(sys.argv[1], block_size=512)
replay = lambda trace: run_cpp_sweep(trace, capacities=[30000], policies=["lru"], warmup_requests=0)
"""
_LENS = """
from prefixlens.loader import load_jsonl
from prefixlens.simulator import RadixCacheSimulator
read = lambda: list(load_jsonl(sys.argv[1]))
def replay(requests):
    simulator = RadixCacheSimulator(1, 30000)
    for request in requests:
        simulator.process(request)
"""
_INSIDE = """
import json, os, sys
{ways}
def spent():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
began = spent()
given = read()
read_at = spent()
replay(given)
print(json.dumps({{"read": read_at - began, "replay": spent() - read_at}}))
"""


def traced(*files: Path) -> BlockTrace:
    """Return files' block ids as columns."""
    builder = load(files, block_size=None, tokenizer=None, keep_ids=False).builder
    if builder is None:
        raise SystemExit(f"{files} hold no block ids")
    return builder.build()[0]


def processor_seconds() -> float:
    """Return the time that the processor spent for this process and those that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def seconds(act: Callable[[], Any], rounds: int, times_a_round: int = 1) -> float:
    """Return the median time of several rounds; the clock ticks a hundred times a second."""
    times = []
    for _ in range(rounds):
        began = processor_seconds()
        for _ in range(times_a_round):
            act()
        times.append((processor_seconds() - began) / times_a_round)
    return statistics.median(times)


def plain_lru(requests: Sequence[Sequence[int]], capacity: int) -> int:
    """Return the hit blocks of one capacity as a loop of plain Python finds them."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for blocks in requests:
        found = 0
        while found < len(blocks) and blocks[found] in cache:
            found += 1
        hits += found
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def copied(file: Path, copies: int, out: Path) -> Path:
    """Write a trace so many times over, each time with ids and times of its own."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    ids = 1 + max(max(row["hash_ids"], default=0) for row in rows)
    span = 1 + rows[-1]["timestamp"]
    with out.open("w") as lines:
        for copy in range(copies):
            for row in rows:
                own = {"hash_ids": [block + copy * ids for block in row["hash_ids"]]}
                lines.write(json.dumps({**row, "timestamp": row["timestamp"] + copy * span, **own}) + "\n")
    return out


def own_speeds(file: Path, rounds: int, times_a_round: int) -> dict[str, float]:
    """Return seconds of each way through one trace."""
    trace = traced(file)
    blocks = trace.blocks.tolist()
    requests = [blocks[start:end] for start, end in itertools.pairwise(trace.starts.tolist())]
    if plain_lru(requests, _CAPACITY) != capacity_curve(trace).hits(_CAPACITY)[0]:
        raise AssertionError("the ways do not find the same hits")
    ways: dict[str, Callable[[], Any]] = {
        "read": lambda: traced(file),
        "replay": lambda: hit_blocks(trace, "lru", _CAPACITY).sum(),
        "the whole curve": lambda: capacity_curve(trace).points(),
        "replay, a loop of plain Python": lambda: plain_lru(requests, _CAPACITY),
    }
    return {name: seconds(way, rounds, times_a_round) for name, way in ways.items()}


def finished(command: Sequence[Any]) -> str:
    """Run a command to its end and return what it prints; raises where it fails."""
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def peer_speeds(file: Path, as_tokens: Path, peers: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return seconds of each peer: inside its process, reading and replaying, and the whole process."""
    simulator = [peers / "bin/kvcache-simulator", "run", "--trace", file, "--block-size", _BLOCK_SIZE]
    simulator += ["--model", "llama-3.1-8b", "--budgets-gib", 512, "--policies", "lru", "--format", "json"]
    lens = [peers / "bin/prefixlens", "analyze", as_tokens, "--block-size", 1, "--capacity-blocks", _CAPACITY]
    finished(simulator)  # it compiles first
    found = {}
    for name, command, ways, read in (
        ("kvcache-simulator, C++", simulator, _SIMULATOR, file),
        ("prefixlens", lens, _LENS, as_tokens),
    ):
        script = [peers / "bin/python", "-c", _INSIDE.format(ways=ways), read]
        inside = [json.loads(finished(script)) for _ in range(rounds)]
        found[name] = {part: statistics.median(each[part] for each in inside) for part in ("read", "replay")}
        found[name]["process"] = seconds(lambda command=command: finished(command), rounds)
    return found


def beside_peers(file: Path, folder: Path, peers: Path | None, rounds: int, times: int) -> dict[str, Any]:
    """Return seconds of kvscope and its peers on one trace."""
    found: dict[str, dict[str, float]] = {"kvscope": own_speeds(file, rounds, times)}
    ours = [Path(sys.executable).parent / "kvscope", "replay", file, "--blocks", _CAPACITY, "--json"]
    found["kvscope"]["process"] = seconds(lambda: finished(ours), rounds)
    found["kvscope"]["process, --curve"] = seconds(lambda: finished([*ours, "--curve"]), rounds)
    if peers is not None:
        as_tokens = folder / "tokens.jsonl"  # a block id as a token, in blocks of one
        with file.open() as lines, as_tokens.open("w") as out:
            for number, line in enumerate(lines):
                value = {"request_id": str(number), "token_ids": json.loads(line)["hash_ids"], "tags": {}}
                out.write(json.dumps(value) + "\n")
        found |= peer_speeds(file, as_tokens, peers, rounds)
    return found


def ratios(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return how many times as long the others take."""
    ours = found["kvscope"]
    made = {
        "whole curve to one capacity": ours["the whole curve"] / ours["replay"],
        "file to whole curve, to file to one capacity": (ours["read"] + ours["the whole curve"])
        / (ours["read"] + ours["replay"]),
    }
    for name, theirs in found.items():
        if name != "kvscope":
            whole = (theirs["read"] + theirs["replay"]) / (ours["read"] + ours["replay"])
            made[f"{name}: file to hit rate"] = whole
            made[f"{name}: replay alone"] = theirs["replay"] / ours["replay"]
            made[f"{name}: whole process"] = theirs["process"] / ours["process"]
    return made


def memory_per_block(*files: Path) -> float:
    """Return the peak of allocated bytes, file to curve, for each distinct block of a trace."""
    tracemalloc.start()
    trace = traced(*files)
    capacity_curve(trace).points()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / trace.distinct


def main() -> int:
    """Print times, ratios and bytes a block."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("KVSCOPE_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with traces/ in it")
    parser.add_argument("--peers", type=Path, help="virtual environment with the peers")
    parser.add_argument("--copies", type=int, default=10, help="of the trace in the longer one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.data / "traces"
    if not (folder / _TRACE).is_file():
        print(f"no traces at {folder}: nothing measured; name the data folder with --data or KVSCOPE_DATA")
        return 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        longer = copied(folder / _TRACE, options.copies, scratch / "longer.jsonl")
        traces = {"conversation": (folder / _TRACE, 10), f"{options.copies} conversations": (longer, 1)}
        found = {
            label: beside_peers(file, scratch, options.peers, options.rounds, times)
            for label, (file, times) in traces.items()
        }
        memory = {label: memory_per_block(file) for label, (file, _) in traces.items()}
    memory["coding-agent sessions"] = memory_per_block(*sorted((folder / "weka_cc").glob("*.json")))
    made = {label: ratios(each) for label, each in found.items()}
    if options.json:
        print(json.dumps({"seconds": found, "ratios": made, "bytes_a_distinct_block": memory}))
        return 0
    for label, each in found.items():
        for who, parts in each.items():
            for part, value in parts.items():
                print(f"{label + ': ' + who + ', ' + part:72} {value:9.4f} s")
        for part, value in made[label].items():
            print(f"{label + ': ' + part:72} {value:9.2f} times")
    for label, value in memory.items():
        print(f"{label + ': peak of memory, file to curve':72} {value:9.1f} bytes a distinct block")
    return 0


if __name__ == "__main__":
    sys.exit(main())
