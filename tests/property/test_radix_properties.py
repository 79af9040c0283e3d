"""The radix tree finds what comparing with every item finds, through additions and removals."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvscope.analysis.radix import RadixTree

TOKENS = st.lists(st.integers(0, 2), max_size=8)


def common(one: list[int], other: list[int]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


@given(st.lists(st.tuples(TOKENS, st.booleans()), max_size=40))
def test_the_nearest_is_the_newest_with_the_longest_common_prefix(
    steps: list[tuple[list[int], bool]],
) -> None:
    tree: RadixTree[int] = RadixTree()
    known: dict[int, list[int]] = {}
    for number, (tokens, removes) in enumerate(steps):
        if removes and known:
            gone = sorted(known)[number % len(known)]
            tree.remove(np.array(known.pop(gone), dtype=np.uint32), gone)
        expected = max(((common(tokens, other), each) for each, other in known.items()), default=None)
        found = tree.nearest(np.array(tokens, dtype=np.uint32))
        assert bool(tree) == bool(known)
        assert found == (None if expected is None else (expected[1], expected[0]))
        known[number] = tokens
        tree.add(np.array(tokens, dtype=np.uint32), number, number)
