"""What ``kvscope doctor`` checks: reachable, configured to tell what is needed, and do the sums agree."""

import dataclasses
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from kvscope.clock import iso, system_clock
from kvscope.model.cache_config import cache_configs
from kvscope.model.request import TOKEN_FIELDS, RequestRecord, Source, Status
from kvscope.model.views import HistogramRow
from kvscope.reports.content import SumLine
from kvscope.reports.disagreement import Reason, reasons
from kvscope.reports.sums import engine_sums
from kvscope.stats.histograms import buckets_by_replica, histogram_quantile
from kvscope.store.database import Store

_TIMEOUT_SECONDS = 3.0
_RECENT = 200
_TWO = 2
_TTFT = "vllm:time_to_first_token_seconds"
_HOUR_SECONDS = 3_600.0
_DAY_SECONDS = 86_400.0
_SHOWN_CONFLICTS = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that should hold; ``fix`` says what to do when it does not.

    ``difference_tokens`` and ``reasons`` are of sums: how far counter and records are apart, and likely why.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""
    difference_tokens: int | None = None
    reasons: tuple[Reason, ...] = ()


def run_checks(store: Store, *, vllm: str | None, agent: str, patience_seconds: float = 15.0) -> list[Check]:
    """Return all checks; waits up to ``patience_seconds`` for a quiet moment to compare sums in."""
    known = [row.engine for row in store.reader.counters()]
    engines = [vllm.rstrip("/")] if vllm else known or ["http://127.0.0.1:8000"]
    records = store.reader.requests(last=_RECENT)
    checks = list(_agent(agent))
    for engine in engines:
        checks += _engine(engine)
    checks += _cache(store)
    checks += _latency(store)
    checks += _sources(records)
    checks += _ids(records)
    checks += _disaggregated(store, records)
    checks += _conflicts(store)
    checks += _sums(store, patience_seconds, alive=checks[0].ok)
    return checks


def _get(url: str) -> tuple[str | None, str]:
    """Return the body of ``url`` and "", or None and why not."""
    if not url.startswith(("http://", "https://")):
        return None, "not a URL such as http://127.0.0.1:8000"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - scheme checked above
            return answer.read().decode(errors="replace"), ""
    except urllib.error.HTTPError as error:
        return None, f"it answered {error.code}"
    except (OSError, ValueError) as error:
        return None, str(getattr(error, "reason", error))


def _agent(url: str) -> Iterator[Check]:
    body, why = _get(f"{url.rstrip('/')}/healthz")
    if body is None:
        yield Check(
            name="agent",
            ok=False,
            detail=f"no agent answers at {url}: {why}",
            fix="start `kvscope agent`, or say where its admin port is with --agent URL",
        )
        return
    try:
        parts: dict[str, Any] = json.loads(body)["parts"]
    except (ValueError, KeyError, TypeError):
        yield Check(
            name="agent", ok=False, detail=f"what answers at {url} is not kvscope", fix="check --agent URL"
        )
        return
    yield Check(name="agent", ok=True, detail=f"runs at {url}")
    for name, part in parts.items():
        yield Check(
            name=f"agent: {name}", ok=bool(part["ok"]), detail=part["detail"], fix="see the agent's log"
        )


def _engine(url: str) -> Iterator[Check]:
    body, why = _get(f"{url}/health")
    if body is None:
        yield Check(
            name="vllm",
            ok=False,
            detail=f"{url} does not answer: {why}",
            fix="start it, or name it with --vllm URL",
        )
        return
    yield Check(name="vllm", ok=True, detail=f"{url} answers, version {_version(url) or 'unknown'}")


def _version(url: str) -> str | None:
    """Return what the engine says of itself, or None where it says nothing."""
    body, _ = _get(f"{url}/version")
    try:
        told = json.loads(body or "{}").get("version")
    except (ValueError, AttributeError):
        return None
    return told if isinstance(told, str) else None


def _cache(store: Store) -> Iterator[Check]:
    samples = store.reader.latest_samples("vllm:cache_config_info")
    if not samples:
        yield Check(
            name="prefix caching",
            ok=False,
            detail="no /metrics page with vLLM's cache settings has been scraped",
            fix="see to it that the agent reaches UPSTREAM/metrics",
        )
    for config in cache_configs(samples):
        on = config.prefix_caching
        size = f"{config.num_blocks} blocks of {config.block_size} tokens"
        yield Check(
            name="prefix caching",
            ok=on is not False,
            detail=f"{config.engine}: {'on' if on else 'off' if on is False else 'not told'}, {size}",
            fix="" if on is not False else "start vLLM with --enable-prefix-caching",
        )


def _latency(store: Store) -> Iterator[Check]:
    """Tell each engine's own time to the first token: what its clients got, through kvscope or not."""
    samples = store.reader.latest_samples(f"{_TTFT}_bucket")
    lately = store.reader.histograms(_TTFT, since_at=system_clock() - _HOUR_SECONDS)
    newest = {(row.engine, row.replica): row for row in lately if row.observations}
    read_at = {(sample.engine, sample.replica): sample.at for sample in samples}
    for (engine, replica), buckets in buckets_by_replica(samples).items():
        middle, high = (histogram_quantile(buckets, q) for q in (0.5, 0.95))
        if middle is None or high is None:
            continue
        where = f"{engine}, rank {replica}" if replica else engine
        yield Check(
            name="engine latency",
            ok=True,
            detail=f"{where}: time to first token p50 {middle:.3g} s, p95 {high:.3g} s"
            f" over its {max(buckets.values()):,.0f} requests since its start,"
            f" by its histogram of {iso(read_at[engine, replica])}" + _lately(newest.get((engine, replica))),
        )


def _lately(row: HistogramRow | None) -> str:
    if row is None:
        return ""
    middle, high = (histogram_quantile(row.buckets, q) for q in (0.5, 0.95))
    return f"; in the last hour p50 {middle:.3g} s, p95 {high:.3g} s over {row.observations:,.0f}"


def _sources(records: list[RequestRecord]) -> Iterator[Check]:
    done = [record for record in records if record.status in (None, Status.OK)]
    if not done:
        yield Check(
            name="requests",
            ok=False,
            detail="no finished requests in the store",
            fix="send traffic through the gateway, or point vLLM's --otlp-traces-endpoint at the agent",
        )
        return
    cached = sum(record.cached_tokens is not None for record in done)
    yield Check(
        name="cached tokens",
        ok=cached == len(done),
        detail=f"known for {cached} of the last {len(done)} finished requests",
        fix="start vLLM with --enable-prompt-tokens-details, or install kvscope in vLLM's environment",
    )
    spans = sum(record.queue_seconds is not None for record in done)
    yield Check(
        name="engine timings",
        ok=spans == len(done),
        detail=f"known for {spans} of the last {len(done)} finished requests",
        fix="start vLLM with --otlp-traces-endpoint http://AGENT:4317; the newest arrive some seconds late",
    )


def _ids(records: list[RequestRecord]) -> Iterator[Check]:
    """Tell of requests of one id that could not be kept apart: several gateways, or a restart between."""
    shared = sum(len(record.pieces.get(Source.GATEWAY, ())) > 1 for record in records)
    if shared:
        yield Check(
            name="request ids",
            ok=False,
            detail=f"{shared} of the last {len(records)} records hold several requests of one X-Request-Id:"
            " their tokens add up, their times do not belong together",
            fix="let clients and proxies send a new X-Request-Id with each request, or none",
        )


def _conflicts(store: Store) -> Iterator[Check]:
    """Tell where sources contradict each other; only differing counts are wrong for sure.

    A client may leave where the engine ends well, and a proxy may know a model by another name.
    """
    rows = store.reader.conflicts(since_at=system_clock() - _DAY_SECONDS)
    told = [f"{row.field}: {row.other} contradicts {row.source} in {row.requests:,} requests" for row in rows]
    more = f"; and {len(told) - _SHOWN_CONFLICTS} more" if len(told) > _SHOWN_CONFLICTS else ""
    yield Check(
        name="sources agree",
        ok=not any(row.field in TOKEN_FIELDS for row in rows),
        detail=("; ".join(told[:_SHOWN_CONFLICTS]) or "no source contradicts another in the last day") + more,
        fix="look at such a request with `kvscope requests --json`: its `conflicts` name the fields",
    )


def _disaggregated(store: Store, records: list[RequestRecord]) -> Iterator[Check]:
    """Tell of prompts that a prefill server and a decode server both report under one id."""
    fetched = any(
        sample.value and sample.labels.get("source") == "external_kv_transfer"
        for sample in store.reader.latest_samples("vllm:prompt_tokens_by_source_total")
    )
    twice = sum(map(_is_of_two_servers, records)) if fetched else 0
    if twice:
        yield Check(
            name="prefill and decode servers",
            ok=False,
            detail=f"{twice} of the last {len(records)} records add up what a prefill and a decode server"
            " report of one prompt: its tokens are in them twice",
            fix="let the router send the prefill server another X-Request-Id than the decode server",
        )


def _is_of_two_servers(record: RequestRecord) -> bool:
    """Whether two reports of one prompt are those of such a pair: the prefill server makes one token."""
    prompt, output = TOKEN_FIELDS.index("prompt_tokens"), TOKEN_FIELDS.index("output_tokens")
    for source in (Source.SPAN, Source.PLUGIN):
        pieces = list(record.pieces.get(source, {}).values())
        if len(pieces) == _TWO and pieces[0][prompt] is not None and pieces[0][prompt] == pieces[1][prompt]:
            first, last = sorted(counts[output] or 0 for counts in pieces)
            if first == 1 < last:
                return True
    return False


def _sums(store: Store, patience_seconds: float, *, alive: bool) -> Iterator[Check]:
    """Compare the engine's counter with the records, at a scrape that found the engine idle."""
    if not store.reader.counters():
        yield Check(
            name="sums agree",
            ok=False,
            detail="the engine's counters have not been scraped",
            fix="see to it that the agent reaches UPSTREAM/metrics",
        )
        return
    started = system_clock()
    deadline = time.monotonic() + (patience_seconds if alive else 0.0)
    while True:
        results = [
            _compared(store, line, newer_than=started if alive else None) for line in engine_sums(store)
        ]
        if all(check.ok for check in results) or time.monotonic() >= deadline:
            break
        time.sleep(0.5)
    yield from results


def _compared(store: Store, line: SumLine, *, newer_than: float | None) -> Check:
    name = "sums agree"
    if newer_than is not None and line.last_at < newer_than:
        return Check(
            name=name, ok=False, detail=f"{line.engine}: no new scrape came", fix="see the agent's log"
        )
    busy = sum(
        sample.value
        for metric in ("vllm:num_requests_running", "vllm:num_requests_waiting")
        for sample in store.reader.latest_samples(metric)
        if sample.engine == line.engine
    )
    if busy:
        return Check(
            name=name,
            ok=False,
            detail=f"{line.engine}: {busy:.0f} requests are under way, so sums cannot be compared",
            fix="run it again when the engine is idle",
        )
    detail = (
        f"{line.engine}: the engine counted {line.counter_tokens:,} cached tokens,"
        f" the records hold {line.record_tokens:,}, as of {iso(line.last_at)}"
    )
    likely = reasons(store, line, version=_version(line.engine))
    if likely:
        detail += f"; {'; '.join(reason.detail for reason in likely)}"
    return Check(
        name=name,
        ok=line.agree is True,
        detail=detail,
        fix=likely[0].fix if likely else "",
        difference_tokens=line.difference_tokens,
        reasons=likely,
    )
