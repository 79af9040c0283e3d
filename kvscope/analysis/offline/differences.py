"""Why a replay gave another number of cached tokens than the engine: one reason a request."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from kvscope.cache.overlap import TimedRequest
from kvscope.cache.replay import ReplayedRequest

_NEAR = 64  # requests before and after in the order that are compared


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A request that hit something else than the engine recorded, and the most likely reason.

    ``kind``: ``order`` (it ran together with another that begins alike, and the engine took them in the other
    order), ``generated`` (it goes on from tokens that the log does not hold), ``block_size`` (no multiple of
    it was recorded), ``evicted`` or ``kept`` (the engine's cache was smaller or larger than this one),
    ``before`` (the cache held it before the log begins). ``other`` is the other request of ``order``.
    """

    request_id: str
    hit_tokens: int
    recorded_cached_tokens: int
    kind: str
    reason: str
    other: str | None = None


def differences(
    requests: Sequence[TimedRequest],
    replayed: Sequence[ReplayedRequest],
    *,
    block_size: int,
    num_blocks: int | None,
) -> tuple[Difference, ...]:
    """Return what differs. ``requests`` stand in the order of ``replayed``."""
    return tuple(
        _Explainer(requests, at, each.hit_tokens, recorded, block_size, num_blocks).difference()
        for at, each in enumerate(replayed)
        if (recorded := each.recorded_cached_tokens) is not None and recorded != each.hit_tokens
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Explainer:
    requests: Sequence[TimedRequest]
    at: int
    hit: int
    recorded: int
    block_size: int
    num_blocks: int | None

    def difference(self) -> Difference:
        kind, reason, other = self._why()
        return Difference(
            request_id=self.requests[self.at].request.request_id,
            hit_tokens=self.hit,
            recorded_cached_tokens=self.recorded,
            kind=kind,
            reason=reason,
            other=other,
        )

    def _why(self) -> tuple[str, str, str | None]:
        if self.recorded % self.block_size:
            counted = f"the engine counted {self.recorded:,} cached tokens, no multiple of {self.block_size}"
            return "block_size", f"{counted}: its blocks have another size, or another tier served it", None
        swapped = next(filter(self._swapped, self._near()), None)
        if swapped is not None:
            other = self.requests[swapped]
            name, apart = other.request.request_id, abs(other.at - self.requests[self.at].at) * 1000
            how = f"{name}, sent {apart:.1f} ms apart, begins alike and ran at the same time"
            return "order", f"{how}: the engine took them in the other order", name
        if self.recorded < self.hit:
            limit = (
                "name its --blocks" if self.num_blocks is None else "it has fewer, or other traffic used them"
            )
            return "evicted", f"the engine had evicted blocks that this cache still had: {limit}", None
        return self._why_more()

    def _why_more(self) -> tuple[str, str, str | None]:
        """Say why the engine found more than the replay."""
        earlier = self.requests[: self.at]
        for other in earlier:
            name = other.request.request_id
            if isinstance(other.request.output_tokens, int) and self._common(other) == len(
                other.request.tokens
            ):
                return "generated", f"goes on from what {name} generated: the log does not hold it", name
        if any(self._common(other) >= self.recorded for other in earlier):
            return "kept", "the engine still had what this cache gave up: it has more blocks", None
        return "before", "no earlier request of the log begins so: the engine's cache was warm", None

    def _near(self) -> Sequence[int]:
        near = range(max(self.at - _NEAR, 0), min(self.at + _NEAR + 1, len(self.requests)))
        return sorted((place for place in near if place != self.at), key=lambda place: abs(place - self.at))

    def _swapped(self, place: int) -> bool:
        """Whether the engine took the two the other way: one found what the other had just stored."""
        more = self.recorded > self.hit
        if more != (place > self.at) or not _together(self.requests[self.at], self.requests[place]):
            return False
        return self._common(self.requests[place]) >= max(self.recorded, self.hit)

    def _common(self, other: TimedRequest) -> int:
        """Return the length of the prefix that both prompts share; 0 under another salt or model."""
        own = self.requests[self.at].request
        if (own.salt, own.lora) != (other.request.salt, other.request.lora):
            return 0
        length = min(len(own.tokens), len(other.request.tokens))
        unlike = np.flatnonzero(np.asarray(own.tokens[:length]) != np.asarray(other.request.tokens[:length]))
        return int(unlike[0]) if len(unlike) else length


def _together(one: TimedRequest, other: TimedRequest) -> bool:
    """Whether both ran at one time."""
    first, second = (one, other) if one.at <= other.at else (other, one)
    return first.finished_at is not None and second.at <= first.finished_at
