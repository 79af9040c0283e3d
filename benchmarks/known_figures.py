"""Figures that are known from elsewhere, by kvscope: `python benchmarks/known_figures.py --data DIR`.

DIR holds the public traces. `--tiktoken FILE` names the file of cl100k_base, which is not shipped; without it
the figures of text are left out. Exits with 1 where one is not as known.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.analysis.offline.replay_files import replay_files
from kvscope.analysis.offline.report import ReplayOptions
from kvscope.prompts.named import named_tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A figure by kvscope beside what is known, in percent; they may differ by ``tolerance``."""

    name: str
    found: float
    known: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the two are the same but for the tolerance."""
        return abs(self.found - self.known) <= self.tolerance


def requests_of(entries: Iterable[Mapping[str, Any]], start: float = 0.0) -> Iterator[tuple[float, Any]]:
    """Yield the time and the request of a session's entries, those of sub-agents among them."""
    for each in entries:
        if each.get("type") == "subagent":
            yield from requests_of(each["requests"], start + each["t"])
        else:
            yield start + each["t"], each


def plain_rate(document: Mapping[str, Any]) -> float:
    """Return a session's hit rate by tokens, as a loop of plain Python finds it."""
    known: set[int] = set()
    found = asked = 0
    size = document["block_size"]
    for _, request in sorted(requests_of(document["requests"]), key=lambda item: item[0]):
        blocks = request["hash_ids"]
        hit = next((place for place, block in enumerate(blocks) if block not in known), len(blocks))
        found += min(hit * size, request["in"])
        asked += request["in"]
        known.update(blocks)
    return found / asked if asked else 0.0


def sessions(folder: Path) -> Iterator[Figure]:
    """Yield the quartiles of the coding-agent sessions at hand, each alone and without limit."""
    files = sorted(folder.glob("*.json"))
    ours = [replay_files([file], ReplayOptions()).hit_rate or 0.0 for file in files]
    plain = [plain_rate(json.loads(file.read_text())) for file in files]
    for share in (0, 25, 50, 75):
        name = f"{len(files)} coding-agent sessions, percentile {share}"
        found, known = (100 * float(np.percentile(each, share)) for each in (ours, plain))
        yield Figure(name, found, known, 1e-9)


def texts(folder: Path, tokenizer: str) -> Iterator[Figure]:
    """Yield the ideal hit rates of agents' prompts in blocks of 16 tokens of cl100k_base."""
    # published without the rule that a prompt's last token is computed anew: 0.2 points for short prompts
    for name, known, tolerance in (("miniswe", 93.4, 0.05), ("taubench", 81.8, 0.25)):
        report = replay_files([folder / name], ReplayOptions(tokenizer=named_tokenizer(tokenizer)))
        yield Figure(f"{name}, ideal", 100 * (report.hit_rate or 0.0), known, tolerance)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("KVSCOPE_DATA", "../shared/data")))
    parser.add_argument("--tiktoken", metavar="FILE", help="of cl100k_base")
    options = parser.parse_args(arguments)
    if not (options.data / "traces").is_dir():
        print(f"no traces under {options.data}: name their folder with --data")
        return 0
    figures = [*sessions(options.data / "traces" / "weka_cc")]
    if options.tiktoken is not None:
        figures += texts(options.data / "prompts" / "lmcache_agent_trace", options.tiktoken)
    for each in figures:
        print(
            f"{'as known' if each.holds else 'OTHER   '}  {each.found:7.3f}  {each.known:7.3f}  {each.name}"
        )
    return 0 if all(each.holds for each in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
