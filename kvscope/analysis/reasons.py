"""Why a block that had been computed before was not in the cache: evicted, or still being computed."""

import dataclasses
from collections import OrderedDict

from kvscope.analysis.attribution import PromptFacts, WhyMissing
from kvscope.cache.index import BlockIndex, Presence
from kvscope.model.request import MissCause, RequestRecord

_SLACK_SECONDS = 0.001  # clocks of gateway and engine are read at different points of the same step


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When a request arrived, was admitted by the engine's scheduler, and got its first token.

    Times that no source told are the nearest one that was: not later than the true one for ``admitted_at``,
    not earlier than ``admitted_at`` for ``first_token_at``.
    """

    arrived_at: float
    admitted_at: float
    first_token_at: float


def times_of(arrived_at: float, record: RequestRecord) -> Times:
    """Return the times of a request that arrived at ``arrived_at``, from what its record tells."""
    admitted_at = arrived_at + (record.queue_seconds or 0.0)
    told = (record.ttft_seconds, record.ttft_client_seconds, record.e2e_seconds)
    first_token = next((seconds for seconds in told if seconds is not None), 0.0)
    return Times(
        arrived_at=arrived_at,
        admitted_at=admitted_at,
        first_token_at=max(admitted_at, arrived_at + first_token),
    )


class Progress:
    """How far the latest prompts are: None while one is being computed. Bounded; for one thread."""

    def __init__(self, max_prompts: int = 20_000) -> None:
        self._max_prompts = max_prompts
        self._computed_at: OrderedDict[int, float | None] = OrderedDict()

    def begin(self, serial: int) -> None:
        """Note a prompt that is on its way."""
        self._computed_at[serial] = None
        while len(self._computed_at) > self._max_prompts:
            self._computed_at.popitem(last=False)

    def computed(self, serial: int, at: float) -> None:
        """Note that all blocks of a prompt were computed at time ``at``."""
        if serial in self._computed_at:
            self._computed_at[serial] = at

    def was_computed(self, serial: int, at: float) -> bool:
        """Whether the prompt was computed by time ``at``; what was forgotten is long done."""
        computed_at = self._computed_at.get(serial, float("-inf"))
        return computed_at is not None and computed_at <= at


def seen_blocks(facts: PromptFacts, index: BlockIndex | None, arrived_at: float) -> int:
    """Return how many leading blocks had been computed before the prompt arrived.

    Earlier prompts tell, and the engine's events beyond them: a block that had been evicted by then (one of
    generated tokens, or of traffic that kvscope did not see) had been computed.
    """
    seen = facts.seen_blocks
    if index is None:
        return seen
    while seen < len(facts.chain) and index.presence(facts.chain[seen], arrived_at) is Presence.REMOVED:
        seen += 1
    return seen


def reasons(facts: PromptFacts, times: Times, progress: Progress, index: BlockIndex | None) -> WhyMissing:
    """Return the function that ``attribute`` asks about each block that was computed before.

    With events: removed by the time of the first token is ``evicted``; stored only after the prompt arrived
    is ``in_flight``. Without events, or where they began too late to tell, by elimination: computed by the
    time of admission and yet not hit is ``evicted``, not yet computed is ``in_flight``. Events that show the
    block in the cache all the time give no reason of its own.
    """

    def why(block: int) -> MissCause | None:
        if index is not None:
            chain_id = facts.chain[block]
            on_arrival = index.presence(chain_id, times.arrived_at)
            at_first_token = index.presence(chain_id, times.first_token_at + _SLACK_SECONDS)
            if Presence.REMOVED in {on_arrival, at_first_token}:
                return MissCause.EVICTED
            if on_arrival is Presence.LATER:
                return MissCause.IN_FLIGHT
            if on_arrival is Presence.CACHED and not index.partial:
                return None
        serial = facts.first_serials[block] if block < facts.seen_blocks else 0
        if progress.was_computed(serial, times.admitted_at):
            return MissCause.EVICTED
        return MissCause.IN_FLIGHT

    return why
