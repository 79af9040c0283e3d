"""``kvscope requests`` as a table."""

from pathlib import Path

from click.testing import CliRunner

from kvscope.cli.requests import requests
from kvscope.model.request import RequestPart, Source
from kvscope.pipeline.contracts import Batch
from kvscope.store.database import open_store


def test_the_table_tells_all_times(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'k.db'}"
    values = {
        "arrived_at": 1_795_966_295.5, "ttft_seconds": 0.25, "tpot_seconds": 0.0125, "queue_seconds": 0.001,
        "prefill_seconds": 0.24, "decode_seconds": 1.5,
    }  # fmt: skip
    store = open_store(url, upgrade=True)
    store.batches.write([Batch(parts=[RequestPart(request_id="r", source=Source.SPAN, values=values)])])
    store.close()
    done = CliRunner().invoke(requests, ["--db", url], catch_exceptions=False)
    header, row = (
        [cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]]
        for line in done.output.splitlines()
        if line.startswith(("┃", "│"))
    )
    told = dict(zip(header, row, strict=True))
    assert [told[name] for name in ("TTFT", "TPOT", "queue", "prefill", "decode")] == [
        "250.0 ms", "12.5 ms", "1.0 ms", "240.0 ms", "1,500.0 ms",
    ]  # fmt: skip


def test_an_id_as_long_as_a_header_is_cut_for_people_only(tmp_path: Path) -> None:
    url, name = f"sqlite:///{tmp_path / 'k.db'}", "x" * 200
    store = open_store(url, upgrade=True)
    part = RequestPart(request_id=name, source=Source.GATEWAY, values={"arrived_at": 1.0})
    store.batches.write([Batch(parts=[part])])
    store.close()
    table = CliRunner().invoke(requests, ["--db", url], catch_exceptions=False)
    assert max(map(len, table.output.splitlines())) < 300
    assert "x…" in table.output
    document = CliRunner().invoke(requests, ["--db", url, "--json"], catch_exceptions=False)
    assert name in document.output
