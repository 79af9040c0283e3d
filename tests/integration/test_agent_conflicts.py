"""The real agent when two sources tell different tokens of a request: the trusted stay, both are seen."""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kvscope.demo.engines import Engine, free_port
from kvscope.demo.sidecar import Sidecar, start_sidecar
from kvscope.model.request import RequestRecord
from kvscope.store.database import open_store

PROMPT_BY_SPAN, PROMPT_BY_PLUGIN = 100, 99
CACHED_BY_SPAN, CACHED_BY_PLUGIN = 64, 32


def tell(port: int, number: int, name: str, counts: dict[str, int]) -> None:
    """Send one span about request r1; with the same number it is the same span."""
    now = time.time_ns()
    attributes: list[dict[str, Any]] = [
        {"key": "gen_ai.request.id", "value": {"stringValue": "chatcmpl-r1"}},
        *({"key": key, "value": {"intValue": str(count)}} for key, count in counts.items()),
    ]
    span = {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "name": name,
        "startTimeUnixNano": str(now - 10**9),
        "endTimeUnixNano": str(now),
        "attributes": attributes,
    }
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/traces", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def tell_both(port: int) -> None:
    """Let the engine's span and the plugin contradict each other."""
    counts = {"gen_ai.usage.prompt_tokens": PROMPT_BY_SPAN, "gen_ai.usage.cached_tokens": CACHED_BY_SPAN}
    tell(port, 1, "llm_request", counts)
    counts = {
        "gen_ai.usage.input_tokens": PROMPT_BY_PLUGIN,
        "gen_ai.usage.cache_read.input_tokens": CACHED_BY_PLUGIN,
    }
    tell(port, 2, "kvscope.request", counts)


def counted(agent: Sidecar) -> dict[tuple[str, str, str], float]:
    """Return the agent's counter of conflicts by field, source and other."""
    with urllib.request.urlopen(f"{agent.admin}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    return {
        (sample.labels["field"], sample.labels["source"], sample.labels["other"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "kvscope_conflicts_total"
    }


def doctor_says(agent: Sidecar, engine: Engine) -> dict[str, Any]:
    """Return what `kvscope doctor --json` says of the sources."""
    run = "from kvscope.cli.main import main; main()"
    command = [sys.executable, "-c", run, "doctor", "--json", "--db", agent.db, "--vllm", engine.url]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    (check,) = (one for one in json.loads(told.stdout)["checks"] if one["name"] == "sources agree")
    found: dict[str, Any] = check
    return found


def record(agent: Sidecar) -> RequestRecord:
    store = open_store(agent.db)
    try:
        (found,) = store.reader.requests()
        return found
    finally:
        store.close()


def test_a_conflict_is_in_the_record_the_metrics_and_the_doctor_also_after_a_restart(
    builtin_engine: Engine, tmp_path: Path
) -> None:
    port = free_port()

    def over_http(config: dict[str, Any]) -> None:
        config["collectors"]["otlp"] = {"grpc_port": 0, "http_port": port}

    expected = {("prompt_tokens", "span", "plugin"): 1.0, ("cached_tokens", "plugin", "span"): 1.0}
    for life in range(2):
        agent = start_sidecar(builtin_engine, tmp_path, change=over_http)
        try:
            tell_both(port)
            tell_both(port)
            row = record(agent)
            assert (row.prompt_tokens, row.cached_tokens) == (PROMPT_BY_SPAN, CACHED_BY_PLUGIN)
            assert row.conflicts == {"prompt_tokens": "plugin", "cached_tokens": "span"}
            # a counter of the process: what an earlier one counted is not counted again
            assert counted(agent) == (expected if life == 0 else {})
            check = doctor_says(agent, builtin_engine)
        finally:
            agent.stop()
        assert not check["ok"]
        assert "cached_tokens: span contradicts plugin in 1 requests" in check["detail"]
        assert "prompt_tokens: plugin contradicts span in 1 requests" in check["detail"]
