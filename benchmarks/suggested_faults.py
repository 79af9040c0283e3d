"""Plant known faults in logs made of real prompts, and see whether the advisor finds them.

    python benchmarks/suggested_faults.py [--data DIR] [--build] [--seeds 3] [--first 0] [--json]

Sentences, documents, questions and tools are those of ``prompts/`` of the data folder (``--data``, else
KVSCOPE_DATA, else ../shared/data). Each kind of fault alone, two or three at once, and clean logs with things
that look like faults. With ``--build`` the half of the texts, the wordings and the seeds that rules may be
built with; without it the other half. What counts:

- ``recall``     planted faults that a suggestion of the right kind names, ÷ planted
- ``precision``  things named that were planted, ÷ things named, of that kind of suggestion
- ``segment``    found faults whose role and message are named rightly, ÷ found that have one
- ``error``      |predicted - replayed| hit rate: the change is applied to the same requests, tokenised and
                 replayed here; ``next``: the same over as many requests that came afterwards, against the
                 prediction for the newer half. Servers' changes but memory and salts are not applied.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _faults_kinds import FAULTS
from _faults_logs import CLEAN, Log, clean_logs, mixed_logs, single_logs
from _faults_measure import Found, measured
from _faults_texts import texts

from kvscope.prompts.tokenizing import LocalTokenizer, load_tokenizer

# what the recorded server's template lacks: tools, as most models' templates render them
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tool_tokenizer(folder: Path) -> LocalTokenizer:
    """Return the tokenizer in ``folder`` under a chat template that renders tools."""
    with tempfile.TemporaryDirectory() as copy:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / name, copy)
        (Path(copy) / "chat_template.jinja").write_text(TEMPLATE)
        return load_tokenizer(Path(copy))


def logs(data: Path, *, build: bool, seeds: Sequence[int], requests: int) -> Iterator[Log]:
    """Yield all logs of one half."""
    half = texts(data / "prompts", held_out=not build)
    names = [f"{'build' if build else 'final'} {number}" for number in seeds]
    many = [f"{name} {part}" for name in names for part in range(8)]
    yield from single_logs(seeds=names, texts=half, count=requests)
    yield from mixed_logs(seeds=many, texts=half, count=requests)
    yield from clean_logs(seeds=names, texts=half, count=requests)


def summary(found: Sequence[Found]) -> dict[str, Any]:
    """Return the counts and shares of all logs, by fault and by kind of suggestion."""
    planted: dict[str, list[Found]] = defaultdict(list)
    for each in found:
        for name in each.hits:
            planted[name].append(each)
    faults = {}
    for fault in FAULTS:
        own = planted[fault.name]
        if own:
            right = [each for each in own if each.hits[fault.name]]
            faults[fault.name] = {
                "suggestion": fault.kinds[0],
                "planted": len(own),
                "recall": len(right) / len(own),
                "segment": _share([each.segments[fault.name] for each in right]) if fault.where else None,
                "in_line": _share([each.ranges[fault.name] for each in right if fault.name in each.ranges]),
            }
    said = Counter(each.kind for one in found for each in one.said)
    false = Counter(each.kind for one in found for each in one.false)
    clean = [one for one in found if one.log.name.startswith(CLEAN)]
    hits = [hit for one in found for hit in one.hits.values()]
    errors = [abs(error) for one in found for error in one.errors]
    later = [abs(error) for one in found for error in one.later_errors]
    return {
        "logs": len(found),
        "faults": faults,
        "precision": {kind: 1 - false[kind] / count for kind, count in sorted(said.items())},
        "recall_of_all": sum(hits) / len(hits) if hits else None,
        "precision_of_all": 1 - sum(false.values()) / max(1, sum(said.values())),
        "clean_logs": len(clean),
        "clean_logs_with_suggestion": sum(bool(one.said) for one in clean),
        "applied": len(errors),
        "error_largest": max(errors, default=None),
        "next_error_median": statistics.median(later) if later else None,
        "next_error_largest": max(later, default=None),
        "next_within_0.01": _share([error <= 0.01 for error in later]),
    }


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def missed(found: Sequence[Found]) -> Iterator[str]:
    """Yield a line for each log in which something was not found, or was made up."""
    for each in found:
        lost = [name for name, hit in each.hits.items() if not hit]
        made_up = [f"{one.kind} ({one.role} {one.message_index} {one.chars})" for one in each.false]
        if lost or made_up:
            named = ", ".join(sorted({one.kind for one in each.said})) or "nothing"
            made = f"; not planted: {', '.join(made_up)}" if made_up else ""
            yield f"{each.log.name}: missed {', '.join(lost) or 'nothing'}; named {named}{made}"


def _print(told: dict[str, Any]) -> None:
    print(f"{'fault':20}{'suggestion':22}{'planted':>8}{'recall':>8}{'segment':>9}{'precision':>10}")
    for name, row in told["faults"].items():
        precision = told["precision"].get(row["suggestion"])
        cells = (
            f"{name:20}{row['suggestion']:22}{row['planted']:>8}",
            row["recall"],
            row["segment"],
            precision,
        )
        print(cells[0] + "".join(f"{'' if cell is None else f'{cell:.2f}':>9}" for cell in cells[1:]))
    for name, value in told.items():
        if not isinstance(value, dict):
            print(f"{name:28}{value:.4f}" if isinstance(value, float) else f"{name:28}{value}")


def main() -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description="Planted faults, found and fixed.")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("KVSCOPE_DATA", "../shared/data")))
    parser.add_argument("--build", action="store_true", help="the half that rules may be built with")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--only", default="", help="logs whose name holds this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (options.data / "prompts").exists():
        print(f"left out: no {options.data / 'prompts'}; name the data folder with --data or KVSCOPE_DATA")
        return 0
    tokenizer = tool_tokenizer(options.data / "vllm-0.32.0" / "tokenizer")
    began = time.process_time()
    seeds = range(options.first, options.first + options.seeds)
    found = [
        measured(log, tokenizer)
        for log in logs(options.data, build=options.build, seeds=seeds, requests=options.requests)
        if options.only in log.name
    ]
    told = summary(found) | {"processor_seconds": time.process_time() - began}
    if options.json:
        print(json.dumps(told | {"missed": list(missed(found))}, indent=2))
    else:
        _print(told)
        print(*missed(found), sep="\n", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
