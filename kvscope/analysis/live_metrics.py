"""kvscope's own metrics of the live analysis."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


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
