"""Mined segments against templates that are known."""

import difflib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.prompts.mining.alignment import _aligned, mined_segments, tokens_of

WORDS = [f"w{number}" for number in range(4000)]


@pytest.mark.parametrize("seed", range(6))
def test_a_planted_template_is_found_under_a_tenth_of_noise(seed: int) -> None:
    rng = random.Random(seed)
    static = [rng.sample(WORDS, k=rng.randint(20, 150)) for _ in range(4)]
    texts = []
    for _ in range(20):
        words: list[str] = []
        for place, piece in enumerate(static):
            if place:
                words += rng.choices(WORDS, k=rng.randint(3, 30))
            words += piece
        texts.append([rng.choice(WORDS) if rng.random() < 0.1 else word for word in words])
    found = mined_segments(texts)
    told = [word for segment in found for word in segment.tokens]
    planted = [word for piece in static for word in piece]
    # in order, nothing that is not the template's, and nearly all that is
    matcher = difflib.SequenceMatcher(None, planted, told, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    assert same / len(told) >= 0.99
    assert same / len(planted) >= 0.98
    assert sum(not segment.static and segment.distinct > 10 for segment in found) == len(static) - 1


@given(st.lists(st.text(" \nab,", max_size=40), min_size=1, max_size=5))
def test_texts_are_aligned_in_order_and_tokens_join_to_the_text(texts: list[str]) -> None:
    tokens = [tokens_of(text) for text in texts]
    assert ["".join(each) for each in tokens] == texts
    for other in tokens:
        places = _aligned(tokens[0], other)
        matched = [(at, place) for at, place in enumerate(places) if place >= 0]
        assert all(tokens[0][at] == other[place] for at, place in matched)
        assert [place for _, place in matched] == sorted({place for _, place in matched})
    assert mined_segments(tokens[:1]) == mined_segments([tokens[0]] * 3)


def test_nothing_has_no_segments() -> None:
    assert mined_segments([]) == []
    assert mined_segments([[], []]) == []
