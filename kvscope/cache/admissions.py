"""The order in which an engine let requests in, from the KV-cache events that it published.

A client's clock says when a request was sent, not when the engine took it up: two that were sent within a few
milliseconds may swap, and then the other one finds what both begin with. vLLM stores a prompt's new blocks
when it schedules them, and publishes that in order, so the events tell which came first.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from kvscope.cache.event_chains import FIRST_PLACE, UNKNOWN, chains, place_of
from kvscope.cache.overlap import TimedRequest
from kvscope.cache.replay import UNKNOWN_TOKENS, computed_chain
from kvscope.model.telemetry import AllBlocksCleared, BlockStored, CacheEventBatch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Admissions:
    """Requests in the order in which the engine let them in; ``told`` of them by its events.

    A request whose prompt brought no new block is in no event: it stands behind those that stored its
    blocks. Each one's ``at`` is no earlier than that of the one before it.
    """

    requests: tuple[TimedRequest, ...]
    told: int


def admissions(
    requests: Sequence[TimedRequest], batches: Iterable[CacheEventBatch], block_size: int
) -> Admissions:
    """Return ``requests`` in the order in which ``batches`` of one engine say that it let them in.

    The times of requests and events must be of clocks that agree: an event that is not from between a
    request's coming and its end tells nothing of it.
    """
    events = sorted(batches, key=lambda batch: (batch.at, batch.sequence))
    matcher = _Matcher(requests, block_size)
    for number, (at, ids) in enumerate(_stored(events, block_size)):
        matcher.take(number, at, ids)
    return matcher.result()


def _stored(batches: Iterable[CacheEventBatch], block_size: int) -> Iterable[tuple[float, list[int]]]:
    """Yield the time and the chain ids of each stored run of blocks of the engine's own memory."""
    known: dict[int | bytes, int] = {}
    for batch in batches:
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                known.clear()
            if not isinstance(event, BlockStored) or event.block_size != block_size:
                continue
            if place_of(event.group_idx, event.medium, event.locality) != FIRST_PLACE:
                continue
            ids = [int(each) for each in chains([event], known)]
            if ids and UNKNOWN not in ids:
                known.update(zip(event.block_hashes, ids, strict=True))
                yield batch.at, ids


@dataclasses.dataclass(slots=True)
class _Candidate:
    """A request by its chain ids and their depths: as the base model's, and as those of an adapter.

    vLLM serves an adapter under a model name of its own, and hashes that name only if it is one.
    """

    request: TimedRequest
    prompt_blocks: int
    depths: dict[int, int] = dataclasses.field(default_factory=dict)  # chain id -> blocks up to its end
    lasts: list[int] = dataclasses.field(default_factory=list)  # of the last blocks that a lookup may find
    event: int | None = None  # the number of the event that told of it
    reached: int = 0  # blocks that its events have stored


class _Matcher:
    """Finds the request behind each event: the one whose blocks they are and that was sent before."""

    def __init__(self, requests: Sequence[TimedRequest], block_size: int) -> None:
        self._candidates = [_candidate(timed, block_size) for timed in sorted(requests, key=_sent_at)]
        self._by_id: dict[int, list[_Candidate]] = {}
        self._first_stored: dict[int, int] = {}  # chain id -> the first event that stored it
        for candidate in self._candidates:
            for chain_id in candidate.depths:
                self._by_id.setdefault(chain_id, []).append(candidate)

    def take(self, number: int, at: float, ids: Sequence[int]) -> None:
        """Take an event's blocks: a whole prompt's rest, what comes after a part, or a first part."""
        for chain_id in ids:
            self._first_stored.setdefault(chain_id, number)
        sharing = [each for each in self._by_id.get(ids[-1], ()) if _ran_at(each.request, at)]
        if not sharing:
            return
        end = sharing[0].depths[ids[-1]]
        begin = end - len(ids)
        waiting = [each for each in sharing if each.event is None]
        whole = (each for each in waiting if each.prompt_blocks == end)
        going_on = (each for each in sharing if each.event is not None and each.reached == begin)
        first_part = (each for each in waiting if each.prompt_blocks > end)
        found = next(itertools.chain(whole, going_on, first_part), None)
        if found is None:
            return
        found.reached = end
        if found.event is None:
            found.event = number

    def result(self) -> Admissions:
        """Return the requests in order; those that no event told of by their times, behind their blocks."""
        told = [(each.event, each) for each in self._candidates if each.event is not None]
        told.sort(key=lambda each: each[0])
        events = [event for event, _ in told]
        ats = list(itertools.accumulate((each.request.at for _, each in told), max))
        placed = [(at, 2 * place, each) for place, (at, (_, each)) in enumerate(zip(ats, told, strict=True))]
        for each in self._candidates:
            if each.event is not None:
                continue
            first = max((self._first_stored.get(last, -1) for last in each.lasts), default=-1)
            behind = bisect.bisect_right(events, first) - 1
            at = max(each.request.at, ats[behind]) if behind >= 0 else each.request.at
            placed.append((at, 2 * max(bisect.bisect_right(ats, at) - 1, behind) + 1, each))
        placed.sort(key=lambda each: each[:2])
        return Admissions(
            requests=tuple(dataclasses.replace(each.request, at=at) for at, _, each in placed),
            told=len(told),
        )


def _sent_at(timed: TimedRequest) -> float:
    return timed.at


def _ran_at(timed: TimedRequest, at: float) -> bool:
    return timed.at <= at and (timed.finished_at is None or at <= timed.finished_at)


def _candidate(timed: TimedRequest, block_size: int) -> _Candidate:
    request = timed.request
    candidate = _Candidate(timed, len(request.tokens) // block_size)
    found = max(len(request.tokens) - 1, 0) // block_size
    for lora in dict.fromkeys((None, request.lora)):
        named = dataclasses.replace(request, lora=lora)
        chain = computed_chain(named, block_size, itertools.count(UNKNOWN_TOKENS))
        candidate.depths |= {chain_id: depth for depth, chain_id in enumerate(chain, start=1)}
        candidate.lasts += chain[:found][-1:]
    return candidate
