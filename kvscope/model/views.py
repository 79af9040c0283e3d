"""Rows that readers of the store return: aggregates for the command line, pages and reports."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HitRow:
    """Hits and misses of all requests that share ``key``; only requests with known tokens count.

    ``requests`` counts all of the key's requests, ``known_requests`` those whose prompt and cached tokens
    are both known: the sums and ``causes`` are over these.
    """

    key: str
    requests: int
    known_requests: int
    prompt_tokens: int
    cached_tokens: int
    ttft_seconds_mean: float | None
    causes: Mapping[str, int]

    @property
    def hit_rate(self) -> float | None:
        """Cached ÷ prompt tokens, or None where nothing is known."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRow:
    """How a time is spread over the requests that share ``key``, in seconds, within one percent.

    ``source`` says who measured: ``engine``, or ``client`` (the gateway, at the client's side).
    """

    key: str
    source: str
    requests: int
    p50: float
    p95: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MissRow:
    """Missed tokens of one route, cause and place, with an example request."""

    route: str
    cause: str
    role: str | None
    message_index: int | None
    value_kind: str | None
    requests: int
    tokens: int
    example_request_id: str
    example_char_start: int | None
    example_char_end: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistogramRow:
    """What one of an engine's histograms has counted between two reads: counts up to each bound."""

    engine: str
    replica: str
    first_at: float
    last_at: float
    buckets: Mapping[float, float]

    @property
    def observations(self) -> float:
        """How many values were counted."""
        return max(self.buckets.values(), default=0.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConflictRow:
    """How many requests have a ``field`` taken from ``source`` of which ``other`` tells another value.

    Of each field only the most trusted of those that were not believed is named.
    """

    field: str
    source: str
    other: str
    requests: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """One time bucket of one route."""

    at: float  # start of the bucket
    route: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    ttft_seconds_mean: float | None
    tpot_seconds_mean: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """First and last samples of an engine's prefix-cache counters, in tokens, since its last restart."""

    engine: str
    replica: str
    first_at: float
    last_at: float
    queries: float
    hits: float
    external_hits: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordSums:
    """Sums over the requests that one engine may have looked up, to be compared with its counters.

    ``aborted``, ``failed`` and ``untold`` count the requests whose cached tokens no source told, by how they
    ended; ``untold`` ones ended well, or it is not known how.
    """

    requests: int
    prompt_tokens: int
    cached_tokens: int
    aborted: int
    failed: int
    untold: int

    @property
    def unknown(self) -> int:
        """Requests whose cached tokens are unknown."""
        return self.aborted + self.failed + self.untold


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineLife:
    """What an engine's metrics tell beside its prefix-cache counters.

    ``prompt_tokens`` is the growth of the counter that vLLM raises with each first output token, None where
    it was not scraped; ``starts`` counts the different process starts that were seen, ``changes`` how often
    one followed another.
    """

    prompt_tokens: float | None
    starts: int
    changes: int
