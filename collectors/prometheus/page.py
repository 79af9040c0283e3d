"""One metrics page to samples; any text gives samples or ``PermanentIngestError``."""

import math
from collections.abc import Set as AbstractSet

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from collectors.prometheus.families import (
    BUCKETS,
    FOREIGN,
    KEPT,
    OLD,
    OLD_RATE,
    PREFIX_CACHE_QUERIES,
)
from kvscope.errors import PermanentIngestError
from kvscope.model.telemetry import MetricSample

_MOST_SAMPLES = 50_000  # of a page; vLLM 0.32 has 60 for each engine behind it, and 240 buckets
_OWN_FIELDS = frozenset({"engine", "model_name"})


def parse_page(text: str, engine: str, at: float, *, buckets: bool = False) -> list[MetricSample]:
    """Return the kept samples of ``engine``'s page as read at ``at``, on wish with histograms' buckets.

    Raises ``PermanentIngestError`` for what is not a metrics page, has no metrics of vLLM, or is of an
    engine so old that its cache counters mean something else.
    """
    wanted = KEPT | BUCKETS if buckets else KEPT
    named = [(_name(line), line) for line in text.splitlines()]
    _refuse_foreign({name for name, _ in named})
    lines = [line for name, line in named if name in wanted]
    kept: dict[tuple[str, str, frozenset[tuple[str, str]]], MetricSample] = {}
    for sample in _samples(lines):
        if sample.name in wanted and math.isfinite(sample.value):
            replica = sample.labels.get("engine", "")
            labels = {key: value for key, value in sample.labels.items() if key not in _OWN_FIELDS}
            kept[sample.name, replica, frozenset(labels.items())] = MetricSample(
                engine=engine,
                replica=replica,
                name=sample.name,
                labels=labels,
                at=at,
                value=float(sample.value),
            )
    return list(kept.values())


def _name(line: str) -> str:
    """Return the metric's name; picking lines by it first makes reading a page ten times as quick."""
    words = line.partition("{")[0].split(maxsplit=1)
    return words[0] if words else ""


def _samples(lines: list[str]) -> list[Sample]:
    if len(lines) > _MOST_SAMPLES:
        raise PermanentIngestError(f"the page has more than {_MOST_SAMPLES} samples that are kept")
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except Exception as error:
        # the parser meets odd text with errors of many kinds
        raise PermanentIngestError("the page is not in Prometheus' text format") from error
    return [sample for family in families for sample in family.samples]


def _refuse_foreign(names: AbstractSet[str]) -> None:
    if OLD_RATE in names or (PREFIX_CACHE_QUERIES not in names and not names.isdisjoint(OLD)):
        raise PermanentIngestError(
            "the page is of vLLM's V0 engine or of 0.8, whose cache counters are not in tokens; "
            "run vLLM 0.11 or later"
        )
    if not any(name.startswith("vllm:") for name in names):
        whose = next((FOREIGN[start] for start in FOREIGN for name in names if name.startswith(start)), None)
        if whose is not None:
            raise PermanentIngestError(
                f"the page is that of {whose}, and only vLLM's is read; "
                "name a vLLM server's page, or set collectors.prometheus.interval_seconds to 0"
            )
        raise PermanentIngestError("the page has no metrics of vLLM; is the URL that of a vLLM server?")
