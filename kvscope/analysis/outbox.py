"""What the analysis has found, on its way to the store; bounded, for one thread."""

from collections import deque

from prometheus_client import Counter

from kvscope.errors import RetryableIngestError
from kvscope.model.request import MOST_PIECES, RequestPart, RequestRecord, Source
from kvscope.pipeline.contracts import Batch, Sink

_UNSENT_BATCHES = 1_000


class Outbox:
    """Offers batches in order; those that find no room wait, and of too many the oldest are dropped."""

    def __init__(self, sink: Sink, dropped: Counter) -> None:
        self._sink = sink
        self._dropped = dropped
        self._unsent: deque[Batch] = deque(maxlen=_UNSENT_BATCHES)

    def send(self, batch: Batch) -> None:
        """Offer ``batch`` behind those that wait."""
        if len(self._unsent) == _UNSENT_BATCHES:
            self._dropped.labels("result").inc()
        self._unsent.append(batch)
        self.retry()

    def retry(self) -> None:
        """Offer what waits."""
        while self._unsent:
            try:
                self._sink.offer(self._unsent[0])
            except RetryableIngestError:
                return
            self._unsent.popleft()


def sequences_missing(record: RequestRecord, sequences: int) -> Batch | None:
    """Return what makes the tokens of ``record`` unknown where an engine's report of a sequence was lost.

    Tokens add up over the sequences that are told of, so that a lost one would make them silently small.
    Naming each of the ``sequences`` that were asked for makes them unknown until all have told theirs.
    """
    told = any(source.value in record.pieces for source in (Source.SPAN, Source.PLUGIN))
    if not told or record.sequences >= sequences:
        return None
    named = range(min(sequences, MOST_PIECES + 1))
    return Batch(
        parts=[
            RequestPart(
                request_id=record.request_id, source=Source.ANALYSIS, values={}, piece=f"asked-{number}"
            )
            for number in named
        ]
    )
