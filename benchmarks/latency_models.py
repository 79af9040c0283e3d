"""Latency models on requests of real GPU servers: later requests, intervals, quantiles against length alone.

Reads latency/kv_cache_tester of the data folder (``--data``, else KVSCOPE_DATA, else ../shared/data) and says
so when it is absent. Each file is a server by itself. Run ``python benchmarks/latency_models.py [--json]``.
"""

import argparse
import csv
import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

from kvscope.analysis.latency import fit_latency
from kvscope.model.request import RequestRecord, Status

_FIELD_BYTES = 1 << 30  # a row holds a time for every token


def requests(file: Path) -> list[RequestRecord]:
    """Return the requests of one server."""
    csv.field_size_limit(_FIELD_BYTES)
    with gzip.open(file, "rt") as rows:
        return [_request(row) for row in csv.DictReader(rows)]


def _request(row: dict[str, str]) -> RequestRecord:
    cached = int(row["cached_tokens"])
    return RequestRecord(
        request_id=row["request_id"],
        arrived_at=float(row["launch_time"]),
        status=Status.OK,
        prompt_tokens=cached + int(row["unique_tokens"]),
        cached_tokens=cached,
        output_tokens=int(row["output_tokens"]),
        ttft_seconds=float(row["ttft"]),
        e2e_seconds=float(row["finish_time"]) - float(row["launch_time"]),
    )


def measure(file: Path) -> dict[str, Any]:
    """Fit one server's models and return what was measured on later requests."""
    records = requests(file)
    models = {model.name: model for model in fit_latency(records, now=0.0).models}
    mean, p50, p95 = models["ttft_linear"], models["ttft_p50"], models["ttft_p95"]
    return {
        "server": file.name.split("__")[0],
        "requests": len(records),
        "r2": mean.r2,
        "coverage_90": mean.coverage_90,
        "p50_pinball_ratio": (p50.pinball_seconds or 0.0) / (p50.pinball_by_length_seconds or 1.0),
        "p95_pinball_ratio": (p95.pinball_seconds or 0.0) / (p95.pinball_by_length_seconds or 1.0),
        "p95_at_or_below": p95.below_rate,
    }


def main() -> int:
    """Measure each file and print a row of each, and the coverage of all together."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("KVSCOPE_DATA", "../shared/data")))
    given = parser.parse_args()
    files = sorted((given.data / "latency/kv_cache_tester").glob("*.csv.gz"))
    if not files:
        print(f"left out: no latencies in {given.data}; name the data folder with --data", file=sys.stderr)
        return 0
    rows = [measure(file) for file in files]
    total = sum(row["requests"] for row in rows)
    coverage = sum(row["coverage_90"] * row["requests"] for row in rows) / total
    if given.json:
        print(json.dumps({"servers": rows, "requests": total, "coverage_90": coverage}, indent=2))
        return 0
    print(f"{'server':28}{'requests':>9}{'R2':>7}{'covered':>9}{'p50 loss':>10}{'p95 loss':>10}{'<= p95':>8}")
    for row in rows:
        print(
            f"{row['server']:28}{row['requests']:>9}{row['r2']:>7.3f}{row['coverage_90']:>9.1%}"
            f"{row['p50_pinball_ratio']:>10.2f}{row['p95_pinball_ratio']:>10.2f}{row['p95_at_or_below']:>8.1%}"
        )
    print(f"{'all':28}{total:>9}{'':>7}{coverage:>9.1%}   losses are ÷ those of the prompt's length alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
