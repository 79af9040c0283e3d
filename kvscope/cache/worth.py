"""Whether a cache is worth its memory: what each capacity saves, a second and a GiB."""

import dataclasses
from collections.abc import Sequence

from kvscope.cache.curve import Curve
from kvscope.errors import UsageError

_GIB = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a cache of ``blocks`` saves on the traffic of a log, and what the last GiB of it added.

    ``prefill_seconds_saved`` is compute time over the whole log: hit tokens ÷ the prefill rate. Values per
    GiB are of the whole cache; ``added`` ones compare with the capacity before it in the list, of the first
    with none. What rests on the log's length or the prefill rate is None where that is not known.
    """

    blocks: int
    gib: float
    hit_rate: float | None
    hit_tokens: int
    hit_tokens_per_second: float | None
    hit_tokens_per_second_per_gib: float | None
    added_hit_tokens_per_second_per_gib: float | None
    prefill_seconds_saved: float | None
    prefill_seconds_saved_per_gib: float | None
    prefill_seconds_saved_per_hour: float | None


def worth(
    curve: Curve,
    capacities: Sequence[int],
    *,
    block_bytes: int,
    duration_seconds: float | None,
    prefill_tokens_per_second: float | None,
) -> list[Worth]:
    """Return the worth of each capacity in blocks, from the smallest on.

    ``block_bytes`` is a block's tokens times the model's bytes a token, see ``cache.sizing``. Raises
    ``UsageError`` for sizes and rates that are not above zero, and as ``Curve.hits``.
    """
    if block_bytes < 1:
        raise UsageError(f"a block takes at least one byte, not {block_bytes}")
    if prefill_tokens_per_second is not None and prefill_tokens_per_second <= 0:
        raise UsageError(f"a prefill rate is above zero tokens a second, not {prefill_tokens_per_second}")
    found: list[Worth] = []
    seconds = duration_seconds or None
    gib_before, tokens_before = 0.0, 0
    for blocks in sorted(set(capacities)):
        _, tokens = curve.hits(blocks)
        gib = blocks * block_bytes / _GIB
        saved = None if prefill_tokens_per_second is None else tokens / prefill_tokens_per_second
        found.append(
            Worth(
                blocks=blocks,
                gib=gib,
                hit_rate=tokens / curve.queried_tokens if curve.queried_tokens else None,
                hit_tokens=tokens,
                hit_tokens_per_second=_over(tokens, seconds),
                hit_tokens_per_second_per_gib=_over(_over(tokens, seconds), gib),
                added_hit_tokens_per_second_per_gib=_over(
                    _over(tokens - tokens_before, seconds), gib - gib_before
                ),
                prefill_seconds_saved=saved,
                prefill_seconds_saved_per_gib=_over(saved, gib),
                prefill_seconds_saved_per_hour=None if saved is None else _over(3600 * saved, seconds),
            )
        )
        gib_before, tokens_before = gib, tokens
    return found


def _over(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by
