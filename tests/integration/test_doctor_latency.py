"""The doctor tells each engine's own latency from the buckets that were scraped."""

from pathlib import Path

import pytest

from collectors.prometheus.page import parse_page
from kvscope.agent.checks import run_checks
from kvscope.pipeline.contracts import Batch
from kvscope.store.database import open_store
from tests.support.telemetry import metrics_page

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("page", "told"),
    [
        (
            metrics_page("0.32.0"),
            [
                (
                    f"{NOBODY}, rank 0: time to first token p50 0.0392 s, p95 0.1 s over its 160 requests"
                    " since its start, by its histogram of 2023-11-14T22:13:20.000Z"
                )
            ],
        ),
        ('vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 0.0\n', []),
        ("vllm:prompt_tokens_total 1.0\n", []),
    ],
    ids=["recorded", "no requests yet", "no buckets"],
)
def test_the_engines_latency_is_told_where_it_is_known(page: str, told: list[str], tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'kvscope.db'}", upgrade=True)
    store.batches.write([Batch(samples=parse_page(page, NOBODY, 1_700_000_000.0, buckets=True))])
    found = run_checks(store, vllm=NOBODY, agent=NOBODY, patience_seconds=0)
    store.close()
    assert [check.detail for check in found if check.name == "engine latency"] == told
    assert all(check.ok for check in found if check.name == "engine latency")
