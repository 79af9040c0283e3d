"""What a cache saves a second and a GiB, counted by hand."""

import pytest

from kvscope.cache.curve import capacity_curve
from kvscope.cache.traces import TraceBuilder
from kvscope.cache.worth import worth
from kvscope.errors import UsageError

GIB = 1 << 30


def test_hit_tokens_a_second_and_prefill_seconds_a_gib() -> None:
    builder = TraceBuilder(100)
    for prompt in ([1], [2], [1], [2], [2]):  # one block finds the last 2; two find both again
        builder.add(prompt, prompt_tokens=100)
    curve = capacity_curve(builder.build()[0])
    one, two = worth(
        curve, [2, 1], block_bytes=GIB // 2, duration_seconds=10.0, prefill_tokens_per_second=1000.0
    )
    assert (one.blocks, one.gib, one.hit_tokens, one.hit_rate) == (1, 0.5, 100, 0.2)
    assert (two.blocks, two.gib, two.hit_tokens, two.hit_rate) == (2, 1.0, 300, 0.6)
    assert (one.hit_tokens_per_second, two.hit_tokens_per_second) == (10.0, 30.0)
    assert (one.hit_tokens_per_second_per_gib, two.hit_tokens_per_second_per_gib) == (20.0, 30.0)
    assert two.added_hit_tokens_per_second_per_gib == 40.0
    assert (two.prefill_seconds_saved, two.prefill_seconds_saved_per_gib) == (0.3, 0.3)
    assert two.prefill_seconds_saved_per_hour == pytest.approx(108.0)


def test_what_is_not_known_is_none() -> None:
    builder = TraceBuilder(100)
    builder.add([1], prompt_tokens=100)
    curve = capacity_curve(builder.build()[0])
    (only,) = worth(curve, [1], block_bytes=1, duration_seconds=0.0, prefill_tokens_per_second=None)
    assert only.hit_tokens_per_second is None
    assert only.prefill_seconds_saved is None
    with pytest.raises(UsageError, match="at least one byte, not 0"):
        worth(curve, [1], block_bytes=0, duration_seconds=None, prefill_tokens_per_second=None)
    with pytest.raises(UsageError, match="above zero tokens a second"):
        worth(curve, [1], block_bytes=1, duration_seconds=None, prefill_tokens_per_second=0.0)
