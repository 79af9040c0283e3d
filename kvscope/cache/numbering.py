"""Ids of blocks to numbers without gaps, in the order in which they first come, batch by batch."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int32]
_NONE = -1
_SPARSE = 4  # a table may be so many times as long as ids were seen
_SMALL = 1 << 16


class Numbering:
    """The numbers of one scope's ids: a table where ids are small and dense, as most traces have them.

    Else a sorted list, which is searched. Both take a few bytes for each different id.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._table: Numbers | None = np.full(0, _NONE, dtype=np.int32)
        self._ids = np.zeros(0, dtype=np.uint64)
        self._numbers = np.zeros(0, dtype=np.int32)

    def number(self, ids: NDArray[np.uint64], following: int) -> tuple[Numbers, int]:
        """Return the ids' numbers, and the number that the next new id gets; the first new one gets
        ``following``.
        """
        if not len(ids):
            return np.zeros(0, dtype=np.int32), following
        self._seen += len(ids)
        largest = int(ids.max())
        if self._table is not None and largest >= max(_SPARSE * self._seen, _SMALL):
            known = np.flatnonzero(self._table != _NONE)
            self._ids, self._numbers = known.astype(np.uint64), self._table[known]
            self._table = None
        if self._table is None:
            return self._by_search(ids, following)
        return self._by_table(ids, largest, self._table, following)

    def _by_table(
        self, ids: NDArray[np.uint64], largest: int, table: Numbers, following: int
    ) -> tuple[Numbers, int]:
        if largest >= len(table):
            more = np.full(max(largest + 1, len(table) * 5 // 4) - len(table), _NONE, dtype=np.int32)
            table = self._table = np.concatenate([table, more])
        places = ids.astype(np.int64)
        numbers = table[places]
        new = places[numbers == _NONE]
        if len(new):
            turn = np.arange(len(new), dtype=np.int32)
            table[new[::-1]] = turn[::-1]  # of equal ones the first is written last
            new = new[table[new] == turn]
            table[new] = np.arange(following, following + len(new), dtype=np.int32)
            numbers = table[places]
        return numbers, following + len(new)

    def _by_search(self, ids: NDArray[np.uint64], following: int) -> tuple[Numbers, int]:
        unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        places = np.searchsorted(self._ids, unique)
        known = np.zeros(len(unique), dtype=np.bool_)
        inside = places < len(self._ids)
        known[inside] = self._ids[places[inside]] == unique[inside]
        numbers = np.empty(len(unique), dtype=np.int32)
        numbers[known] = self._numbers[places[known]]
        new = np.flatnonzero(~known)
        in_turn = new[np.argsort(first[new])]
        numbers[in_turn] = np.arange(following, following + len(new), dtype=np.int32)
        self._ids = np.insert(self._ids, places[new], unique[new])
        self._numbers = np.insert(self._numbers, places[new], numbers[new])
        return numbers[inverse], following + len(new)
