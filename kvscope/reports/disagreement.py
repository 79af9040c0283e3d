"""Why an engine's counter of cached tokens and the records differ: the likely reasons, likeliest first."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from kvscope.model.cache_config import CACHE_CONFIG_METRIC
from kvscope.model.views import EngineLife, RecordSums
from kvscope.reports.content import SumLine
from kvscope.store.database import Store

_FIXED = (0, 27)
_LABEL_OF_0_26 = "cache_hit_alignment_tokens"
_METRIC_OF_0_30 = "vllm:request_num_preemptions_count"


class Why(StrEnum):
    """A reason for which counter and records differ."""

    SEVERAL_ENGINES = "several engines"
    RESTART = "restart"
    BYPASS = "bypass"
    REPEATED_LOOKUPS = "repeated lookups"
    ABORTED = "aborted"
    FAILED = "failed"
    UNTOLD = "untold"
    NOT_FOUND = "not found"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One likely reason, in words, and what to do about it."""

    why: Why
    detail: str
    fix: str


def reasons(store: Store, line: SumLine, *, version: str | None = None) -> tuple[Reason, ...]:
    """Return why the two sums of ``line`` may differ, likeliest first; nothing where they do not.

    ``version`` is the engine's own word, where it was asked; else its metrics tell it roughly.
    """
    if not line.difference_tokens:
        return ()
    records, life = store.reader.compared(line.engine, line.first_at, line.last_at)
    queried = sum(row.queries for row in store.reader.counters() if row.engine == line.engine)
    old = counts_lookups_again(store, line.engine) if version is None else _is_before(version)
    of_the_engine = tuple(_of_the_engine(life))
    if any(reason.why is Why.SEVERAL_ENGINES for reason in of_the_engine):
        return of_the_engine  # sums of different processes say nothing more
    found = (
        *of_the_engine,
        *_of_the_traffic(queried, records, life, old=old),
        *_of_the_records(line, records),
    )
    nothing = Reason(
        why=Why.NOT_FOUND,
        detail="no reason is known",
        fix="compare again when the engine is idle; if it stays, tell us with `kvscope doctor --json`",
    )
    return found or (nothing,)


def _of_the_engine(life: EngineLife) -> Iterator[Reason]:
    if life.changes > life.starts - 1:
        yield Reason(
            why=Why.SEVERAL_ENGINES,
            detail=f"{life.starts} processes answer in turn at this URL",
            fix="name each engine by a URL of its own, not by a load balancer's",
        )
    elif life.changes:
        yield Reason(
            why=Why.RESTART,
            detail=f"the engine started {life.starts} times; requests on their way then are in no counter",
            fix="nothing: from the next start on the sums agree again",
        )


def _of_the_traffic(
    queried: float, records: RecordSums, life: EngineLife, *, old: bool | None
) -> Iterator[Reason]:
    begun = queried if life.prompt_tokens is None else life.prompt_tokens
    beyond = round(begun) - records.prompt_tokens
    if beyond > 0 and not records.unknown:
        yield Reason(
            why=Why.BYPASS,
            detail=f"the engine took in {beyond:,} prompt tokens more than the records hold:"
            " requests reach it that kvscope does not see",
            fix="send all traffic through the gateway, or point vLLM's --otlp-traces-endpoint at the agent"
            " and install kvscope in its environment",
        )
    again = round(queried - begun)
    if again > 0 and old is not False:
        yield Reason(
            why=Why.REPEATED_LOOKUPS,
            detail=f"{again:,} prompt tokens were looked up beyond those that were computed: before 0.27 vLLM"
            " counts a request again whenever the cache has no room for it"
            + ("" if old else ", and this engine's version is not known"),
            fix="run vLLM 0.27 or later, or trust the records",
        )


def _of_the_records(line: SumLine, records: RecordSums) -> Iterator[Reason]:
    if records.aborted:
        yield Reason(
            why=Why.ABORTED,
            detail=f"{records.aborted} requests were aborted: vLLM counts their hits and tells them nowhere",
            fix="nothing: the difference is theirs",
        )
    if records.failed:
        yield Reason(
            why=Why.FAILED,
            detail=f"{records.failed} requests failed after they had begun, and their hits were not told",
            fix="see the engine's log",
        )
    if records.untold or line.unknown_requests > records.unknown:
        untold = line.unknown_requests - records.aborted - records.failed
        yield Reason(
            why=Why.UNTOLD,
            detail=f"{untold} requests were answered without their cached tokens",
            fix="start vLLM with --enable-prompt-tokens-details, or install kvscope in vLLM's environment",
        )


def counts_lookups_again(store: Store, engine: str) -> bool | None:
    """Whether the engine is older than 0.27, as far as its metrics page tells; None for 0.26 to 0.29."""
    config = [one for one in store.reader.latest_samples(CACHE_CONFIG_METRIC) if one.engine == engine]
    if any(one.engine == engine for one in store.reader.latest_samples(_METRIC_OF_0_30)):
        return False
    return True if config and all(_is_older(one.labels) for one in config) else None


def _is_older(labels: Mapping[str, str]) -> bool:
    return _LABEL_OF_0_26 not in labels


def _is_before(version: str) -> bool | None:
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2])) < _FIXED
