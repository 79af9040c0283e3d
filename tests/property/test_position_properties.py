"""Positional entropy against the definition, prefix by prefix and pair by pair."""

import itertools
import math
import statistics
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.prompts.entropy import character_entropy, value_entropy, window_entropy
from kvscope.prompts.positions import profile

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12)


def shannon(outcomes: list[int]) -> float:
    counts = Counter(outcomes).values()
    return -sum(count / len(outcomes) * math.log2(count / len(outcomes)) for count in counts)


def common(first: list[int], second: list[int]) -> int:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return len(list(pairs))


@given(PROMPTS)
def test_each_position_is_the_entropy_given_its_prefix(prompts: list[list[int]]) -> None:
    found = {position.position: position for position in profile(prompts).positions}
    for depth in range(7):
        longer = [prompt for prompt in prompts if len(prompt) > depth]
        nexts: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for prompt in longer:
            nexts[tuple(prompt[:depth])].append(prompt[depth])
        bits = sum(len(each) * shannon(each) for each in nexts.values()) / max(len(longer), 1)
        if depth in found:
            assert found[depth].prompts == len(longer)
            assert found[depth].entropy_bits == pytest.approx(bits)
            ways = [len(set(each)) for each in nexts.values()]
            assert found[depth].branches == sum(way for way in ways if way > 1)
        else:
            assert bits == 0


@given(PROMPTS)
def test_the_shared_prefix_is_that_of_all_pairs(prompts: list[list[int]]) -> None:
    found = profile(prompts)
    shared = sorted((common(*pair) for pair in itertools.combinations(prompts, 2)), reverse=True)
    if not shared:
        assert (found.shared_mean, found.shared_median) == (None, None)
        return
    assert found.shared_mean == pytest.approx(statistics.mean(shared))
    assert found.shared_median == statistics.median_high(shared)


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=20))
def test_the_positions_of_equally_long_prompts_sum_to_the_entropy_of_the_whole(
    prompts: list[list[int]],
) -> None:
    whole = value_entropy([sum(token << 2 * place for place, token in enumerate(each)) for each in prompts])
    assert profile(prompts).entropy_bits == pytest.approx(whole)


@given(st.text(alphabet="ab你 ", max_size=60), st.integers(1, 20))
def test_the_window_entropy_is_the_mean_over_windows(text: str, window: int) -> None:
    windows = [text[start : start + window] for start in range(max(1, len(text) - window + 1))]
    expected = statistics.mean(map(character_entropy, windows))
    assert window_entropy(text, window) == pytest.approx(expected, abs=1e-9)
