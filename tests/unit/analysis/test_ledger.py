"""What the ledger remembers, and that it forgets in time."""

from typing import Any

import numpy as np
import pytest

from kvscope.analysis.ledger import Arrival, Ledger
from kvscope.analysis.shingles import WINDOW_TOKENS, WindowSet, window_hashes
from kvscope.prompts.segments import Segment


def arrival(tokens: range | list[int], route: str = "r", **more: Any) -> Arrival:
    return Arrival(engine="e", route=route, tokens=list(tokens), segments=(), block_size=4, **more)


def test_a_prompt_knows_only_those_before_it() -> None:
    ledger = Ledger()
    first = ledger.arrive(arrival(range(40)))
    second = ledger.arrive(arrival(range(40)))
    assert (first.seen_blocks, first.difference, first.place) == (0, None, None)
    assert not first.known.any()
    assert second.first_serials == (first.serial,) * 10
    assert second.difference == 40


def test_first_serials_name_who_came_first() -> None:
    ledger = Ledger()
    one = ledger.arrive(arrival(range(8)))
    two = ledger.arrive(arrival(range(16)))
    three = ledger.arrive(arrival([*range(16), 99, 98, 97, 96]))
    assert three.first_serials == (one.serial, one.serial, two.serial, two.serial)


def test_nearest_is_the_longest_prefix_and_of_the_route_first() -> None:
    ledger = Ledger()
    ledger.arrive(arrival([*range(30), 500]))
    ledger.arrive(arrival([*range(20), 600]))
    ledger.arrive(arrival([*range(90), 700], route="other"))
    assert ledger.arrive(arrival(range(100))).difference == 30
    assert ledger.arrive(arrival(range(100), route="new")).difference == 100


def test_number_of_prompts_of_a_route_is_bounded() -> None:
    ledger = Ledger(group_prompts=5)
    for serial in range(50):
        ledger.arrive(arrival(range(serial * 100, serial * 100 + 20)))
    assert len(ledger) == 5
    assert ledger.arrive(arrival(range(20))).seen_blocks == 5  # its blocks are still known


def test_memory_is_bounded_and_the_oldest_prompts_go() -> None:
    ledger = Ledger(max_bytes=50_000)
    text = (Segment(role="user", message_index=0, text="x" * 1_000),)
    for serial in range(100):
        ledger.arrive(
            Arrival(engine="e", route=str(serial % 7), tokens=range(100), segments=text, block_size=4)
        )
        assert ledger.bytes <= 50_000
    assert 5 < len(ledger) < 20
    ledger.arrive(Arrival(engine="e", route="big", tokens=range(100_000), segments=(), block_size=4))
    assert len(ledger) == 0
    assert ledger.bytes == 0
    assert ledger.arrive(arrival(range(8))).difference is None


def test_block_ids_are_bounded_and_the_prompts_still_known_help_out() -> None:
    ledger = Ledger(max_chain_ids=50)
    for serial in range(30):
        ledger.arrive(arrival(range(serial * 100, serial * 100 + 40)))
    assert all(len(ids) <= 50 for ids in ledger._seen.values())
    assert len(ledger._contents) <= 50
    facts = ledger.arrive(arrival(range(40)))
    assert facts.first_serials == (1,) * 10


def test_salts_are_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr("kvscope.analysis.ledger._DOMAINS", 10)
    ledger = Ledger()
    for serial in range(100):
        ledger.arrive(arrival(range(8), salt=str(serial)))
    assert len(ledger._domains) <= 11


def test_windows_count_runs_of_16_tokens_wherever_they_stand() -> None:
    rng = np.random.default_rng(1)
    known = rng.integers(0, 1_000, 200).astype(np.uint32)
    windows = WindowSet()
    windows.add(np.unique(window_hashes(known)), ())
    moved = np.concatenate([[7, 8, 9], known[50:120], [5] * 30, known[:15]]).astype(np.uint32)
    mask = windows.known(moved, 0)
    assert mask.tolist() == [False] * 3 + [True] * 70 + [False] * 45
    assert windows.known(moved, 10).tolist() == [False] * 10 + [True] * 63 + [False] * 45
    assert not windows.known(moved, 60).any()  # only 13 known tokens are left: no window
    assert not windows.known(known[: WINDOW_TOKENS - 1], 0).any()


def test_windows_of_dropped_prompts_are_forgotten_when_the_set_is_rebuilt() -> None:
    windows = WindowSet()
    prompts = [np.arange(at * 100, at * 100 + 50, dtype=np.uint32) for at in range(20)]
    hashes = [np.unique(window_hashes(prompt)) for prompt in prompts]
    for at in range(20):
        windows.add(hashes[at], hashes[max(0, at - 3) : at + 1])
    assert not windows.known(prompts[0], 0).any()
    assert windows.known(prompts[19], 0).all()


def test_hashes_of_windows_differ() -> None:
    tokens = np.random.default_rng(2).integers(0, 8, 100_000).astype(np.uint32)
    assert len(np.unique(window_hashes(tokens))) == 100_000 - WINDOW_TOKENS + 1
    assert window_hashes(tokens[:20])[0] != window_hashes(tokens[:20][::-1].copy())[0]


@pytest.mark.parametrize("tokens", [[-1], [2**32]])
def test_token_ids_that_no_tokenizer_has(tokens: Any) -> None:
    with pytest.raises(OverflowError):
        Ledger().arrive(arrival(tokens))
