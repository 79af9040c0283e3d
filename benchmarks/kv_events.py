"""How fast KV events are decoded and indexed on one core, against msgpack alone reading the same payloads.

The events are vLLM's: maps, blocks of 16 tokens, 16 blocks an event. Once the cache has room; once it is
full, so that each stored block costs another one its place, told in an event of its own. Run
``python benchmarks/kv_events.py [--json]``.
"""

import argparse
import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Iterator

import msgspec

from collectors.kv_events.decode import decode_payload
from kvscope.cache.index import BlockIndex
from kvscope.model.telemetry import CacheEventBatch

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


def kvscope_seconds(made: list[bytes]) -> float:
    """Return the processor time of decoding and indexing; raises when a block went missing."""
    index = BlockIndex()
    began = time.process_time()
    for sequence, payload in enumerate(made):
        batch = decode_payload(payload)
        index.apply(
            CacheEventBatch(engine="e", replica="0", sequence=sequence, at=batch.at, events=batch.events)
        )
    seconds = time.process_time() - began
    if index.unknown_blocks or index.partial:
        raise AssertionError("the index does not know all blocks")
    return seconds


def msgpack_seconds(made: list[bytes]) -> float:
    """Return the processor time of reading the payloads into plain lists and maps."""
    began = time.process_time()
    for payload in made:
        msgspec.msgpack.decode(payload)
    return time.process_time() - began


def bytes_a_block(blocks: int) -> float:
    """Return the memory that the index takes for each block that is cached."""
    index = BlockIndex(max_blocks=2 * blocks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for sequence, payload in enumerate(payloads(blocks, blocks, seed=2)):
        batch = decode_payload(payload)
        index.apply(
            CacheEventBatch(engine="e", replica="0", sequence=sequence, at=batch.at, events=batch.events)
        )
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return kilobytes * (1 if sys.platform == "darwin" else 1_024) / len(index)


def main() -> None:
    """Print blocks a second, the ratio to msgpack alone, and bytes a block."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=100_000, help="blocks stored in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    memory = bytes_a_block(4 * options.blocks)
    found: dict[str, float] = {"bytes_per_cached_block": memory, "aim_blocks_per_second": _AIM}
    for name, cache_blocks in (("with_room", options.blocks), ("full", options.blocks // 4)):
        made = list(payloads(options.blocks, cache_blocks, seed=1))
        stored = len(made) * _BLOCKS * _EVENTS
        turns = [(kvscope_seconds(made), msgpack_seconds(made)) for _ in range(options.rounds)]
        found[f"blocks_per_second_{name}"] = stored / statistics.median(own for own, _ in turns)
        found[f"ratio_to_msgpack_{name}"] = statistics.median(plain / own for own, plain in turns)
    if options.json:
        print(json.dumps(found))
        return
    for name in ("with_room", "full"):
        rate, ratio = found[f"blocks_per_second_{name}"], found[f"ratio_to_msgpack_{name}"]
        print(f"stored, cache {name:10} {rate:10,.0f} blocks/s   {ratio:5.2f} of msgpack alone")
    print(f"memory {memory:28,.0f} bytes for each cached block")
    print(f"aim: {_AIM:,} blocks/s")


if __name__ == "__main__":
    main()
