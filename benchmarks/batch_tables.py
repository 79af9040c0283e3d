"""Orders of tables for reuse: the greedy method of GGR, ours, simple orders, and the best plan of small ones.

Tables are made from the given prompts: the tool documents of the data folder (``--data``, else KVSCOPE_DATA,
else ../shared/data), a row a parameter of a tool with the texts of its API and tool beside it, shuffled.
Small tables are cut out of it and compared with the best plan there is. Run
``python benchmarks/batch_tables.py [--json]``.
"""

import argparse
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kvscope.tuning.batch.exact import exact
from kvscope.tuning.batch.greedy import ggr, grouped
from kvscope.tuning.batch.table import (
    Plan,
    Table,
    as_given,
    build,
    by_exchange_rule,
    computed_tokens,
    in_one_order,
)

_FIELDS = ("parameter", "type", "text", "tool", "api", "required")
_METHODS: dict[str, Callable[[Table], Plan]] = {
    "as given": as_given,
    "sorted": lambda table: in_one_order(table, range(len(table.fields))),
    "exchange rule": by_exchange_rule,
    "GGR": ggr,
    "ours": grouped,
}
_SMALL = 300


def rows(folder: Path) -> Iterator[dict[str, str]]:
    """Yield a row for each parameter of each tool."""
    for file in sorted(folder.glob("*.json")):
        for tool in map(json.loads, file.read_text().splitlines()):
            api, _, what = tool["description"].partition("Tool description:")
            required = tool["parameters"].get("required", [])
            for name, parameter in tool["parameters"]["properties"].items():
                yield {
                    "parameter": name,
                    "type": str(parameter.get("type")),
                    "text": str(parameter.get("description")),
                    "tool": f"{tool['name']}: {what}",
                    "api": api,
                    "required": str(name in required),
                }


def table(found: list[dict[str, str]], fields: tuple[str, ...] = _FIELDS) -> Table:
    """Return the table with four characters as a token."""
    tokens = {
        (field, row[field]): -(-len(f'"{field}": "{row[field]}", ') // 4) for row in found for field in fields
    }
    return build(found, fields, tokens)


def measure(given: Table) -> dict[str, dict[str, float]]:
    """Return each method's share of tokens that need not be computed, and its seconds."""
    found = {}
    for name, method in _METHODS.items():
        began = time.perf_counter()
        plan = method(given)
        took = time.perf_counter() - began
        found[name] = {"shared": 1 - computed_tokens(given, plan) / given.total_tokens, "seconds": took}
    return found


def against_brute_force(found: list[dict[str, str]], chance: random.Random) -> dict[str, float]:
    """Return for each method the tokens that it saves ÷ those that the best plan saves, over small tables."""
    saved = dict.fromkeys(_METHODS, 0)
    best = 0
    for _ in range(_SMALL):
        start = chance.randrange(len(found) - 30)
        fields = tuple(chance.sample(_FIELDS, 4))
        small = table(chance.sample(found[start : start + 30], 8), fields)
        best += small.total_tokens - computed_tokens(small, exact(small))
        for name, method in _METHODS.items():
            saved[name] += small.total_tokens - computed_tokens(small, method(small))
    return {name: value / best for name, value in saved.items()}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("KVSCOPE_DATA", "../shared/data")))
    given = parser.parse_args()
    folder = given.data / "prompts/bfcl/multi_turn_func_doc"
    if not folder.is_dir():
        print(f"left out: no {folder}; name the data folder with --data or KVSCOPE_DATA", file=sys.stderr)
        return 0
    chance = random.Random(7)
    tools = list(rows(folder))
    small = against_brute_force(tools, chance)
    # each parameter is asked of several times, as a batch of questions about one table does
    asked = list(itertools.chain.from_iterable(tools for _ in range(20)))
    chance.shuffle(asked)
    asked = [{**row, "question": f"question {number}"} for number, row in enumerate(asked)]
    large = table(asked, ("question", *_FIELDS))
    shared = {"large": measure(large), "distinct": measure(table(tools))}
    if given.json:
        print(json.dumps({**shared, "saved_of_best_on_8_by_4": small}, indent=2))
        return 0
    print(f"{'':15}{len(asked):>10} rows{'seconds':>10}{len(tools):>10} rows{'of the best, 8 x 4':>22}")
    for name in _METHODS:
        print(
            f"{name:15}{shared['large'][name]['shared']:>15.1%}{shared['large'][name]['seconds']:>10.2f}"
            f"{shared['distinct'][name]['shared']:>15.1%}{small[name]:>22.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
