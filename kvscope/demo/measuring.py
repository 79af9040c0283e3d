"""What the store knows of one phase of the demo: hit rates and times by route, once all has arrived."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.model.request import RequestRecord
from kvscope.reports.content import Traffic
from kvscope.reports.measure import traffic
from kvscope.store.database import Store

_POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The requests of one stretch of traffic; ``missing`` counts those of which something is not known."""

    name: str
    began_at: float
    ended_at: float
    routes: Mapping[str, Traffic]  # the largest first
    total: Traffic
    causes: Mapping[str, Mapping[str, int]]  # route -> cause -> tokens
    missing: int

    def of(self, route: str) -> Traffic:
        """Return the figures of one route."""
        return self.routes[route]

    def as_json(self, route: str) -> dict[str, Any]:
        """Return the tuned route's figures, and those of all routes beside them."""
        return figures(self.routes[route]) | {
            "routes": {key: figures(row) for key, row in self.routes.items()},
            "total": figures(self.total),
        }


def figures(row: Traffic) -> dict[str, Any]:
    """Return one row as JSON shows it; what is not known is None."""
    ttft = row.ttft
    return {
        "requests": row.requests,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "hit_rate": row.hit_rate,
        "ttft_seconds": None if ttft is None else {"mean": ttft.mean, "p50": ttft.p50, "p95": ttft.p95},
    }


def measure(
    store: Store,
    name: str,
    *,
    began_at: float,
    ended_at: float,
    requests: int,
    patience_seconds: float = 30.0,
) -> Phase:
    """Return the figures of the ``requests`` that arrived between the two times.

    Spans and miss causes come some moments after the answers: waits for them, up to the patience.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        records = [
            record
            for record in store.reader.requests(since_at=began_at)
            if record.arrived_at is not None and record.arrived_at < ended_at
        ]
        missing = max(requests - len(records), 0) + sum(not _complete(record) for record in records)
        if not missing or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    by_route: dict[str, list[RequestRecord]] = {}
    for record in records:
        by_route.setdefault(record.route or "(none)", []).append(record)
    rows = sorted(
        (traffic(route, found) for route, found in by_route.items()), key=lambda row: -row.prompt_tokens
    )
    return Phase(
        name=name,
        began_at=began_at,
        ended_at=ended_at,
        routes={row.key: row for row in rows},
        total=traffic("all routes", records),
        causes={route: _causes(found) for route, found in by_route.items()},
        missing=missing,
    )


def _complete(record: RequestRecord) -> bool:
    """Whether gateway, engine and analysis have all told their part."""
    parts = (record.status, record.cached_tokens, record.ttft_seconds, record.causes)
    return all(part is not None for part in parts)


def _causes(records: Sequence[RequestRecord]) -> dict[str, int]:
    tokens: dict[str, int] = {}
    for record in records:
        for cause, amount in (record.causes or {}).items():
            if amount:
                tokens[cause] = tokens.get(cause, 0) + amount
    return dict(sorted(tokens.items(), key=lambda item: -item[1]))
