"""What an engine had to do when each request arrived, told by the records of all its requests.

Under load the queue decides the time to the first token: requests in flight, those among them without a
first token yet, and the uncached tokens of these, which stand before the new one.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kvscope.model.request import RequestRecord


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Other requests of the engine at a request's arrival; ``prefilling_tokens`` are uncached ones."""

    in_flight: int
    prefilling: int
    prefilling_tokens: int


def loads(records: Sequence[RequestRecord]) -> dict[str, Load]:
    """Return the load by request id, for requests that tell arrival, first token, end and cached tokens.

    Requests that do not tell these are not seen: with many of them loads are too small. Time is that of
    sorting.
    """
    engines: dict[str | None, list[RequestRecord]] = defaultdict(list)
    for record in records:
        if _told(record):
            engines[record.engine].append(record)
    found: dict[str, Load] = {}
    for ones in engines.values():
        found |= _of_engine(ones)
    return found


def _told(record: RequestRecord) -> bool:
    return None not in (
        record.arrived_at,
        record.ttft_seconds,
        record.e2e_seconds,
        record.prompt_tokens,
        record.cached_tokens,
    )


def _of_engine(records: Sequence[RequestRecord]) -> dict[str, Load]:
    import numpy as np

    def told(name: str) -> Any:
        return np.array([getattr(record, name) for record in records], dtype=float)

    arrived = told("arrived_at")
    first = np.sort(arrived + told("ttft_seconds"))
    ended = np.sort(arrived + told("e2e_seconds"))
    uncached = told("prompt_tokens") - told("cached_tokens")
    by_arrival, by_first = np.argsort(arrived), np.argsort(arrived + told("ttft_seconds"))
    come = np.searchsorted(arrived[by_arrival], arrived, side="left")
    begun = np.searchsorted(first, arrived, side="right")
    gone = np.searchsorted(ended, arrived, side="right")
    tokens_come = np.concatenate([[0.0], np.cumsum(uncached[by_arrival])])[come]
    tokens_begun = np.concatenate([[0.0], np.cumsum(uncached[by_first])])[begun]
    return {
        record.request_id: Load(
            in_flight=max(0, int(come[place] - gone[place])),
            prefilling=max(0, int(come[place] - begun[place])),
            prefilling_tokens=max(0, int(tokens_come[place] - tokens_begun[place])),
        )
        for place, record in enumerate(records)
    }
