"""How fast KV events are decoded and indexed on one core, and what a block costs in memory.

The events are vLLM's: maps, blocks of 16 tokens, 16 blocks an event, a removal an event. Once the cache has
room; once it is full, so that each stored block costs another one its place. Beside them the least that
anybody pays: msgpack alone reading the same payloads, and, for memory, a Python dict of two times a block.
Run ``python benchmarks/kv_events.py [--memory-blocks 10000000] [--json]``.
"""

import argparse
import json
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from collectors.kv_events.decode import decode_payload
from kvscope.cache.index import BlockIndex
from kvscope.model.telemetry import BlockStored, CacheEventBatch

_AIM = 200_000
_TOKENS, _BLOCKS = 16, 16  # of a block, of an event
_EVENTS = 8  # stores of a batch


def payloads(blocks: int, cache_blocks: int, seed: int) -> Iterator[bytes]:
    """Yield batches that store ``blocks`` and, from a full cache on, remove as many."""
    chance = random.Random(seed)
    cached: list[int] = []
    for number in range(blocks // (_BLOCKS * _EVENTS)):
        events: list[dict[str, object]] = []
        for _ in range(_EVENTS):
            hashes = [chance.getrandbits(64) for _ in range(_BLOCKS)]
            if len(cached) >= cache_blocks:
                gone, cached = cached[:_BLOCKS], cached[_BLOCKS:]
                events += [{"type": "BlockRemoved", "block_hashes": [one], "medium": "GPU"} for one in gone]
            cached += hashes
            events.append(
                {
                    "type": "BlockStored",
                    "block_hashes": hashes,
                    "parent_block_hash": None,
                    "token_ids": [chance.randrange(128_000) for _ in range(_BLOCKS * _TOKENS)],
                    "block_size": _TOKENS,
                    "lora_id": None,
                    "medium": "GPU",
                    "group_idx": 0,
                }
            )
        yield msgspec.msgpack.encode([float(number), events, 0])


def kvscope_seconds(made: list[bytes]) -> list[float]:
    """Return the processor time of decoding and indexing each payload; raises when a block went missing."""
    index = BlockIndex()
    seconds = []
    for sequence, payload in enumerate(made):
        began = time.process_time()
        batch = decode_payload(payload)
        index.apply(
            CacheEventBatch(engine="e", replica="0", sequence=sequence, at=batch.at, events=batch.events)
        )
        seconds.append(time.process_time() - began)
    if index.unknown_blocks or index.partial:
        raise AssertionError("the index does not know all blocks")
    return seconds


def msgpack_seconds(made: list[bytes]) -> list[float]:
    """Return the processor time of reading each payload into plain lists and maps."""
    seconds = []
    for payload in made:
        began = time.process_time()
        msgspec.msgpack.decode(payload)
        seconds.append(time.process_time() - began)
    return seconds


def undisturbed(measure: Callable[[list[bytes]], list[float]], made: list[bytes], rounds: int) -> float:
    """Return the time of all payloads, of each the least of ``rounds``: what else ran is not ours."""
    each = zip(*(measure(made) for _ in range(rounds)), strict=True)
    return sum((min(seconds) for seconds in each), start=0.0)


def fill_index(blocks: int) -> int:
    """Store ``blocks`` in an index that may hold no more; return how many it holds."""
    index = BlockIndex(max_blocks=blocks)
    chance = random.Random(2)
    for sequence in range(blocks // 4_096):
        hashes = tuple(chance.getrandbits(64) for _ in range(4_096))
        # one token a block: tokens are not kept, and making them would take most of the time
        event = BlockStored(
            block_hashes=hashes,
            parent_block_hash=None,
            token_ids=tuple(one >> 33 for one in hashes),
            block_size=1,
        )
        index.apply(CacheEventBatch(engine="e", replica="0", sequence=sequence, at=sequence, events=(event,)))
    return len(index)


def fill_dict(blocks: int) -> int:
    """Do the least that Python's own containers would need: a hash to two times."""
    chance = random.Random(2)
    known = {chance.getrandbits(64): [float(number), float(number)] for number in range(blocks)}
    return len(known)


def bytes_a_block(fill: Callable[[int], int], blocks: int) -> float:
    """Return the memory that ``fill`` takes for each block, at its peak, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_grown, (fill, blocks))


def _grown(fill: Callable[[int], int], blocks: int) -> float:
    fill(4_096)  # what the first use takes is not the blocks'
    before = _peak_bytes()
    held = fill(blocks)
    return (_peak_bytes() - before) / held


def _peak_bytes() -> int:
    """Return this process's largest resident memory.

    Not ``ru_maxrss`` where Linux tells better: that one begins with what the parent process had.
    """
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1_024)


def main() -> None:
    """Print blocks a second, the ratio to msgpack alone, and bytes a block."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=100_000, help="blocks stored in each round")
    parser.add_argument("--memory-blocks", type=int, default=1_000_000, help="blocks held for the memory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, float] = {"aim_blocks_per_second": _AIM}
    for name, cache_blocks in (("with_room", options.blocks), ("full", options.blocks // 4)):
        made = list(payloads(options.blocks, cache_blocks, seed=1))
        stored = len(made) * _BLOCKS * _EVENTS
        own = undisturbed(kvscope_seconds, made, options.rounds)
        plain = undisturbed(msgpack_seconds, made, options.rounds)
        found[f"blocks_per_second_{name}"] = stored / own
        found[f"ratio_to_msgpack_{name}"] = plain / own
    found["memory_blocks"] = options.memory_blocks
    found["bytes_per_block"] = bytes_a_block(fill_index, options.memory_blocks)
    found["bytes_per_block_dict"] = bytes_a_block(fill_dict, options.memory_blocks)
    if options.json:
        print(json.dumps(found))
        return
    for name in ("with_room", "full"):
        rate, ratio = found[f"blocks_per_second_{name}"], found[f"ratio_to_msgpack_{name}"]
        print(f"stored, cache {name:10} {rate:10,.0f} blocks/s   {ratio:5.2f} of msgpack alone")
    print(
        f"memory of {options.memory_blocks:,} blocks: {found['bytes_per_block']:,.0f} bytes for each,"
        f" {found['bytes_per_block_dict']:,.0f} in a dict of two times a block"
    )
    print(f"aim: {_AIM:,} blocks/s")


if __name__ == "__main__":
    main()
