"""Replay of published traces and of real servers' recordings: the figures that are known for them.

Reads ``traces/`` and the recordings of the data folder (``--data``, else KVSCOPE_DATA, else ../shared/data)
and says so when it is absent. The exit code is 1 when a figure is not the known one. Run
``python benchmarks/replay_traces.py [--json]``.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvscope.analysis.offline.load import load
from kvscope.analysis.offline.replay_files import replay_files
from kvscope.analysis.offline.report import ReplayOptions
from kvscope.cache.policies import hit_blocks
from kvscope.cache.traces import BlockTrace
from kvscope.prompts.tokenizing import load_tokenizer

_FINITE = 0.005  # tie rules within a timestamp differ
_INFINITE = 1e-4
_CONVERSATION, _SYNTHETIC = "conversation_trace.jsonl", "synthetic_trace.jsonl"
# LRU by blocks and by tokens, LFU by blocks; None is no limit
_KNOWN: dict[str, dict[int | None, tuple[float, float, float]]] = {
    _CONVERSATION: {
        None: (0.3664, 0.3736, 0.3664),
        100_000: (0.3637, 0.3708, 0.3631),
        50_000: (0.3546, 0.3615, 0.3438),
        30_000: (0.3257, 0.3321, 0.2759),
        10_000: (0.2112, 0.2153, 0.1318),
        1_000: (0.0445, 0.0454, 0.0481),
    },
    _SYNTHETIC: {
        None: (0.6396, 0.6512, 0.6396),
        100_000: (0.6396, 0.6512, 0.6396),
        50_000: (0.6396, 0.6512, 0.6396),
        30_000: (0.6242, 0.6356, 0.6260),
        10_000: (0.4235, 0.4313, 0.3578),
        1_000: (0.0825, 0.0840, 0.0401),
    },
}
# blocks and the share of requests that must hit what the engine reported
_RECORDINGS: dict[str, tuple[int, float]] = {
    "vllm-0.32.0/sequential": (300, 1.0),
    "vllm-0.23.0/sequential": (300, 1.0),
    "vllm-0.32.0/concurrent-4": (300, 0.99),
    "vllm-0.32.0/real-prompts": (700, 0.99),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure beside the known one; ``known`` None is one that nobody has published for these files."""

    name: str
    value: float
    known: float | None = None
    tolerance: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it is the known one."""
        return self.known is None or abs(self.value - self.known) <= self.tolerance


def traced(file: Path) -> BlockTrace:
    """Return a file's block ids as columns."""
    builder = load([file], block_size=None, tokenizer=None, keep_ids=False).builder
    if builder is None:
        raise SystemExit(f"{file} holds no block ids")
    return builder.build()[0]


def mooncake_figures(folder: Path) -> Iterator[Figure]:
    """Yield hit rates of both traces at all known capacities."""
    for name, rows in _KNOWN.items():
        trace = traced(folder / name)
        for blocks, (by_blocks, by_tokens, lfu) in rows.items():
            tolerance = _INFINITE if blocks is None else _FINITE
            label = f"{name.partition('_')[0]}, {'no limit' if blocks is None else f'{blocks:,} blocks'}"
            hits = hit_blocks(trace, "lru", blocks)
            tokens = trace.hit_tokens(hits).sum() / trace.queried_tokens
            blocks_rate = hits.sum() / trace.queried_blocks
            yield Figure(
                name=f"{label}: LRU by blocks", value=blocks_rate, known=by_blocks, tolerance=tolerance
            )
            yield Figure(name=f"{label}: LRU by tokens", value=tokens, known=by_tokens, tolerance=tolerance)
            often = hit_blocks(trace, "lfu", blocks).sum() / trace.queried_blocks
            yield Figure(name=f"{label}: LFU by blocks", value=often, known=lfu, tolerance=tolerance)


def recording_figures(data: Path) -> Iterator[Figure]:
    """Yield the share of requests that hit what a real vLLM reported."""
    tokenizer = load_tokenizer(data / "vllm-0.32.0" / "tokenizer")
    for name, (blocks, share) in _RECORDINGS.items():
        options = ReplayOptions(num_blocks=blocks, block_size=32, tokenizer=tokenizer)
        agreement = replay_files([data / name], options).agreement
        if agreement is None:
            raise SystemExit(f"{name} holds no recorded counts")
        found = agreement.equal / agreement.compared
        label = f"{name}: {agreement.equal} of {agreement.compared} requests as the engine"
        yield Figure(name=label, value=found, known=1.0, tolerance=1.0 - share)


def session_figures(folder: Path) -> Iterator[Figure]:
    """Yield the quartiles of the coding-agent sessions at hand; those of the whole set are for 710 files."""
    rates = [replay_files([file], ReplayOptions()).hit_rate or 0.0 for file in sorted(folder.glob("*.json"))]
    for share in (0, 25, 50, 75):
        value = float(np.percentile(rates, share))
        yield Figure(name=f"{len(rates)} coding-agent sessions, no limit: percentile {share}", value=value)


def main() -> int:
    """Print the figures; the exit code is 1 where a figure is not the known one."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("KVSCOPE_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with traces/ in it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.data / "traces" / "mooncake"
    if not folder.is_dir():
        print(f"no traces at {folder}: nothing measured; name the data folder with --data or KVSCOPE_DATA")
        return 0
    figures = [
        *mooncake_figures(folder),
        *recording_figures(options.data),
        *session_figures(options.data / "traces" / "weka_cc"),
    ]
    if options.json:
        rows = [dataclasses.asdict(figure) | {"holds": figure.holds} for figure in figures]
        print(json.dumps({"figures": rows}))
    else:
        for figure in figures:
            known = "" if figure.known is None else f"known {figure.known:.4f}"
            print(f"{figure.name:64} {figure.value:.4f}  {known:13} {'' if figure.holds else 'DIFFERS'}")
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
