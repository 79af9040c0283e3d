"""Numbers of ids are those of a plain dict, whatever the ids and however they come."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvscope.cache.numbering import Numbering

IDS = st.one_of(st.integers(0, 50), st.integers(0, 70_000), st.integers(0, (1 << 64) - 1))


@given(st.lists(st.lists(IDS, max_size=40), max_size=8))
def test_equal_ids_have_equal_numbers_in_the_order_of_their_coming(batches: list[list[int]]) -> None:
    numbering = Numbering()
    following = 0
    known: dict[int, int] = {}
    for batch in batches:
        numbers, following = numbering.number(np.array(batch, dtype=np.uint64), following)
        for each, number in zip(batch, numbers.tolist(), strict=True):
            assert known.setdefault(each, number) == number
        assert list(known.values()) == list(range(following))  # in the order in which ids first come
