"""What a miss costs in prefill time, as ``kvscope hits`` estimates it."""

import pytest

from kvscope.cli.hits import prefill_seconds
from kvscope.model.views import HitRow, MissRow

MISS = MissRow(
    route="chat", cause="diverged", role="system", message_index=0, value_kind="time", requests=3, tokens=600,
    example_request_id="r", example_char_start=0, example_char_end=8,
)  # fmt: skip


def row(prompt_tokens: int, cached_tokens: int) -> HitRow:
    return HitRow(
        key="chat", requests=12, known_requests=10, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens,
        ttft_seconds_mean=None, causes={},
    )  # fmt: skip


def test_a_miss_has_its_share_of_the_time_of_its_routes_mean_request() -> None:
    asked: list[tuple[int, int]] = []

    def predict(prompt_tokens: int, cached_tokens: int) -> float:
        asked.append((prompt_tokens, cached_tokens))
        return 0.25

    # 10 requests of 500 prompt and 300 cached tokens, 0.25 s each; 600 of the 2,000 tokens that missed
    assert prefill_seconds(MISS, {"chat": row(5_000, 3_000)}, predict) == pytest.approx(0.75)
    assert asked == [(500, 300)]


def test_it_is_unknown_without_a_model_or_what_it_needs() -> None:
    assert prefill_seconds(MISS, {"chat": row(5_000, 3_000)}, None) is None
    assert prefill_seconds(MISS, {"chat": row(5_000, 3_000)}, lambda prompt, cached: None) is None
    assert prefill_seconds(MISS, {}, lambda prompt, cached: 1.0) is None
    assert prefill_seconds(MISS, {"chat": row(0, 0)}, lambda prompt, cached: 1.0) is None
