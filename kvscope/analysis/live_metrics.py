"""kvscope's own metrics of the live analysis."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvscope.cache.index import BlockIndex


class AnalyserMetrics:
    """Counts what became of requests, and what was dropped or failed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "kvscope_analysed_requests",
            "Requests by what became of their analysis.",
            ["result"],
            registry=registry,
        )
        self.dropped = Counter(
            "kvscope_analyser_dropped",
            "Items dropped because the queue was full.",
            ["what"],
            registry=registry,
        )
        self.mismatches = Counter(
            "kvscope_analyser_token_mismatches",
            "Requests whose prompt kvscope tokenised into another number of tokens than the engine.",
            registry=registry,
        )
        self.failures = Counter(
            "kvscope_analyser_failures", "Faults inside the analysis.", ["step"], registry=registry
        )
        self.seconds = Histogram(
            "kvscope_analyser_prompt_seconds", "Time to tokenise and compare one prompt.", registry=registry
        )
        self.waiting = Gauge("kvscope_analyser_queue_items", "Items that wait.", registry=registry)
        self._index = Gauge(
            "kvscope_index_blocks",
            "Blocks of an engine's cache by what is known of them.",
            ["engine", "known"],
            registry=registry,
        )
        self._partial = Gauge(
            "kvscope_index_partial",
            "1 where blocks may be cached or gone without kvscope knowing.",
            ["engine"],
            registry=registry,
        )

    def index(self, engine: str, index: BlockIndex) -> None:
        """Show what the index of ``engine`` knows."""
        self._index.labels(engine, "cached").set(len(index))
        self._index.labels(engine, "dropped").set(index.dropped_blocks)
        self._index.labels(engine, "not understood").set(index.unknown_blocks)
        self._partial.labels(engine).set(index.partial)
