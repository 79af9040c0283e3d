"""How the time of a replay grows with the length of a log, as a plot.

Replays longer and longer logs, up to ``--most`` million tokens: request logs of text with exact tokens
(mini-swe-agent's prompts, so many times over, each time under a first line of its own), and traces of block
ids (Mooncake's conversations, so many times over). Reads the data folder (``--data``, else KVSCOPE_DATA, else
../shared/data) and says so when it is absent. Times are of the processor. Run
``python benchmarks/replay_growth.py [--plot docs/images/replay-growth.svg]``.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvscope.analysis.offline.replay_files import replay_files
from kvscope.analysis.offline.report import ReplayOptions
from kvscope.prompts.shared_prefix import SharedPrefixTokenizer
from kvscope.prompts.tokenizing import load_tokenizer

_TRACE = "traces/mooncake/conversation_trace.jsonl"
_LOG = "prompts/lmcache_agent_trace/miniswe"
_TOKENIZER = "vllm-0.32.0/tokenizer"
_STEPS = (0.1, 0.25, 0.5, 0.75, 1.0)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 460, 300, 60, 250, 40
_COLOURS = {"line": "#9aa5b1", "point": "#0b6bcb", "text": "#333333"}

Point = tuple[int, float]
Write = Callable[[int], str]


def lines_of_text(folder: Path) -> tuple[Write, int]:
    """Return what writes the log's lines of one copy, and the lines' tokens, roughly."""
    rows = [
        json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.open() if line.strip()
    ]
    texts = [row["input"] for row in rows if isinstance(row.get("input"), str)]

    def write(copy: int) -> str:
        return "".join(json.dumps({"prompt": f"Log {copy} of many\n{text}"}) + "\n" for text in texts)

    return write, sum(map(len, texts)) // 3


def lines_of_ids(file: Path) -> tuple[Write, int]:
    """Return what writes the trace's lines of one copy, and their tokens."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    ids = 1 + max(max(row["hash_ids"], default=0) for row in rows)

    def write(copy: int) -> str:
        own = ({**row, "hash_ids": [block + copy * ids for block in row["hash_ids"]]} for row in rows)
        return "".join(json.dumps(row) + "\n" for row in own)

    return write, sum(row["input_length"] for row in rows)


def points(write: Write, copies: Sequence[int], options: Callable[[], ReplayOptions]) -> Iterator[Point]:
    """Yield tokens and seconds of ever longer logs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.jsonl"
        written = 0
        for count in copies:
            with file.open("a") as out:
                for copy in range(written, count):
                    out.write(write(copy))
            written = count
            began = time.process_time()
            report = replay_files([file], options())
            yield report.queried_tokens, time.process_time() - began


def panel(title: str, found: Sequence[Point], left: int) -> str:
    """Return one diagram: the points, and the line from nothing to the last of them."""
    most_tokens, most_seconds = found[-1]
    top = max(seconds for _, seconds in found) * 1.1

    def x(tokens: float) -> float:
        return left + _LEFT + (_WIDTH - _LEFT - 30) * tokens / most_tokens

    def y(seconds: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * seconds / top

    line = f'<line x1="{x(0)}" y1="{y(0)}" x2="{x(most_tokens)}" y2="{y(most_seconds)}" stroke="{{line}}"/>'
    axes = f'<path d="M{x(0)} {_TOP} V{_BOTTOM} H{x(most_tokens)}" fill="none" stroke="{{text}}"/>'
    dots = "".join(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="4" fill="{{point}}"/>' for a, b in found)
    words = f'<text x="{left + _LEFT}" y="24" font-weight="bold">{title}</text>'
    words += f'<text x="{x(most_tokens)}" y="{_BOTTOM + 34}" text-anchor="end">million prompt tokens</text>'
    words += f'<text x="{x(0) + 6}" y="{_TOP + 4}">seconds</text>'
    for tokens, seconds in (found[0], found[len(found) // 2], found[-1]):
        words += f'<text x="{x(tokens)}" y="{_BOTTOM + 16}" text-anchor="middle">{tokens / 1e6:,.0f}</text>'
        words += f'<text x="{x(0) - 6}" y="{y(seconds) + 4}" text-anchor="end">{seconds:.2g}</text>'
    return (line + axes + dots + words).format_map(_COLOURS)


def plot(found: dict[str, list[Point]]) -> str:
    """Return the diagrams side by side as an SVG document."""
    size = f'width="{_WIDTH * len(found)}" height="{_HEIGHT}"'
    panels = "\n".join(panel(title, each, at * _WIDTH) for at, (title, each) in enumerate(found.items()))
    style = f'font-family="sans-serif" font-size="12" fill="{_COLOURS["text"]}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{panels}\n</svg>\n'
    )


def main() -> int:
    """Print the points, and write the plot where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("KVSCOPE_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with traces/ and prompts/")
    parser.add_argument("--most", type=int, default=100, help="million tokens of text")
    parser.add_argument("--plot", type=Path, help="SVG file to write")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (options.data / _TRACE).is_file():
        print(f"no traces at {options.data}: nothing measured; name the folder with --data or KVSCOPE_DATA")
        return 0
    tokenizer = load_tokenizer(options.data / _TOKENIZER)
    texts, text_tokens = lines_of_text(options.data / _LOG)
    ids, id_tokens = lines_of_ids(options.data / _TRACE)
    logs: dict[str, tuple[Write, int, Callable[[], ReplayOptions]]] = {
        "Text, exact tokens, to hit rate": (
            texts,
            -(-options.most * 10**6 // text_tokens),
            lambda: ReplayOptions(tokenizer=SharedPrefixTokenizer(tokenizer)),
        ),
        "Block ids of 512 tokens, to the whole curve": (
            ids,
            -(-10 * options.most * 10**6 // id_tokens),
            lambda: ReplayOptions(curve=True),
        ),
    }
    found: dict[str, list[Point]] = {}
    for title, (write, copies, made) in logs.items():
        found[title] = list(points(write, sorted({max(round(copies * step), 1) for step in _STEPS}), made))
    if options.plot is not None:
        options.plot.write_text(plot(found))
    if options.json:
        rows = {title: [{"tokens": a, "seconds": b} for a, b in each] for title, each in found.items()}
        print(json.dumps(rows))
        return 0
    for title, each in found.items():
        for tokens, seconds in each:
            rate = tokens / seconds / 1e6
            print(f"{title:48} {tokens / 1e6:10,.1f} M tokens {seconds:8.2f} s {rate:10,.1f} M tokens/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
