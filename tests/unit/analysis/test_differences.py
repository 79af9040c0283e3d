"""Why a replay gave another number than the engine: a reason for each request."""

import dataclasses
from collections.abc import Sequence

import pytest

from kvscope.analysis.offline.differences import Difference, differences
from kvscope.cache.overlap import TimedRequest, replay_overlapping
from kvscope.cache.replay import ReplayRequest

PREFIX = list(range(8))
NONE: tuple[int, ...] = ()


def sent(
    name: str,
    tokens: Sequence[int],
    at: float,
    recorded: int,
    *,
    end: float | None = None,
    output: Sequence[int] | int = NONE,
    salt: str | None = None,
) -> TimedRequest:
    request = ReplayRequest(
        request_id=name, tokens=tokens, recorded_cached_tokens=recorded, output_tokens=output, salt=salt
    )
    return TimedRequest(request=request, at=at, finished_at=end)


def explained(requests: Sequence[TimedRequest], num_blocks: int | None = None) -> list[Difference]:
    replayed = replay_overlapping(requests, block_size=4, num_blocks=num_blocks).per_request
    return list(differences(requests, replayed, block_size=4, num_blocks=num_blocks))


def test_two_that_swapped_explain_each_other() -> None:
    first = sent("a", [*PREFIX, 50], 1.0, 8, end=3.0)
    second = sent("b", [*PREFIX, 60], 1.0035, 0, end=2.0)
    found = explained([first, second])
    assert [(each.request_id, each.kind, each.other) for each in found] == [
        ("a", "order", "b"),
        ("b", "order", "a"),
    ]
    assert found[0].reason == (
        "b, sent 3.5 ms apart, begins alike and ran at the same time: the engine took them in the other order"
    )
    assert (found[0].hit_tokens, found[0].recorded_cached_tokens) == (0, 8)
    other_salt = sent("b", [*PREFIX, 60], 1.0035, 0, end=2.0, salt="s")
    assert [each.kind for each in explained([first, other_salt])] == ["before"]


@pytest.mark.parametrize(
    ("requests", "num_blocks", "kind", "said"),
    [
        ([sent("a", [*PREFIX, 50], 1.0, 5)], None, "block_size", "no multiple of 4"),
        ([sent("a", [*PREFIX, 50], 1.0, 4)], None, "before", "cache was warm"),
        (
            [sent("a", [*PREFIX, 50], 1.0, 0), sent("b", [*PREFIX, 60], 2.0, 0)],
            None,
            "evicted",
            "name its --blocks",
        ),
        (
            [sent("a", [*PREFIX, 50], 1.0, 0), sent("b", [*PREFIX, 60], 2.0, 4)],
            10,
            "evicted",
            "it has fewer, or other traffic used them",
        ),
        (
            [
                sent("a", [*PREFIX, 50], 1.0, 0),
                sent("b", range(100, 112), 2.0, 0),
                sent("c", [*PREFIX, 60], 3.0, 8),
            ],
            4,
            "kept",
            "it has more blocks",
        ),
        (
            [sent("a", PREFIX, 1.0, 0, output=9), sent("b", [*PREFIX, *range(30, 40)], 2.0, 16)],
            None,
            "generated",
            "goes on from what a generated",
        ),
    ],
)
def test_each_reason(requests: list[TimedRequest], num_blocks: int | None, kind: str, said: str) -> None:
    (found,) = explained(requests, num_blocks)
    assert (found.request_id, found.kind) == (requests[-1].request.request_id, kind)
    assert said in found.reason


def test_what_agrees_or_was_not_recorded_needs_no_reason() -> None:
    known = sent("a", PREFIX, 1.0, 0)
    unknown = dataclasses.replace(
        known, at=2.0, request=dataclasses.replace(known.request, recorded_cached_tokens=None)
    )
    assert explained([known, unknown]) == []
