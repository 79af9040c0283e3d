"""What collectors are given and what they must offer; third parties build on exactly this."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from kvscope.clock import Clock
from kvscope.model.advice import Routing
from kvscope.model.prompt import Prompt, TransformSpec
from kvscope.model.request import Miss, RequestPart
from kvscope.model.telemetry import CacheEventBatch, MetricSample, Span


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What is written in one transaction: all of it or none of it.

    ``only_copy`` tells that its sender keeps none and does not wait for the receipt: such a batch is on disk
    before ``offer`` returns, so that a killed agent does not lose it.
    """

    parts: Sequence[RequestPart] = ()
    spans: Sequence[Span] = ()
    samples: Sequence[MetricSample] = ()
    misses: Sequence[Miss] = ()
    only_copy: bool = False

    def __len__(self) -> int:
        return len(self.parts) + len(self.spans) + len(self.samples) + len(self.misses)


Receipt = Future[int]
"""Resolves to the number of items that the store refused (0 when all is well) after the commit; while the
store is away, to 0 once the disk has the batch."""


class Sink(Protocol):
    """Takes batches towards the store."""

    def offer(self, batch: Batch) -> Receipt:
        """Queue ``batch``; raises ``RetryableIngestError`` when the queue is full."""
        ...


class BatchStore(Protocol):
    """The store as the writer sees it."""

    def write(self, batches: Sequence[Batch]) -> int:
        """Write and commit ``batches`` in one transaction; return the number of refused items."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What happens to one request on its way to the engine."""

    transforms: Sequence[TransformSpec] = ()
    experiment: str | None = None
    arm: str | None = None
    warmup: bool | None = None
    salt: str | None = None  # keeps the arm's blocks apart, see `prompts.salts`
    routing: Routing | None = None  # None: as the gateway is set


UNCHANGED = Decision()


class TrafficPolicy(Protocol):
    """Decides what the gateway does with a request; must be quick."""

    def decide(
        self, *, route: str, session: str | None, request_id: str, at: float, tenant: str | None = None
    ) -> Decision:
        """Return the decision for one request of ``route``."""
        ...


class PromptObserver(Protocol):
    """Hears of every prompt in order of arrival; must return at once and never raise."""

    def arrived(self, prompt: Prompt) -> None:
        """Note a prompt that is about to be sent to the engine."""
        ...


class PrefixIndex(Protocol):
    """Knows what the engines have cached; must be quick and never raise."""

    def cached_tokens(self, api: str, body: Mapping[str, Any]) -> Mapping[str, int]:
        """Return how many of the prompt's first tokens each engine has cached, about; unknown ones lack."""
        ...


class LatencyForecast(Protocol):
    """Foretells a request's time to first token; must be quick and never raise."""

    def ttft_seconds(self, api: str, body: Mapping[str, Any], *, engine: str, in_flight: int) -> float | None:
        """Return the seconds to the first token at ``engine``, or None where nothing is known yet."""
        ...


class _NothingKnown:
    """Stands in where no agent knows more."""

    def cached_tokens(self, api: str, body: Mapping[str, Any]) -> Mapping[str, int]:
        del api, body
        return {}

    def ttft_seconds(self, api: str, body: Mapping[str, Any], *, engine: str, in_flight: int) -> float | None:
        del api, body, engine, in_flight
        return None


_NOTHING_KNOWN = _NothingKnown()


class CacheEventListener(Protocol):
    """Hears of the engines' cache events; must return at once and never raise."""

    def on_events(self, batch: CacheEventBatch) -> None:
        """Note one batch of events."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CollectorContext:
    """All that a collector may use; handed to it by the agent."""

    sink: Sink
    clock: Clock
    registry: CollectorRegistry  # kvscope's own metrics
    upstreams: Sequence[str]  # base URLs of the vLLM servers, without a trailing slash
    policy: TrafficPolicy
    prompts: PromptObserver
    cache_events: CacheEventListener
    prefixes: PrefixIndex = _NOTHING_KNOWN
    forecast: LatencyForecast = _NOTHING_KNOWN


class Collector(Protocol):
    """A running way in. ``stop`` is safe without ``start`` and twice."""

    async def start(self) -> None:
        """Begin; raises ``ConfigError`` (port in use) or ``UnreachableError``."""
        ...

    async def stop(self) -> None:
        """Stop taking in, hand on what was taken, then return."""
        ...

    def health(self) -> tuple[bool, str]:
        """Return whether it works and one line that says how."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CollectorFactory:
    """What an entry point of the group ``kvscope.collectors`` names."""

    name: str
    settings: type[BaseModel]
    create: Callable[[Any, CollectorContext], Collector]  # the settings instance, the context
